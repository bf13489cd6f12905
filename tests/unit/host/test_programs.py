"""Programs that answer, that can't, and that could not be asked for the moment."""

import subprocess
from pathlib import Path

import pytest

from axern.host import programs
from axern.host.capabilities import Denied, Proved, Unclear, attempt


def program(folder: Path, text: str) -> str:
    path = folder / "runc"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "text",
    [
        "exit 0",
        "echo runc version 1.2.3; exit 1",
        "echo runc: error while loading shared libraries >&2; exit 127",
        "kill -SEGV $$",
    ],
)
def test_one_that_can_not_even_tell_its_version_does_not_work(tmp_path: Path, text: str) -> None:
    path = program(tmp_path, text)
    outcome = attempt(lambda: programs.described(path))
    assert isinstance(outcome, Denied), outcome
    assert programs.known(path) is None


def test_one_that_could_not_be_asked_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(tmp_path, "echo runc version 1.2.3")
    for trouble in (BlockingIOError(11, "no room"), subprocess.TimeoutExpired(path, 30)):

        def fail(*_: object, trouble: Exception = trouble, **__: object) -> None:
            raise trouble

        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "run", fail)
            assert isinstance(attempt(lambda: programs.described(path)), Unclear)
    found = attempt(lambda: programs.described(path))
    assert isinstance(found, Proved), found
    assert found.message.startswith(f"{path} 1.2.3 (sha256 ")
    known = programs.known(path)
    assert known is not None
    assert known.version == "1.2.3"


def test_a_path_through_a_file_leads_to_no_program(tmp_path: Path) -> None:
    path = program(tmp_path, "true")
    assert isinstance(attempt(lambda: programs.identity(f"{path}/runc")), Denied)
