"""A filestore's file that can't be mounted says why, by whose fault, and leaves no loop device."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest

from axern.errors import CapabilityMissing, FilestoreError
from axern.host import loop_file, project_quota

pytestmark = pytest.mark.host


@pytest.mark.parametrize(
    ("lacks", "error", "words"),
    [(True, CapabilityMissing, "the kernel can't"), (False, FilestoreError, "cannot mount")],
)
def test_a_file_that_is_no_file_system_is_not_the_kernels_fault(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
    words: str,
    *,
    lacks: bool,
) -> None:
    monkeypatch.setattr(project_quota, "kernel_lacks_quotas", lambda: lacks)
    image, folder = tmp_path / "image", tmp_path / "folder"
    image.write_bytes(bytes(1024**2))
    folder.mkdir()
    with pytest.raises(error, match=words):
        loop_file.mount(str(image), str(folder))
    behind = (Path(name).read_text() for name in glob.glob("/sys/block/loop*/loop/backing_file"))
    assert not [name for name in behind if name.startswith(str(tmp_path))]
