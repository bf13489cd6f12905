"""One writer: the second opener is told who holds the ledger, and a lock ends with its process."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from ledger import lock, remembered, store
from ledger.errors import FileSystemRefused, LedgerBusy, LedgerCorrupt, NotFound, PermissionDenied
from ledger.store import Ledger
from ledger.testing import ManualClock
from tests.faults import lives

HOLDING = """
import sys, time
from ledger.store import Ledger
from ledger.testing import ManualClock
ledger = Ledger.open(sys.argv[1], ManualClock()(), holder="a test", node_id="node-a")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def test_the_second_opener_is_told_who_holds_it(directory: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(directory)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LedgerBusy, match=rf"a test \(pid {holder.pid}, since 2023-11-14T"):
            Ledger.open(directory, ManualClock()(), lock_timeout_s=0)
        os.kill(holder.pid, signal.SIGSTOP)  # one that hangs still holds it
        with pytest.raises(LedgerBusy, match=f"pid {holder.pid}"):
            Ledger.open(directory, ManualClock()(), lock_timeout_s=0.1)
        holder.kill()
    lives.open_ledger(str(directory), ManualClock()).close()


def test_two_openers_in_one_process(directory: Path) -> None:
    clock = ManualClock()
    with lives.open_ledger(str(directory), clock):
        with pytest.raises(LedgerBusy, match=f"axernd \\(pid {os.getpid()},"):
            Ledger.open(directory, clock(), lock_timeout_s=0)
        assert (directory / "ledger.holder").exists()
    assert not (directory / "ledger.holder").exists()
    assert (directory / "ledger.lock").exists()
    lives.open_ledger(str(directory), clock).close()


def test_control_without_the_lock_two_writers_spoil_each_other(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoLock(filelock.FileLock):
        def acquire(self, *args: object, **kwargs: object) -> None:  # type: ignore[override]
            """Hold nothing."""

    monkeypatch.setattr(filelock, "FileLock", NoLock)
    monkeypatch.setattr(lock, "_lock_folder", lambda _: True)
    directory.mkdir()
    (directory / "ledger.lock").touch()
    clock = ManualClock()
    first = lives.open_ledger(str(directory), clock)
    second = lives.open_ledger(str(directory), clock)
    lives.observe(first, clock)
    lives.observe(second, clock)
    lives.reserve(first, clock, 1, lives.silent)
    second.close(checkpoint=False)
    first.close(checkpoint=False)
    with lives.open_ledger(str(directory), clock) as ledger:
        assert ledger.generation == 2  # three commits were answered


def test_modes_do_not_depend_on_the_umask(directory: Path) -> None:
    before = os.umask(0o077)
    try:
        with lives.open_ledger(str(directory), ManualClock()) as ledger:
            lives.observe(ledger, ManualClock())
            ledger.checkpoint()
            modes = {path.name: path.stat().st_mode & 0o7777 for path in directory.iterdir()}
    finally:
        os.umask(before)
    assert directory.stat().st_mode & 0o7777 == 0o750
    assert modes.pop("archive") == 0o750
    assert set(modes.values()) == {0o640}, modes


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "9p", "cifs", "unknown"])
def test_a_file_system_that_is_not_on_the_list_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("ledger.files.file_system_of", lambda _: kind)
    with pytest.raises(FileSystemRefused, match=kind):
        Ledger.open(directory, ManualClock()())


