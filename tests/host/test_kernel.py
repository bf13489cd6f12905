"""The thin edge to the kernel: control groups, processes, mounts, id maps, watches, commands."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from axern.errors import CgroupError, CommandFailed, CommandTimeout, HostError, RuntimeFailure
from axern.host import cgroup, control_files, idmap, inventory, linux, mounts, process
from axern.host.cgroup import Cgroup
from axern.runtime import command
from ledger.reservation import ProcessIdentity
from tests.host.conftest import run_on_host, wait_until

pytestmark = pytest.mark.host


@pytest.fixture
def group() -> Iterator[Cgroup]:
    """Yield a control group that does not exist yet, and remove it afterwards."""
    name = f"axern-test-{os.getpid()}-{secrets.token_hex(4)}"
    group = Cgroup(cgroup.find_hierarchies(), name)
    yield group
    group.destroy(30)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that sleeps."""
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child
        child.kill()


def test_a_group_is_made_filled_emptied_and_removed(
    group: Cgroup, sleeper: subprocess.Popen[bytes]
) -> None:
    identity = group.child("leaf").create()
    assert group.child("leaf").create() == identity
    assert not group.is_populated()
    group.child("leaf").add(sleeper.pid)
    assert group.pids() == (sleeper.pid,)
    assert group.is_populated()
    assert not group.wait_empty(0.01)
    with pytest.raises(CgroupError):
        cgroup.remove_folder(group.folder, 0.05)
    group.kill()
    assert group.wait_empty(30)
    assert sleeper.wait() == -signal.SIGKILL
    assert group.destroy(30)
    assert not group.destroy(30)
    assert (group.pids(), group.is_populated(), group.wait_empty(1)) == ((), False, True)
    assert group.child("leaf").create() != identity


def test_destroy_kills_whatever_keeps_coming(group: Cgroup) -> None:
    group.create()
    script = f"echo 0 >{group.folder}/cgroup.procs; f() {{ sleep 600 | f & sleep 600; }}; f"
    with subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True) as child:
        wait_until(lambda: len(group.pids()) > 50)
        assert group.destroy(60)
        assert child.wait() == -signal.SIGKILL


def test_a_late_comer_finds_no_group(group: Cgroup) -> None:
    group.create()
    argv = ["/bin/sh", "-c", 'read go; echo 0 >"$0/cgroup.procs" && exec sleep 600', group.folder]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        group.destroy(30)
        child.communicate(b"go\n", timeout=60)
        assert child.returncode != 0


def test_a_control_file_is_never_made(group: Cgroup, tmp_path: Path) -> None:
    group.create()
    with control_files.open_folder(str(tmp_path)) as folder_fd:
        with pytest.raises(HostError) as caught:
            control_files.write_at(folder_fd, "absent", "1")
        assert caught.value.path == str(tmp_path / "absent")
        assert caught.value.data == "1"
        with pytest.raises(HostError):
            control_files.read_at(folder_fd, "absent")
    assert list(tmp_path.iterdir()) == []
    with control_files.open_folder(group.folder) as folder_fd, pytest.raises(HostError) as caught:
        control_files.write_at(folder_fd, cgroup.PROCS, "no number")
    assert "'no number'" in caught.value.message
    assert caught.value.errno is not None
    with pytest.raises(HostError), control_files.open_folder(str(tmp_path / "absent")):
        pass


def test_a_process_is_more_than_its_number(sleeper: subprocess.Popen[bytes]) -> None:
    identity = process.identify(sleeper.pid)
    assert identity is not None
    stranger = ProcessIdentity(identity.boot_id, identity.pid, identity.start_ticks - 1)
    assert process.is_alive(identity)
    assert not process.is_alive(stranger)
    sleeper.send_signal(signal.SIGKILL)
    wait_until(lambda: not process.is_alive(identity))
    assert process.identify(sleeper.pid) is not None  # a zombie keeps its number
    sleeper.wait()
    assert process.identify(sleeper.pid) is None
    assert not process.is_alive(identity)


def test_a_thread_is_no_process() -> None:
    leaving = threading.Event()
    thread = threading.Thread(target=leaving.wait)
    thread.start()
    try:
        number = thread.native_id
        assert number is not None
        assert process.identify(number) is None
        with open(f"/proc/{number}/stat", encoding="utf-8") as file:
            ticks = process.start_ticks_from_text(file.read())
        recorded = ProcessIdentity(process.boot_id(), number, ticks)
        assert not process.is_alive(recorded)
    finally:
        leaving.set()
        thread.join()
    assert process.identify(os.getpid()) is not None


def test_private_mounts_come_and_go(tmp_path: Path) -> None:
    folder = str(tmp_path / "with space")
    os.mkdir(folder)
    mounts.make_private(folder)
    mounts.make_private(folder)
    assert mounts.mounts_below(folder) == (folder,)
    os.mkdir(f"{folder}/inner")
    run_on_host("mount", "-t", "tmpfs", "none", f"{folder}/inner")
    run_on_host("mount", "-t", "tmpfs", "none", f"{folder}/inner")
    assert len(mounts.mounts_below(folder)) == 3
    assert len(mounts.unmount_below(folder, 10)) == 3
    assert mounts.unmount_below(folder, 10) == ()


