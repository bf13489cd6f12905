"""The program that imports templates, run as the daemon runs it, and what is around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from axern.host import filestore
from axern.runtime.command import ENVIRONMENT
from axern.runtime.template_import import Job
from axern.runtime.template_meter import Limits

ROOMY = Limits(max_bytes=1024**3, max_entries=200_000, reserve_bytes=0, timeout_s=120)
SECRET = b"canary: nobody may read this"


@dataclass(frozen=True, slots=True)
class Result:
    """What an import said, and where it was made."""

    staging: str
    lines: list[dict[str, Any]]
    stderr: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The refusal; an import that succeeded, or said nothing, fails the test."""
        assert self.lines, self.stderr
        assert "error" in self.lines[-1], self.lines[-1]
        found: dict[str, Any] = self.lines[-1]["error"]
        return found

    @property
    def is_done(self) -> bool:
        """Whether it is complete; an import that said neither yes nor no fails the test."""
        assert self.lines, self.stderr
        assert self.lines[-1].keys() <= {"done", "error"}, self.lines[-1]
        return "done" in self.lines[-1]

    @property
    def rootfs(self) -> str:
        """Where the root file system is."""
        assert self.is_done, self.lines[-1]
        return f"{self.staging}/rootfs"

    @property
    def record(self) -> dict[str, Any]:
        """What template.json says."""
        with open(f"{self.staging}/template.json", encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        return found


@dataclass(slots=True)
class Workshop:
    """A folder with a canary beside the staging folders; the canary must stay as it is."""

    base: str
    made: int = 0

    @property
    def canary(self) -> str:
        """A folder outside, which hostile sources know the path of."""
        return f"{self.base}/canary"

    def path(self, name: str) -> str:
        """Return a path for a source."""
        return f"{self.base}/sources/{name}"

    def job(self, kind: str, path: str, reference: str = "", limits: Limits = ROOMY) -> Job:
        """Return a job with a staging folder of its own."""
        self.made += 1
        staging = f"{self.base}/staging/{self.made}"
        os.mkdir(staging, 0o700)
        return Job(staging, "/nowhere", kind, path, reference, 1_700_000_000_000, limits)

    def run(self, job: Job) -> Result:
        """Do *job* in a child, as the daemon does."""
        process, keep_open = self.start(job)
        with process, os.fdopen(keep_open, "wb"):
            stdout, stderr = process.communicate()
        return Result(job.staging, [json.loads(line) for line in stdout.splitlines()], stderr)

    def start(self, job: Job) -> tuple[subprocess.Popen[bytes], int]:
        """Start *job*; return the child and the descriptor whose end ends it."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        with os.fdopen(reading, "rb") as stdin:
            process = subprocess.Popen(
                [sys.executable, "-I", "-m", "axern.runtime.template_import"],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        os.write(writing, job.encode())
        return process, writing

    def add(self, kind: str, path: str, reference: str = "", **limits: float) -> Result:
        """Import *path*, under other limits if some are given."""
        return self.run(self.job(kind, path, reference, replace(ROOMY, **limits)))  # type: ignore[arg-type]


@contextmanager
def workshop() -> Iterator[Workshop]:
    """Make folders and a canary; afterwards prove that nothing outside the staging has changed."""
    base = tempfile.mkdtemp(prefix="axern-test-")
    try:
        for name in ("canary", "canary/inner", "sources", "staging"):
            os.mkdir(f"{base}/{name}")
        for name in ("secret", "inner/secret"):
            with open(f"{base}/canary/{name}", "wb") as file:
                file.write(SECRET)
        before = outside(base)
        shop = Workshop(base)
        yield shop
        after = outside(base)
        changed = {path for path in before | after if before.get(path) != after.get(path)}
        assert not changed
        assert secrets_in(f"{base}/staging") == []
    finally:
        filestore.remove_tree(base)


def outside(base: str) -> dict[str, tuple[int, ...]]:
    """Return what would change if anything outside the staging folders were touched."""
    found = {}
    for top in (f"{base}/canary", "/etc/ssl", "/boot"):
        for folder, folders, files in os.walk(top):
            for name in (*folders, *files, "."):
                path = os.path.join(folder, name)
                found[path] = _facts(path)
    for path in (base, "/etc/passwd", "/etc/shadow"):
        found[path] = _facts(path)
    found["/dev/null"] = _facts("/dev/null")[:-1]  # whoever writes to it moves its times
    return found


def _facts(path: str) -> tuple[int, ...]:
    seen = os.lstat(path)
    return (seen.st_ino, seen.st_mode, seen.st_nlink, seen.st_uid, seen.st_size, seen.st_ctime_ns)


def secrets_in(folder: str) -> list[str]:
    """Name each file below *folder* that holds what only the canary does."""
    found = []
    for at, _, files in os.walk(folder):
        for name in files:
            path = os.path.join(at, name)
            if not os.path.islink(path) and os.path.isfile(path) and os.path.getsize(path) < 4096:
                with open(path, "rb") as file:
                    if SECRET in file.read():
                        found.append(path)
    return found