def test_nothing_is_made_unless_asked(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Ledger.open(directory, ManualClock()(), create=False)
    assert not directory.exists()
    directory.mkdir()
    with pytest.raises(NotFound):
        Ledger.open(directory, ManualClock()(), create=False)
    with pytest.raises(NotFound):
        Ledger.open(tmp_path / "no" / "ledger", ManualClock()())


def test_another_node_s_ledger_is_refused(directory: Path) -> None:
    lives.open_ledger(str(directory), ManualClock()).close()
    with pytest.raises(LedgerCorrupt, match="of node node-a, but this node says node-b"):
        Ledger.open(directory, ManualClock()(), node_id="node-b")
    assert Ledger.open(directory, ManualClock()()).node_id == "node-a"


def test_an_older_ledger_than_this_boot_has_seen_is_refused(directory: Path) -> None:
    clock = ManualClock()
    with lives.open_ledger(str(directory), clock) as ledger:
        lives.observe(ledger, clock)
    Ledger.open(directory, clock(), least_generation=1).close()
    with pytest.raises(LedgerCorrupt, match="generation 1, but this boot has seen 2"):
        Ledger.open(directory, clock(), least_generation=2)


def remembering(directory: Path, clock: ManualClock, node_id: str | None = "node-a") -> Ledger:
    """Open a ledger that this boot remembers beside it."""
    return Ledger.open(directory, clock(), node_id=node_id, remember_in=str(directory.parent))


@pytest.mark.parametrize("node_id", ["node-a", "a/b ü"])
def test_a_backup_put_back_is_noticed_in_the_same_boot(directory: Path, node_id: str) -> None:
    clock = ManualClock()
    with remembering(directory, clock, node_id) as ledger:
        lives.observe(ledger, clock)
    backup = directory.with_name("backup")
    shutil.copytree(directory, backup)
    with remembering(directory, clock, None) as ledger:  # whoever writes, a daemon or not
        lives.reserve(ledger, clock, 1, lives.silent)
    newest = directory.with_name("newest")
    directory.rename(newest)
    shutil.copytree(backup, directory)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match="at generation 1, but this boot has seen 2"):
            remembering(directory, clock, node_id)
    after = {path: path.read_bytes() for path in directory.iterdir()}
    assert {path: data for path, data in after.items() if path.name != "ledger.holder"} == before
    shutil.rmtree(directory)
    newest.rename(directory)
    remembering(directory, clock, node_id).close()
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    clock.reboot()
    remembering(directory, clock, node_id).close()


def test_a_ledger_that_is_gone_is_not_born_again_in_the_same_boot(directory: Path) -> None:
    clock = ManualClock()
    with remembering(directory, clock) as ledger:
        lives.observe(ledger, clock)
    shutil.rmtree(directory)
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match="is gone, but this boot has seen 1"):
            remembering(directory, clock)
        assert {path.name for path in directory.iterdir()} <= {"ledger.lock", "ledger.holder"}
    remembered.forget(str(directory.parent), "node-a")
    remembered.forget(str(directory.parent), "node-a")
    remembering(directory, clock).close()


@pytest.mark.parametrize("note", ["", "7\n", "x" * 300, "00000000000000000007 boot-2\n"])
def test_what_another_boot_or_hand_has_noted_counts_for_nothing(directory: Path, note: str) -> None:
    path = Path(remembered.path_of(str(directory.parent), "node-a"))
    path.write_text(note, encoding="utf-8")
    with remembering(directory, ManualClock()):
        assert path.read_text(encoding="utf-8") == "00000000000000000000 boot-1\n"
        assert path.stat().st_mode & 0o7777 == 0o644


def test_commits_go_on_where_nothing_can_be_remembered(directory: Path) -> None:
    clock = ManualClock()
    with Ledger.open(directory, clock(), remember_in="/nowhere") as ledger:
        lives.observe(ledger, clock)


def test_a_failed_opening_lets_go_of_the_lock(directory: Path) -> None:
    clock = ManualClock()
    lives.open_ledger(str(directory), clock).close()
    (directory / "ledger.json").write_bytes(b"{}")
    for _ in range(2):
        with pytest.raises(LedgerCorrupt):
            Ledger.open(directory, clock(), lock_timeout_s=0)


def test_permission_denied_says_who_may(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(store, "Folder", refuse)
    with pytest.raises(PermissionDenied, match="can't be read"):
        Ledger.open(directory, ManualClock()())


@pytest.mark.parametrize("spare", range(4))
def test_who_has_no_descriptor_left_is_told_so(directory: Path, spare: int) -> None:
    """However far the opening comes: the ledger is not called damaged, and opens afterwards."""
    lives.open_ledger(str(directory), ManualClock()).close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    plugs = [os.dup(0)]
    while plugs[-1] <= highest:  # no gap is left below it
        plugs.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (plugs[-1] + 1 + spare, hard))
    try:
        with pytest.raises(LedgerBusy, match="Too many open files") as caught:
            lives.open_ledger(str(directory), ManualClock())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in plugs:
            os.close(descriptor)
    assert "ulimit -n" in str(caught.value.hint)
    assert caught.value.retry_after_s == 1
    lives.open_ledger(str(directory), ManualClock()).close()