def test_a_lane_shifts_ids(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from" / "file").touch()
    os.chown(tmp_path / "from" / "file", 3, 4)
    tree_fd = idmap.clone_tree(str(tmp_path / "from"), 17)
    linux.move_mount(tree_fd, str(tmp_path / "to"))
    os.close(tree_fd)
    try:
        seen = os.stat(tmp_path / "to" / "file")
        base = idmap.first_id(17)
        assert (seen.st_uid, seen.st_gid) == (base + 3, base + 4)
        with pytest.raises(OSError, match="Read-only"):
            (tmp_path / "to" / "new").touch()
    finally:
        mounts.unmount_below(str(tmp_path / "to"), 10)


def test_lanes_outnumber_the_remembered_namespaces(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for lane in range(100):
        os.close(idmap.clone_tree(str(tmp_path), lane))
    assert len(os.listdir("/proc/self/fd")) <= before + 64


def test_inotify_tells_of_a_moved_file(tmp_path: Path) -> None:
    watcher = linux.inotify_init()
    try:
        watch = linux.inotify_add_watch(watcher, str(tmp_path), linux.IN_MOVED_TO)
        assert list(linux.inotify_read(watcher)) == []
        (tmp_path / ".half").touch()
        (tmp_path / ".half").rename(tmp_path / "whole")
        assert list(linux.inotify_read(watcher)) == [
            linux.InotifyEvent(watch, linux.IN_MOVED_TO, "whole")
        ]
        linux.inotify_rm_watch(watcher, watch)
        linux.inotify_rm_watch(watcher, watch)
    finally:
        os.close(watcher)


def test_openat2_stays_in_the_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("ours")
    (tmp_path / "link").symlink_to("/etc/passwd")
    root_fd = os.open(tmp_path, os.O_PATH)
    try:
        fd = linux.openat2(root_fd, "link", os.O_RDONLY, resolve=linux.RESOLVE_IN_ROOT)
        assert os.read(fd, 10) == b"ours"
        os.close(fd)
        with pytest.raises(OSError, match="link"):
            linux.openat2(root_fd, "link", os.O_RDONLY, resolve=linux.RESOLVE_NO_SYMLINKS)
        with pytest.raises(OSError, match=r"\.\."):
            linux.openat2(root_fd, "..", os.O_PATH, resolve=linux.RESOLVE_BENEATH)
    finally:
        os.close(root_fd)


def test_a_command_is_bounded_in_everything(tmp_path: Path) -> None:
    flood = command.run((sys.executable, "-c", "print('x' * 10_000_000)"))
    assert len(flood.stdout) == command.OUTPUT_LIMIT_BYTES
    seen = command.run(("/usr/bin/env",)).stdout.splitlines()
    assert {line.partition("=")[0] for line in seen} == set(command.ENVIRONMENT)
    began_s = time.monotonic()
    with pytest.raises(CommandTimeout):
        command.run(("/bin/sh", "-c", "sleep 600 & sleep 600"), timeout_s=0.2)
    assert time.monotonic() - began_s < 30
    with pytest.raises(CommandFailed) as caught:
        command.run(("/bin/sh", "-c", "echo out; echo why >&2; exit 3"))
    assert (caught.value.exit_code, caught.value.stderr) == (3, "why\n")
    with pytest.raises(RuntimeFailure):
        command.run((str(tmp_path / "absent"),))


def test_commands_inherit_no_descriptor() -> None:
    held_fd = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(held_fd, True)
    try:
        listed = command.run(("/bin/ls", "/proc/self/fd")).stdout.split()
    finally:
        os.close(held_fd)
    assert listed == ["0", "1", "2", "3"]


def test_commands_run_side_by_side() -> None:
    threads = [
        threading.Thread(target=command.run, args=(("/bin/sh", "-c", "echo x"),)) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_the_inventory_is_plausible(tmp_path: Path) -> None:
    capacity = inventory.observe_capacity(str(tmp_path))
    assert capacity.cpu_milli == len(os.sched_getaffinity(0)) * 1000
    free_bytes = inventory.filestore_free_bytes(str(tmp_path))
    assert 0 < free_bytes <= capacity.filestore_total_bytes
    assert capacity.memory_bytes > 0
    with pytest.raises(HostError):
        inventory.observe_capacity(str(tmp_path / "absent"))
    first, second = inventory.read_clocks(), inventory.read_clocks()
    assert first.boot_id == second.boot_id == process.boot_id()
    assert first.monotonic_ms <= second.monotonic_ms
    assert first.boottime_ms >= first.monotonic_ms
    assert abs(first.realtime_ms / 1000 - time.time()) < 60
    runc = inventory.find_program("runc", "/usr/bin/runc")
    assert runc is not None
    assert runc.version[0].isdigit()
    assert inventory.find_program("runc", str(tmp_path / "runc")) is None
