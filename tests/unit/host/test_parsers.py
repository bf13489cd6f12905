"""Texts of the kernel are read as the kernel writes them, awkward names included."""

from __future__ import annotations

import pytest

from axern.errors import CapabilityMissing
from axern.host.cgroup import hierarchies_from_text, populated_from_text
from axern.host.idmap import IDS_PER_LANE, LANES, first_id
from axern.host.inventory import version_from_text
from axern.host.mounts import mounts_from_text
from axern.host.process import start_ticks_from_text

HYBRID = """\
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 31 0:30 / /sys/fs/cgroup/unified rw,relatime shared:9 master:2 - cgroup2 cgroup2 rw
34 31 0:29 /inner /srv/inner rw,relatime - cgroup cgroup rw,memory
35 31 0:30 /inner /srv/unified rw,relatime - cgroup2 cgroup2 rw
"""
PURE = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNTS = r"""
40 27 0:40 / /run/axern/sandboxes rw - ext4 /dev/vda rw
41 40 0:41 / /run/axern/sandboxes/a/rootfs rw - overlay overlay rw,lowerdir=/a
42 40 0:42 / /run/axern/sandboxes-other rw - tmpfs none rw
43 40 0:43 / /run/axern/sandboxes/with\040space\134 rw - tmpfs none rw
44 41 0:44 / /run/axern/sandboxes/a/rootfs rw - overlay overlay rw
""".lstrip()


def test_hybrid_hosts_have_both_versions() -> None:
    found = hierarchies_from_text(HYBRID)
    assert found.unified == "/sys/fs/cgroup/unified"
    assert found.legacy == ("/sys/fs/cgroup/memory",)


def test_pure_hosts_have_version_2_alone() -> None:
    found = hierarchies_from_text(PURE)
    assert (found.unified, found.legacy) == ("/sys/fs/cgroup", ())


def test_a_host_without_version_2_is_refused() -> None:
    with pytest.raises(CapabilityMissing) as caught:
        hierarchies_from_text(HYBRID.splitlines()[0])
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("events", "populated"),
    [
        ("populated 1\nfrozen 0\n", True),
        ("populated 0\nfrozen 1\n", False),
        ("frozen 1\npopulated 1\n", True),
        ("", False),
    ],
)
def test_populated(events: str, *, populated: bool) -> None:
    assert populated_from_text(events) is populated


def test_mounts_of_a_folder_and_not_of_its_neighbour() -> None:
    assert mounts_from_text(MOUNTS, "/run/axern/sandboxes") == (
        "/run/axern/sandboxes",
        "/run/axern/sandboxes/a/rootfs",
        "/run/axern/sandboxes/with space\\",
        "/run/axern/sandboxes/a/rootfs",
    )
    assert mounts_from_text(MOUNTS, "/run/axern/sandboxes/b") == ()


@pytest.mark.parametrize("name", ["cat", "a b", ") R 1 2 (", "((()))"])
def test_start_ticks_survive_any_program_name(name: str) -> None:
    fields = " ".join(str(number) for number in range(4, 53))
    assert start_ticks_from_text(f"4711 ({name}) S {fields}\n") == 22


def test_lanes_are_ranges_that_do_not_touch() -> None:
    assert first_id(0) == 0x70000000
    assert first_id(1) - first_id(0) == IDS_PER_LANE
    assert first_id(LANES - 1) + IDS_PER_LANE == 2**31
    for lane in (-1, LANES):
        with pytest.raises(ValueError, match="lane"):
            first_id(lane)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("runc version 1.1.5+ds1\ncommit: x\n", "1.1.5+ds1"),
        ("runsc version 0.0~20221219.0\nspec: 1.0.2-dev\n", "0.0~20221219.0"),
        ("", ""),
    ],
)
def test_version(text: str, version: str) -> None:
    assert version_from_text(text) == version
