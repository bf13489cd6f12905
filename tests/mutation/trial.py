"""Plant one fault after the other in a copy of the tree, and see whether a test finds it."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutation.fault import Fault

CAUGHT, HUNG, SURVIVED = "caught", "hung", "survived"
LIMIT_S = 3600.0
"""For one fault, since a busy machine is slow; a test that hangs fails by its own limit before."""

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "__pycache__", ".*_cache", ".hypothesis"
)
_PASSED, _FAILED, _INTERRUPTED = 0, 1, 2
_PYTEST = "-m pytest -x -q --hypothesis-profile few -p no:randomly -p no:cacheprovider".split()


class Outcome(NamedTuple):
    """What came of a fault, after how many seconds, and the last words of pytest."""

    verdict: str
    wall_s: float
    words: str


class Copy:
    """A copy of the tree in *root*, whole again after each trial."""

    def __init__(self, tree: Path, root: Path) -> None:
        self._root = root
        self._times_s = itertools.count(1)
        shutil.copytree(tree, root, ignore=_LEFT_OUT)

    def try_out(self, fault: Fault, tests: Sequence[str], limit_s: float = LIMIT_S) -> Outcome:
        """Plant *fault* and run *tests* until one fails.

        Raises:
            ValueError: Its place is not there, or pytest did not run.
        """
        path = self._root / fault.file
        before = path.read_text(encoding="utf-8")
        self._write(path, fault.planted(before))
        try:
            return self.run(tests, limit_s)
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Python knows compiled code by the second and the size of its source: each is a new one.
        os.utime(path, (time_s := next(self._times_s), time_s))

    def run(self, tests: Sequence[str], limit_s: float = LIMIT_S) -> Outcome:
        """Run *tests* on the copy as it is; raises ValueError if pytest did not run."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        kept.pop("AXERN_LONG", None)
        started_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *_PYTEST, *tests],
            cwd=self._root,
            env={**kept, "PYTHONPATH": str(self._root)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            words, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Outcome(HUNG, limit_s, f"no end within {limit_s} s")
        wall_s = time.monotonic() - started_s
        if process.returncode == _PASSED:
            return Outcome(SURVIVED, wall_s, _last_line(words))
        if process.returncode in (_FAILED, _INTERRUPTED) or process.returncode < 0:
            return Outcome(CAUGHT, wall_s, _finder(words))
        raise ValueError(f"pytest ended with {process.returncode}: {words[-2000:]}")


def _last_line(words: str) -> str:
    return words.strip().rpartition("\n")[2]


def _finder(words: str) -> str:
    """Return the line of pytest that names what failed."""
    lines = [line for line in words.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0] if lines else _last_line(words)
