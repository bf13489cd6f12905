"""The run store: whole or absent, for root's eyes only, and never through a link."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from axern.daemon.runs import RunSpec, RunStore
from axern.runtime.record import RunExit
from ledger.errors import CommitFailed

ID = "0123456789abcdef" * 2
OTHER_ID = "fedcba9876543210" * 2


def spec_of(run_id: str = ID, **fields: Any) -> RunSpec:
    """Return a spec with something in each field."""
    spec = RunSpec(
        id=run_id,
        namespace="default",
        uid=1000,
        command=("sh", "-c", "echo 'é😀\n'"),
        env={"TOKEN": "canary"},
        cwd="/",
        rootfs="/srv/rootfs",
        rootfs_readonly=False,
        runtime_class="runc",
        requests={"cpu_milli": 10, "memory_bytes": None},
        limits={},
        enforced=False,
        created_wall_ms=1_700_000_000_000,
        template="busybox",
    )
    return msgspec.structs.replace(spec, **fields)


EXIT = RunExit("failed", 7, 7, 1_700_000_001_000, 1_700_000_000_500, "process-exited", "é")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(str(tmp_path))


def test_what_is_saved_is_read_back(store: RunStore) -> None:
    store.save_spec(spec_of())
    assert (store.spec(ID), store.exit(ID), store.has_ended(ID)) == (spec_of(), None, False)
    store.save_exit(ID, EXIT)
    assert (store.spec(ID), store.exit(ID), store.has_ended(ID)) == (spec_of(), EXIT, True)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_only_root_may_look(store: RunStore, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        store.save_spec(spec_of())
        store.save_exit(ID, EXIT)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / ID).stat().st_mode) == 0o700
    for name in ("spec.json", "exit.json"):
        assert stat.S_IMODE((tmp_path / ID / name).stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path / ID)) == ["exit.json", "spec.json"]


def test_file_and_folders_are_flushed_before_the_record_counts(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        calls.append(f"fsync {target.removeprefix(store.root)}")
        real_fsync(descriptor)

    def rename(source: str, target: str) -> None:
        calls.append(f"rename {target.removeprefix(store.root)}")
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    store.save_spec(spec_of())
    assert calls == [
        f"fsync /{ID}/spec.json.new",
        f"rename /{ID}/spec.json",
        f"fsync /{ID}",
        "fsync ",
    ]


def test_the_first_exit_record_stays(store: RunStore) -> None:
    store.save_spec(spec_of())
    store.save_exit(ID, EXIT)
    store.save_exit(ID, RunExit("succeeded", 0, 0, 5))
    assert store.exit(ID) == EXIT


def test_a_half_written_record_of_a_crash_is_in_nobodys_way(store: RunStore) -> None:
    store.save_spec(spec_of())
    with open(f"{store.root}/{ID}/exit.json.new", "wb") as file:
        file.write(b'{"status": "fai')
    assert store.exit(ID) is None
    store.save_exit(ID, EXIT)
    assert store.exit(ID) == EXIT


def test_what_an_earlier_version_stored_is_read(store: RunStore) -> None:
    os.mkdir(f"{store.root}/{ID}")
    early = (
        b'{"id":"0123456789abcdef0123456789abcdef","namespace":"default","uid":1000,'
        b'"command":["true"],"env":{},"cwd":"/","rootfs":"/srv/rootfs","rootfs_readonly":false,'
        b'"runtime_class":"runc","requests":{"cpu_milli":10,"memory_bytes":null},"limits":{},'
        b'"enforced":false,"created_wall_ms":1700000000000,"template":"busybox"}'
    )
    with open(f"{store.root}/{ID}/spec.json", "wb") as file:
        file.write(early)
    spec = store.spec(ID)
    assert spec is not None
    assert (spec.labels, spec.user, spec.timeout_ms, spec.ttl_ms) == ({}, None, None, None)


def test_without_its_root_nothing_can_be_saved(store: RunStore) -> None:
    with pytest.raises(CommitFailed):
        RunStore(f"{store.root}/absent").save_spec(spec_of())


def test_a_disk_that_refuses_leaves_nothing(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CommitFailed, match="No space left"):
        store.save_spec(spec_of())
    assert os.listdir(store.root) == []


@pytest.mark.parametrize("name", ["spec.json", "exit.json"])
def test_a_link_is_not_followed(store: RunStore, tmp_path: Path, name: str) -> None:
    store.save_spec(spec_of())
    store.save_exit(ID, EXIT)
    path = tmp_path / ID / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert (store.spec(ID) if name == "spec.json" else store.exit(ID)) is None
    store.save_exit(ID, EXIT)
    assert (tmp_path / "elsewhere").is_file()


def test_what_is_no_file_is_no_record(store: RunStore, tmp_path: Path) -> None:
    store.save_spec(spec_of())
    path = tmp_path / ID / "exit.json"
    path.mkdir()
    assert store.exit(ID) is None
    path.rmdir()
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    try:
        assert store.exit(ID) is None
    finally:
        os.close(writer)


def test_writing_goes_through_no_link(store: RunStore, tmp_path: Path) -> None:
    store.save_spec(spec_of())
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ID / "exit.json.new").symlink_to(victim)
    store.save_exit(ID, EXIT)
    assert victim.read_text() == "mine"
    assert store.exit(ID) == EXIT


def test_a_linked_folder_is_no_run(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ID).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "file").write_text("x")
    assert list(RunStore(f"{tmp_path}/runs").names()) == []


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"id": 1}', b"\xff", b'{"status": "failed", "more": 1}']
)
def test_a_damaged_record_is_no_record_and_heals(store: RunStore, data: bytes) -> None:
    store.save_spec(spec_of())
    for name in ("spec.json", "exit.json"):
        with open(f"{store.root}/{ID}/{name}", "wb") as file:
            file.write(data)
    assert (store.spec(ID), store.exit(ID), store.has_ended(ID)) == (None, None, True)
    store.save_exit(ID, EXIT)
    assert store.exit(ID) == EXIT


def test_an_exit_without_its_folder_is_kept_all_the_same(store: RunStore, tmp_path: Path) -> None:
    store.save_exit(ID, EXIT)
    assert store.exit(ID) == EXIT
    assert stat.S_IMODE((tmp_path / ID).stat().st_mode) == 0o700


def test_a_prefix_is_looked_up_by_names_alone(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in (ID, OTHER_ID):
        store.save_spec(spec_of(run_id))
    monkeypatch.setattr(os, "scandir", None)
    assert store.ids_with(ID[:4]) == [ID]
    assert store.ids_with("abcd") == []


def test_discarding_what_is_not_there_is_fine(store: RunStore) -> None:
    store.discard(ID)
    store.save_spec(spec_of())
    store.discard(ID)
    assert (store.spec(ID), list(store.names())) == (None, [])


def test_listing_beside_discarding_never_fails(store: RunStore) -> None:
    done = threading.Event()

    def churn() -> None:
        number = 0
        while not done.is_set():
            number = (number + 1) % 50
            os.makedirs(f"{store.root}/{number:032x}", exist_ok=True)
            store.discard(f"{(number + 25) % 50:032x}")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(3_000):
            list(store.names())
    finally:
        done.set()
        thread.join()
