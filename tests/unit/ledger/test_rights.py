"""The one function that decides who may do what, in every case of the table."""

from __future__ import annotations

import re
from itertools import product

import pytest

from ledger import rights
from ledger.errors import PermissionDenied
from ledger.rights import ADMIN, LAUNCH, OWNER, READ, RESERVE, RIGHTS, TABLE, Caller, Thing

MINE, THEIRS = 1000, 1001
SPACE, ELSEWHERE = "team-a", "team-b"


def caller(*given: str, owns: str | None = None) -> Caller:
    return Caller(MINE, rights.with_implied(set(given)), frozenset({owns} if owns else ()))


CALLERS = (
    caller(), caller(READ), caller(RESERVE), caller(LAUNCH), caller(RESERVE, LAUNCH), caller(ADMIN),
    caller(READ, owns=SPACE), caller(READ, owns=ELSEWHERE), caller(owns=SPACE),
)  # fmt: skip


def test_every_verb_has_a_name_and_words_of_its_own() -> None:
    assert len({verb.name for verb in TABLE}) == len({verb.words for verb in TABLE}) == len(TABLE)
    assert {verb.right for verb in TABLE} == {None, *RIGHTS}
    assert all(verb.right is not None or verb.whose or verb is rights.HEAR for verb in TABLE)


def test_the_law() -> None:
    for verb, who, uid, namespace, fits in product(
        TABLE, CALLERS, (MINE, THEIRS, None), (SPACE, None), (False, True)
    ):
        allowed = rights.may(verb, who, uid, namespace, token_fits=fits)
        if verb.right is not None and verb.right not in who.rights:
            assert not allowed
        elif rights.TOKEN in verb.whose:
            assert allowed == fits
        else:
            parties = (
                not verb.whose,
                who.is_admin,
                OWNER in verb.whose and uid == MINE,
                rights.NAMESPACE_OWNER in verb.whose and namespace in who.namespaces,
            )
            assert allowed == any(parties)
        thing = Thing("run 1", uid, namespace, token_fits=fits)
        assert allowed == (refusal(verb, who, thing) is None)


def refusal(verb: rights.Verb, who: Caller, thing: Thing) -> PermissionDenied | None:
    try:
        rights.require(verb, who, thing)
    except PermissionDenied as error:
        return error
    return None


def test_more_rights_never_take_any_away() -> None:
    for verb, uid, given, more in product(TABLE, (MINE, THEIRS), RIGHTS, RIGHTS):
        if rights.may(verb, caller(given), uid, SPACE):
            assert rights.may(verb, caller(given, more), uid, SPACE)
            assert rights.may(verb, caller(given, owns=SPACE), uid, SPACE)


@pytest.mark.parametrize(
    ("verb", "who", "words", "hint"),
    [
        (rights.RUN, caller(READ), "takes the right launch, and uid 1000 has: read", "may_launch"),
        (rights.SEE, caller(), "takes the right read, and uid 1000 has: none", "may_read"),
        (rights.GOVERN, caller(LAUNCH), "only an admin may .*uid 1000 .*: read, launch", "may_adm"),
        (
            rights.CANCEL,
            caller(LAUNCH),
            "run 1 belongs to uid 1001 in namespace team-a, and you are uid 1000",
            "its owner or an owner of the namespace team-a or an admin",
        ),
        (rights.WRITE_INPUT, caller(LAUNCH), "run 1 belongs to uid 1001", "its owner or an admin"),
        (rights.SET_DEFAULTS, caller(READ), "run 1 is not yours", "an owner of the namespace team"),
        (rights.RENEW, caller(RESERVE), "the token does not belong to run 1", "takes the token"),
    ],
)
def test_a_refusal_names_the_rule_who_asks_and_whom_it_is_for(
    verb: rights.Verb, who: Caller, words: str, hint: str
) -> None:
    error = refusal(verb, who, Thing("run 1", THEIRS, SPACE))
    assert error is not None
    assert re.search(words, error.message), error.message
    assert hint in (error.hint or "")
    assert verb.words in error.message + (error.hint or "")


def test_what_nobody_remembers_is_for_admins() -> None:
    thing = Thing("run 1")
    error = refusal(rights.RELEASE, caller(READ, owns=SPACE), thing)
    assert error is not None
    assert "nobody that is remembered" in error.message
    assert "for an admin" in (error.hint or "")
    assert refusal(rights.RELEASE, caller(ADMIN), thing) is None


def test_without_a_configuration_root_is_the_one_admin() -> None:
    assert rights.by_default(0).rights == frozenset(RIGHTS)
    assert rights.by_default(1000).rights == {READ, RESERVE, LAUNCH}
