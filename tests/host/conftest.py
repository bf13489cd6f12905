"""A place of their own for sandboxes under test, and the proof that none left anything there."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from axern.host import cgroup, cgroup_files, cgroup_tree, filestore, mounts
from axern.host.cgroup_values import CgroupOptions, limits_of
from axern.records import Unpacker
from axern.runtime import launch, monitor, output, teardown, template
from axern.runtime.layout import Layout
from axern.runtime.oci import SandboxSpec
from axern.runtime.storage import Quota, project_id
from axern.runtime.teardown import Evidence
from ledger.resources import OptionalResources, Resources

VOLATILE = "/dev/shm"
EXIT_LIMIT_S = 120.0
"""Generous: the machine may be busy with other tests."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one sandbox, buried."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    evidence: Evidence


@dataclass(slots=True)
class Lab:
    """Roots below one temporary folder and one control group, and the sandboxes made in them."""

    layout: Layout
    rootfs: str
    made: list[SandboxSpec] = field(default_factory=list)

    def spec(
        self,
        runtime: str,
        *argv: str,
        rootfs: str | None = None,
        rootfs_readonly: bool = False,
        env: tuple[tuple[str, str], ...] = (),
        cwd: str = "/",
        user: str | None = None,
        limit_bytes: int | None = None,
    ) -> SandboxSpec:
        """Return a new sandbox; its lane is its number, so that neighbours differ."""
        spec = SandboxSpec(
            sandbox_id=secrets.token_hex(16),
            runtime=runtime,
            argv=argv,
            env=env,
            cwd=cwd,
            rootfs=rootfs or self.rootfs,
            rootfs_readonly=rootfs_readonly,
            lane=(lane := len(self.made)),
            hostname="lab",
            user=user,
            quota=None if limit_bytes is None else Quota(project_id(lane), limit_bytes),
        )
        self.made.append(spec)
        return spec

    def limited(
        self,
        runtime: str,
        *argv: str,
        memory_bytes: int | None = None,
        cpu_milli: int | None = None,
        request_milli: int = 100,
        pids_max: int = 512,
    ) -> SandboxSpec:
        """Return a new sandbox with limits that the kernel holds; its root is read-only."""
        held = limits_of(
            Resources(cpu_milli=request_milli, memory_bytes=16 * 1024**2),
            OptionalResources(cpu_milli=cpu_milli, memory_bytes=memory_bytes),
            runtime,
            CgroupOptions(pids_max=pids_max),
        )
        spec = replace(self.spec(runtime, *argv, rootfs_readonly=True), limits=held)
        self.made[-1] = spec
        return spec

    def launch(self, spec: SandboxSpec) -> None:
        """Create and start a sandbox."""
        launch.create(spec, self.layout, timeout_s=EXIT_LIMIT_S)
        launch.start(spec, self.layout)

    def wait_exit(self, spec: SandboxSpec) -> int:
        """Wait for the exit file and return the code in it."""
        paths = self.layout.sandbox(spec.sandbox_id)
        wait_until(lambda: monitor.read_exit(paths) is not None)
        ended = monitor.read_exit(paths)
        assert ended is not None
        return ended.exit_code

    def outputs(self, spec: SandboxSpec) -> dict[str, bytes]:
        """Return all that a sandbox has written so far."""
        found = {"stdout": b"", "stderr": b""}
        unpacker, position = Unpacker(), output.BEGINNING
        log = self.layout.sandbox(spec.sandbox_id).log
        while (piece := output.read(log, position)).after != position:
            assert piece.dropped is None
            for part in unpacker.unpack(piece.text):
                found[part.stream] += part.data
            position = piece.after
        return found

    def bury(self, spec: SandboxSpec) -> Evidence:
        """Bury a sandbox."""
        project = spec.quota.project if spec.quota else None
        return teardown.bury(spec.runtime, self.layout, spec.sandbox_id, project)

    def finish(self, spec: SandboxSpec) -> Outcome:
        """Wait for the exit, read the outputs, bury."""
        exit_code = self.wait_exit(spec)
        written = self.outputs(spec)
        return Outcome(exit_code, written["stdout"], written["stderr"], self.bury(spec))

    def run(self, spec: SandboxSpec) -> Outcome:
        """Launch and finish."""
        self.launch(spec)
        return self.finish(spec)

    def leftovers(self) -> list[str]:
        """Name everything of any sandbox that is still there, found without the code under test."""
        layout = self.layout
        mounted = mounts.mounts_below(layout.run_dir)
        found = [f"mount {point}" for point in mounted if point != layout.sandboxes]
        folders = (layout.sandboxes, layout.filestore, f"{layout.run_dir}/runc")
        for folder in (*folders, f"{layout.run_dir}/runsc"):
            found += [f"{folder}/{name}" for name in os.listdir(folder)]
        for hierarchy in (layout.hierarchies.unified, *layout.hierarchies.legacy):
            for part in ("sandboxes", "monitors"):
                folder = f"{hierarchy}/{layout.cgroup_root}/{part}"
                if os.path.isdir(folder):
                    found += [e.path for e in os.scandir(folder) if e.is_dir()]
        ids = {spec.sandbox_id.encode() for spec in self.made}
        for pid, words in command_lines():
            if any(sandbox_id in words for sandbox_id in ids):
                found.append(f"process {pid}: {words!r}")
        return found


