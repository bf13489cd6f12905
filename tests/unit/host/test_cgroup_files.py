"""Files of a control group that no limit names: those of huge pages, one pair a size."""

from __future__ import annotations

from pathlib import Path

import pytest

from axern.errors import HostError
from axern.host.cgroup import Cgroup, Hierarchies
from axern.host.cgroup_files import apply, mismatches, without_huge_pages


def test_no_size_of_huge_pages_is_left_open(tmp_path: Path) -> None:
    group = Cgroup(Hierarchies(str(tmp_path), ()), "group")
    with pytest.raises(HostError):
        without_huge_pages(group)
    (tmp_path / "group").mkdir()
    assert without_huge_pages(group) == {}
    shut = {f"hugetlb.{size}{kind}.max" for size in ("2MB", "1GB") for kind in ("", ".rsvd")}
    for name in (*shut, "hugetlb.2MB.current", "hugetlb.2MB.events.local", "memory.max"):
        (tmp_path / "group" / name).touch()
    files = without_huge_pages(group)
    assert files == dict.fromkeys(shut, "0")
    assert len(mismatches(group, files)) == len(shut)
    apply(group, files)
    assert mismatches(group, files) == ()
