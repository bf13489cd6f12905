"""Versions and the holes that they have upstream."""

import pytest

from axern.runtime.known_cves import HOLES, open_in, ordered

IN_ORDER = [
    "1.0.0-rc7",
    "1.0.0-rc95",
    "1.0.0",
    "1.1.5+ds1",
    "1.1.15~rc1+b2",
    "1.2.0-rc.3",
    "1.10.0",
]
LATE_2025 = {"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}


def test_versions_sort_as_they_were_released() -> None:
    assert sorted(IN_ORDER, key=ordered) == IN_ORDER
    assert ordered("0.0~20221219.0") == ordered("release-20221219.0") == (20221219,)


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("1.1.5+ds1", LATE_2025 | {"CVE-2024-21626", "CVE-2024-45310", "CVE-2026-41579"}),
        ("1.1.15+ds1", LATE_2025 | {"CVE-2026-41579"}),
        ("1.2.7", LATE_2025 | {"CVE-2026-41579"}),
        ("1.2.8", {"CVE-2026-41579"}),
        ("1.3.2", LATE_2025 | {"CVE-2026-41579"}),
        ("1.3.6", set()),
        ("1.4.0-rc.2", LATE_2025 | {"CVE-2026-41579"}),
        ("1.4.3", set()),
        ("2.0.0", set()),
    ],
)
def test_runc(version: str, names: set[str]) -> None:
    assert {hole.name for hole in open_in("runc", version)} == names


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.0~20221219.0", {"CVE-2025-2713", "CVE-2026-96812"}),
        ("release-20250319.0", {"CVE-2026-96812"}),
        ("release-20261012.0", set()),
    ],
)
def test_runsc(version: str, names: set[str]) -> None:
    assert {hole.name for hole in open_in("runsc", version)} == names


def test_a_version_that_says_nothing_has_all_of_them() -> None:
    for runtime in ("runc", "runsc"):
        assert open_in(runtime, "unknown") == tuple(h for h in HOLES if h.runtime == runtime)


def test_each_hole_has_a_source_and_versions_that_can_be_read() -> None:
    for hole in HOLES:
        assert hole.source
        assert all(ordered(version) for version in (*hole.fixed_in, hole.since))