def command_lines() -> Iterator[tuple[int, bytes]]:
    """Yield number and command line of every process on the host."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    yield int(name), file.read()
            except (FileNotFoundError, ProcessLookupError):
                continue


def wait_until(holds: Callable[[], bool], limit_s: float = EXIT_LIMIT_S) -> None:
    """Look until *holds* does; fail after *limit_s*."""
    deadline_s = time.monotonic() + limit_s
    pause_s = 0.002
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.1, 0.1)  # to look costs time of what is looked at


def digest_tree(top: str) -> str:
    """Return a hash of everything that a reader of the tree could see changed."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted((*files, *folders, ".")):
            path = os.path.join(folder, name)
            seen = os.lstat(path)
            facts = (path, seen.st_mode, seen.st_uid, seen.st_gid, seen.st_size, seen.st_mtime_ns)
            digest.update(
                repr((*facts, sorted(os.listxattr(path, follow_symlinks=False)))).encode()
            )
            if stat.S_ISLNK(seen.st_mode):
                digest.update(os.readlink(path).encode())
            elif stat.S_ISREG(seen.st_mode):
                with open(path, "rb") as file:
                    digest.update(file.read())
    return digest.hexdigest()


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Yield a lab; see `made_lab`."""
    with made_lab(lambda _: None) as lab:
        yield lab


@contextmanager
def made_lab(before: Callable[[Layout], None]) -> Iterator[Lab]:
    """Yield a lab; afterwards bury what the test left to it, and prove that nothing is left.

    *before* is called before the layout's folders are made.
    """
    base = tempfile.mkdtemp(prefix="axern-test-")
    run_dir = tempfile.mkdtemp(prefix="axern-test-", dir=VOLATILE)
    for folder in (base, run_dir):
        os.chmod(folder, 0o711)  # noqa: S103 - a sandbox's root must reach its folder below it
    layout = Layout(
        state_dir=f"{base}/state",
        run_dir=run_dir,
        filestore=f"{base}/filestore",
        templates=f"{base}/templates",
        cgroup_root=f"axern-test-{os.getpid()}-{secrets.token_hex(4)}",
        hierarchies=cgroup.find_hierarchies(),
    )
    before(layout)
    layout.prepare()
    lab = Lab(layout, template.make_busybox(layout.templates).rootfs)
    try:
        yield lab
    finally:
        for spec in lab.made:
            lab.bury(spec)
        left = lab.leftovers()
        layout.dismantle()
        for folder in (base, run_dir):
            filestore.remove_tree(folder)
    assert left == []


@pytest.fixture(scope="module")
def prepared_lab() -> Iterator[Lab]:
    """Yield a lab whose control groups hold limits, as they do in the machine."""
    with made_lab(lambda _: None) as lab:
        cgroup_tree.prepare(lab.layout.root)
        yield lab


@pytest.fixture
def enforcing_lab(prepared_lab: Lab) -> Iterator[Lab]:
    """Yield the module's lab; afterwards bury what the test left to it, and take its wall down."""
    first = len(prepared_lab.made)
    yield prepared_lab
    for spec in prepared_lab.made[first:]:
        prepared_lab.bury(spec)
    assert prepared_lab.leftovers() == []
    sandboxes = prepared_lab.layout.root.child(cgroup_tree.SANDBOXES)
    cgroup_files.apply(sandboxes, {"memory.max": "max"})


@pytest.fixture(params=["runc", pytest.param("runsc", marks=pytest.mark.long)])
def quick_runtime(request: pytest.FixtureRequest) -> str:
    """Run the test once with runc, in the long form with runsc too, which is slow emulated."""
    return str(request.param)


@pytest.fixture(params=["runc", "runsc"])
def runtime(request: pytest.FixtureRequest) -> str:
    """Run the test once with each runtime."""
    return str(request.param)


def is_active(pattern: str) -> bool:
    """Say whether a process with *pattern* in its command line lives on the host."""
    return any(pattern.encode() in words for _, words in command_lines())


def run_on_host(*argv: str) -> None:
    """Run a program of the host that the test needs."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
