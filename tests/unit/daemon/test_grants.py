"""Which rights a configuration gives: to users, to groups, to whoever may use the socket."""

from __future__ import annotations

import grp
import logging
import pwd
from typing import Any

import pytest
from pydantic import ValidationError

from axern.api.messages import Peer
from axern.daemon.grants import Grants
from axern.settings import Settings
from ledger.rights import ADMIN, LAUNCH, READ, RESERVE, ROOT

SOMEBODY = pwd.getpwall()[-1]
SOME_GROUP = grp.getgrall()[-1]
MEMBER = Peer(1, 4242, 4242, (7, 8))
NO_RIGHTS: dict[str, Any] = {"may_read": [], "may_reserve": [], "may_launch": []}


def grants(**keys: Any) -> Grants:
    return Grants(Settings.model_validate(keys))


def given(peer: Peer, **keys: Any) -> frozenset[str]:
    return grants(**NO_RIGHTS | keys).caller(peer).rights


def test_by_default_all_that_may_use_the_socket_do_all_but_administer() -> None:
    assert grants().caller(MEMBER).rights == {READ, RESERVE, LAUNCH}
    assert grants().caller(Peer(1, 0, 0)) == ROOT


def test_root_needs_no_key() -> None:
    assert grants(**NO_RIGHTS).caller(Peer(1, 0, 4242)) == ROOT
    assert given(Peer(1, 4242, 0)) == set()


@pytest.mark.parametrize("who", ["4242", "@4242", "@7", "@8"])
def test_a_number_is_a_user_or_a_group_be_it_a_supplementary_one(who: str) -> None:
    assert given(MEMBER, may_read=[who]) == {READ}
    assert given(MEMBER, may_admin=["1", who]) == {READ, RESERVE, LAUNCH, ADMIN}
    assert given(MEMBER, may_launch=[who]) == {READ, LAUNCH}
    assert given(MEMBER, may_reserve=[who]) == {READ, RESERVE}
    assert given(Peer(1, 4243, 4243, (9,)), may_admin=[who]) == set()


def test_a_user_is_no_group_and_a_group_no_user() -> None:
    assert given(Peer(1, 7, 100), may_read=["@7"]) == set()
    assert given(Peer(1, 100, 7, (7,)), may_read=["7"]) == set()


def test_names_are_looked_up() -> None:
    assert given(Peer(1, SOMEBODY.pw_uid, 9), may_read=[SOMEBODY.pw_name]) == {READ}
    assert given(Peer(1, 9, 9, (SOME_GROUP.gr_gid,)), may_read=[f"@{SOME_GROUP.gr_name}"]) == {READ}


def test_an_unknown_name_gives_nothing_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = grants(**NO_RIGHTS | {"may_read": ["no-such-user"], "may_admin": ["@no-such-group"]})
    assert made.caller(MEMBER).rights == set()
    assert made.unknown == ["no-such-user", "@no-such-group"]
    assert "no-such-user, @no-such-group" in caplog.text


def test_owners_of_a_namespace_may_read() -> None:
    keys = {"namespace_owners": ["team-a=4242", "team-b=@9", "team-b=@8", "team-c=1"]}
    caller = grants(**NO_RIGHTS | keys).caller(MEMBER)
    assert caller.namespaces == {"team-a", "team-b"}
    assert caller.rights == {READ}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("may_admin", ["*"]),
        ("may_read", "root"),
        ("may_read", [""]),
        ("may_read", ["@"]),
        ("may_read", ["@*"]),
        ("may_read", ["two words"]),
        ("may_read", [1000]),
        ("may_write", ["root"]),
        ("namespace_owners", ["team-a"]),
        ("namespace_owners", ["Team=root"]),
        ("namespace_owners", ["=root"]),
        ("namespace_owners", ["team-a=a=b"]),
    ],
)
def test_a_mistake_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValidationError, match=key):
        Settings.model_validate({key: value})
