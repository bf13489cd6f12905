"""Every route has a verb of the table of rights, and asks for its right before anything else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from axern.daemon.handlers import Handlers
from axern.daemon.routes import Route
from ledger import rights
from tests.unit.daemon.rig import ROOT, USER, Rig, play

NOBODY = "f" * 32


def test_no_route_is_without_a_verb_of_the_table(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        routes = Handlers(rig.parts)._routes.all
        assert [route for route in routes if route.verb not in rights.TABLE] == []
        named = {route.verb for route in routes}
        # What the others decide stands in a body, or is part of an answer.
        assert set(rights.TABLE) - named == {
            rights.RUN_ROOTFS,
            rights.RUN_HOST_NETWORK,
            rights.HURRY,
            rights.NAME_HOLDER,
        }

    with pytest.raises(TypeError, match="verb"):
        Route(method="GET", path="/v2/x", summary="", action=cast("Any", None))  # type: ignore[call-arg]
    play(tmp_path, scenario)


def test_who_has_no_right_is_told_before_anything_is_read(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        for route in Handlers(rig.parts)._routes.all:
            target = re.sub("{[a-z]+}", NOBODY, route.path)
            status, answer = await rig.ask(route.method, target, None, USER)
            denied = status == 403 and answer["error"]["code"] == "permission_denied"
            assert denied == (route.verb.right is not None), (route, answer)
            if denied:
                assert f"may_{route.verb.right}" in answer["error"]["hint"]
                assert "uid 1000" in answer["error"]["message"]

    play(tmp_path, scenario, may_read=[], may_reserve=[], may_launch=[])


def test_everybody_is_told_what_they_may(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        for peer, given, owned in ((ROOT, [*rights.RIGHTS], []), (USER, ["read"], ["team-a"])):
            _, answer = await rig.ask("GET", "/v2/whoami", None, peer)
            assert answer["you"] == {"uid": peer.uid, "rights": given, "namespaces": owned}

    none: dict[str, Any] = {"may_read": [], "may_reserve": [], "may_launch": []}
    play(tmp_path, scenario, **none, namespace_owners=["team-a=1000"])
