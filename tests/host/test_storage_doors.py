"""No door leads out of a project: what a workload does to project ids changes none of them.

Where the kernel has project quotas the limit is then filled, too, and the host counts what it has.
"""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from axern.host import inventory, project_quota
from axern.runtime import storage
from tests.conftest import LONG
from tests.host import syscalls
from tests.host.conftest import Lab, wait_until
from tests.host.filestores import MIB, is_real, xfs_lab
from tests.host.syscalls import Buffer, Program

pytestmark = pytest.mark.host

PROJECT = storage.FIRST_PROJECT + 99
LIMIT_BYTES = 10 * MIB
CHUNK_BYTES = 256 * 1024
CHUNKS = 3 * LIMIT_BYTES // CHUNK_BYTES
FILE_ATTR = struct.Struct("=QIIII")
"""struct file_attr of include/uapi/linux/fs.h: xflags, extsize, nextents, projid, cowextsize."""
FSXATTR = struct.Struct("=5I8x")
GETFLAGS, SETFLAGS = 0x80086601, 0x40086602
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
CAPABILITY_VERSION_3 = 0x20080522
WHO = ("root", "root without capabilities", "uid 1000")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with xfs_lab() as lab:
        root = f"{lab.layout.templates}/doors"
        shutil.copytree(lab.rootfs, root, symlinks=True)
        os.mkdir(f"{root}/work")
        os.chmod(f"{root}/work", 0o1777)  # noqa: S103 - as /tmp, for uid 1000
        lab.rootfs = root
        yield lab


@dataclass(slots=True)
class Doors:
    """A program that tries every door on a folder and a file of its own, then writes."""

    program: Program
    attempts: dict[str, int]
    written: list[int]

    def install(self, root: str) -> None:
        path = Path(root, "doors")
        path.write_bytes(self.program.elf())
        path.chmod(0o755)


def doors(top: str, *, give_up: bool = False, chunks: int = 0) -> Doors:
    """Return the program; with *give_up* it first drops all its capabilities."""
    program = Program()
    folder, file = program.text(f"{top}/folder"), program.text(f"{top}/folder/file")
    if give_up:
        header = program.buffer(struct.pack("=Ii", CAPABILITY_VERSION_3, 0))
        program.call(syscalls.CAPSET, header, program.buffer(bytes(24)))
    program.call(syscalls.MKDIR, folder, 0o755)
    program.call(syscalls.OPEN, folder, os.O_RDONLY | os.O_DIRECTORY)
    program.call(syscalls.OPEN, file, os.O_RDWR | os.O_CREAT, 0o644)
    attempts: dict[str, int] = {}
    for name, fd, path in (("folder", 3, folder), ("file", 4, file)):
        attempts |= {
            f"{name}: {door}": place for door, place in _attempts(program, fd, path).items()
        }
    written = [_write(program, 4, chunks)] if chunks else []
    for number in range(3 if chunks else 0):
        more = program.text(f"{top}/folder/more{number}")
        program.call(syscalls.OPEN, more, os.O_RDWR | os.O_CREAT, 0o644)
        written.append(_write(program, 5 + number, chunks))
    return Doors(program, attempts, written)


def _attempts(program: Program, fd: int, path: Buffer) -> dict[str, int]:
    call, nothing = program.call, program.buffer
    return {
        "FSSETXATTR": call(
            syscalls.IOCTL, fd, project_quota.FS_IOC_FSSETXATTR, nothing(bytes(FSXATTR.size))
        ),
        "FSSETXATTR to another": call(
            syscalls.IOCTL,
            fd,
            project_quota.FS_IOC_FSSETXATTR,
            nothing(FSXATTR.pack(project_quota.FS_XFLAG_PROJINHERIT, 0, 0, 77, 0)),
        ),
        "SETFLAGS": call(syscalls.IOCTL, fd, SETFLAGS, nothing(bytes(8))),
        "file_setattr": call(
            syscalls.FILE_SETATTR, AT_FDCWD, path, nothing(bytes(FILE_ATTR.size)), 24, 0
        ),
        "file_setattr by descriptor": call(
            syscalls.FILE_SETATTR, fd, program.text(""), nothing(bytes(24)), 24, AT_EMPTY_PATH
        ),
    }


