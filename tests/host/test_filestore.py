"""A tree that was made to resist is removed all the same, and nothing beside it is touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from axern.errors import FilestoreError
from axern.host import filestore
from tests.host.conftest import run_on_host

pytestmark = pytest.mark.host

DEPTH = 2_000
FILES = 5_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """Yield a folder to fill; remove it by other means if the test failed to."""
    path = tmp_path / "store"
    path.mkdir()
    yield str(path)
    if path.exists():
        run_on_host("chattr", "-R", "-i", "-a", str(path))
        run_on_host("rm", "-rf", str(path))


def test_depth_costs_neither_descriptors_nor_recursion(store: str) -> None:
    folder_fd = os.open(store, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("d" * 100, dir_fd=folder_fd)
        Path(f"/proc/self/fd/{folder_fd}/file").touch()
        deeper_fd = os.open("d" * 100, os.O_RDONLY, dir_fd=folder_fd)
        os.close(folder_fd)
        folder_fd = deeper_fd
    os.close(folder_fd)
    assert filestore.remove_tree(store)
    assert not os.path.lexists(store)


def test_many_files(store: str) -> None:
    for number in range(FILES):
        os.close(os.open(f"{store}/{number}", os.O_CREAT | os.O_WRONLY))
    assert filestore.remove_tree(store)
    assert not os.path.lexists(store)


def test_links_are_removed_not_followed(store: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    os.makedirs(f"{store}/a/b")
    os.symlink(kept, f"{store}/link")
    os.symlink(kept, f"{store}/a/b/link")
    os.link(kept / "file", f"{store}/a/hard")
    assert filestore.remove_tree(store)
    assert (kept / "file").read_text() == "kept"


def test_a_top_that_is_a_link_is_only_unlinked(store: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(store)
    assert filestore.remove_tree(str(link))
    assert not link.is_symlink()
    assert os.path.isdir(store)


def test_immutable_and_append_only_entries(store: str) -> None:
    os.makedirs(f"{store}/a/b/c")
    for path in (f"{store}/a/file", f"{store}/a/b/file", f"{store}/log"):
        Path(path).touch()
    for flag, path in (("+i", "a/file"), ("+a", "log"), ("+i", "a/b/file"), ("+i", "a/b/c")):
        run_on_host("chattr", flag, f"{store}/{path}")
    for path in (f"{store}/a/b", f"{store}/a", store):
        run_on_host("chattr", "+i", path)
    assert filestore.remove_tree(store)
    assert not os.path.lexists(store)


def test_names_of_an_interrupted_removal_are_no_obstacle(store: str) -> None:
    for number in range(3):
        os.makedirs(f"{store}/axern-removed-{number}/deep/er")
        os.makedirs(f"{store}/tree/{number}/full/full")
    assert filestore.remove_tree(store)
    assert not os.path.lexists(store)


def test_a_mount_inside_stops_the_removal(store: str) -> None:
    os.makedirs(f"{store}/a/mounted")
    run_on_host("mount", "-t", "tmpfs", "none", f"{store}/a/mounted")
    try:
        Path(f"{store}/a/mounted/file").touch()
        with pytest.raises(FilestoreError):
            filestore.remove_tree(store)
        assert _survivor(store)
    finally:
        for folder, _, _ in os.walk(store):
            if os.path.ismount(folder):
                run_on_host("umount", folder)
    assert filestore.remove_tree(store)


def test_a_missing_tree_is_no_error(tmp_path: Path) -> None:
    assert not filestore.remove_tree(str(tmp_path / "nothing"))
    assert not filestore.remove_tree(str(tmp_path / "no" / "parent"))


def _survivor(store: str) -> bool:
    return any("file" in files for _, _, files in os.walk(store))
