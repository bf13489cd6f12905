"""Who wants to be alone among host tests is, and long tests run only when asked for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.tidy.sources import ROOT

# Each test is alone if it can make a folder that all of them would make.
ALONE = """
import pathlib
import time
import pytest

ROOM = pathlib.Path(__file__).with_name("room")

{mark}
@pytest.mark.parametrize("number", range(8))
def test_alone(number):
    ROOM.mkdir()
    time.sleep(0.1)
    ROOM.rmdir()

"""

OTHERS = """
@pytest.mark.host
@pytest.mark.parametrize("number", range(8))
def test_others(number):
    for _ in range(10):
        assert not ROOM.exists()
        time.sleep(0.01)
"""

LONG = """
import pytest

@pytest.mark.long
def test_long():
    pass

def test_short():
    pass
"""


def run_suite(folder: Path, suite: str, **variables: str) -> str:
    """Run *suite* in *folder* with two workers, as `make test` would; return the last line."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "test_suite.py").write_text(suite, encoding="utf-8")
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "AXERN_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "test_suite.py"],
        cwd=folder,
        env=inherited | variables | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip().rpartition("\n")[2]


def test_who_wants_to_be_alone_is(tmp_path: Path) -> None:
    suite = ALONE.format(mark="@pytest.mark.host(alone=True)") + OTHERS
    assert " 16 passed in " in run_suite(tmp_path, suite)


def test_control_other_tests_run_side_by_side(tmp_path: Path) -> None:
    assert " failed" in run_suite(tmp_path, ALONE.format(mark="@pytest.mark.host"))


def test_long_tests_run_only_when_asked_for(tmp_path: Path) -> None:
    assert " 1 passed in " in run_suite(tmp_path, LONG)
    assert " 2 passed in " in run_suite(tmp_path, LONG, AXERN_LONG="1")