def _write(program: Program, fd: int, chunks: int) -> int:
    data = program.buffer(bytes(CHUNK_BYTES))
    return [program.call(syscalls.WRITE, fd, data, CHUNK_BYTES) for _ in range(chunks)][-1]


def astray(store: str, project: int) -> list[str]:
    """Name everything below *store* that is not in *project*, or hands it on to nothing."""
    found = []
    for folder, folders, files in os.walk(store):
        for name in (".", *folders, *files):
            path = os.path.join(folder, name)
            if os.path.islink(path) or not (os.path.isdir(path) or os.path.isfile(path)):
                continue
            if project_quota.project_of(path) != project:
                found.append(path)
            elif os.path.isdir(path) and not project_quota.inherits(path):
                found.append(f"{path} (hands nothing on)")
    return found


@pytest.mark.parametrize("who", WHO)
def test_no_door_leads_out_of_the_project(lab: Lab, runtime: str, who: str) -> None:
    try_doors(lab, runtime, who, chunks=0)


@pytest.mark.machine
@pytest.mark.parametrize(
    ("runtime", "who"),
    [*itertools.product(("runc", "runsc"), WHO)] if LONG else [("runsc", "root"), ("runc", "root")],
)
def test_nor_past_the_limit_of_one(lab: Lab, runtime: str, who: str) -> None:
    assert is_real()
    try_doors(lab, runtime, who, chunks=CHUNKS)


def try_doors(lab: Lab, runtime: str, who: str, chunks: int) -> None:
    tried = doors("/work", give_up=who == WHO[1], chunks=chunks)
    tried.install(lab.rootfs)
    user = "1000:1000" if who == WHO[2] else None
    # It stays, so that what it has written can be counted: of runsc's it goes with the sandbox.
    script = "/doors; echo done >&2; sleep 1000"
    spec = lab.spec(runtime, "sh", "-c", script, user=user, limit_bytes=LIMIT_BYTES)
    free_bytes = inventory.filestore_free_bytes(lab.layout.filestore)
    lab.launch(spec)
    wait_until(lambda: lab.outputs(spec)["stderr"] == b"done\n")
    results = tried.program.results(lab.outputs(spec)["stdout"])
    first = min(tried.attempts.values())
    assert min(results.values[:first]) >= 0, "it must have something to try the doors on"
    project = storage.project_id(spec.lane)
    assert astray(lab.layout.sandbox(spec.sandbox_id).store, project) == []
    refused = {name: results.error(place) for name, place in tried.attempts.items()}
    # Of a file, which hands nothing on, some of them ask for nothing that it is not already.
    assert all(error for name, error in refused.items() if name.startswith("folder")), refused
    if chunks:
        assert results.error(tried.written[0]) in {"ENOSPC", "EDQUOT"}
        # Nor does another file help: it can't even be made, or not be written.
        assert all(results.values[place] < 0 for place in tried.written)
        taken = free_bytes - inventory.filestore_free_bytes(lab.layout.filestore)
        found = project_quota.read(lab.layout.filestore, project)
        assert found is not None
        assert abs(found.used_bytes - LIMIT_BYTES) <= MIB
        assert taken <= LIMIT_BYTES + MIB
    lab.bury(spec)


def test_control_as_root_of_the_host_the_doors_are_open(lab: Lab) -> None:
    """The same program without a user namespace leaves, and the check of this file sees it."""
    folder = f"{lab.layout.filestore}/control"
    os.mkdir(folder)
    try:
        project_quota.set_project(folder, PROJECT)
        shutil.copytree(lab.rootfs, f"{folder}/root", symlinks=True)
        assert astray(folder, PROJECT) == []
        tried = doors("/work")
        tried.install(f"{folder}/root")
        argv = ["chroot", f"{folder}/root", "/doors"]
        done = subprocess.run(argv, capture_output=True, check=True, stdin=subprocess.DEVNULL)
        results = tried.program.results(done.stdout)
        assert results.error(tried.attempts["folder: FSSETXATTR"]) is None
        assert {f"{folder}/root/work/folder/.", f"{folder}/root/work/folder/file"} <= set(
            astray(folder, PROJECT)
        )
    finally:
        shutil.rmtree(folder)
