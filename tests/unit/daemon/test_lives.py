"""What a life makes of an exit file, and of a launch that the host refused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from axern.daemon.course import _read_exit
from axern.daemon.lives import Lives
from axern.errors import ProgramNotFound
from axern.host.cgroup import Hierarchies
from axern.runtime import outcome
from axern.runtime.layout import Layout, SandboxPaths
from tests.unit.daemon.rig import rig


@pytest.fixture
def paths(tmp_path: Path) -> SandboxPaths:
    folder = str(tmp_path)
    layout = Layout(folder, folder, folder, folder, "axern", Hierarchies("/nowhere", ()))
    os.makedirs(layout.exits)
    return layout.sandbox("ab" * 16)


@pytest.mark.parametrize("text", ["", "x", "1.5", "0x1", "\xff"])
def test_an_exit_file_without_a_code_says_nothing(paths: SandboxPaths, text: str) -> None:
    assert _read_exit(paths) is None
    Path(paths.exit_file).write_text(text, encoding="latin-1")
    assert _read_exit(paths) is None
    Path(paths.exit_file).write_text("7", encoding="ascii")
    found = _read_exit(paths)
    assert found is not None
    assert found.exit_code == 7


def test_how_a_launch_failed() -> None:
    full = outcome.outcome_of(OSError(28, "No space left on device"))
    assert (full.status, full.exit_code, full.cli_exit_code) == ("failed", None, 125)
    assert full.message == "the host refused: No space left on device"
    missing = outcome.outcome_of(ProgramNotFound("x", "not found"))
    assert (missing.exit_code, missing.cli_exit_code) == (None, 127)
    assert missing.diagnostic_code == "runtime-start-error"


def test_nothing_comes_alive_in_a_daemon_that_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with rig(tmp_path) as made:
            parts = made.parts
            lives = Lives(
                parts.ledger,
                parts.committer,
                parts.layout,
                parts.runs,
                parts.settings,
                parts.clock,
                parts.keeper,
            )
            await lives.close(1)
            assert lives.begin("ab" * 16).task is None
            assert lives.all() == ()

    asyncio.run(scenario())
