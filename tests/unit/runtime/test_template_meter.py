"""The limits of an import: each ends it with its numbers, and progress is told now and then."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from axern.errors import HostFull, TemplateRefused
from axern.runtime.template_meter import REPORT_EVERY_S, Limits, Meter
from axern.runtime.template_tree import shown

ROOMY = Limits(max_bytes=1000, max_entries=10, reserve_bytes=0, timeout_s=60)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def meter(
    folder: Path, limits: Limits = ROOMY
) -> tuple[Meter, Clock, list[tuple[object, object, object]]]:
    told: list[tuple[object, object, object]] = []
    clock = Clock()
    made = Meter(
        str(folder),
        limits,
        lambda step: told.append((step["step"], step["entries"], step["bytes"])),
        clock,
    )
    return made, clock, told


def test_progress_is_told_at_once_and_then_now_and_then(tmp_path: Path) -> None:
    made, clock, told = meter(tmp_path)
    made.begin("copy")
    for _ in range(5):
        made.add(entries=1, written_bytes=10)
    assert told == [("copy", 0, 0)]
    clock.now_s += REPORT_EVERY_S
    made.add(entries=1)
    assert told[1:] == [("copy", 6, 50)]
    made.begin("check")
    assert told[2:] == [("check", 0, 0)]


def test_the_last_that_fits_fits(tmp_path: Path) -> None:
    made, _, _ = meter(tmp_path)
    made.add(entries=10, written_bytes=1000)
    with pytest.raises(TemplateRefused, match=r"more than 10 entries \(template_max_entries\)"):
        made.add(entries=1)
    other, _, _ = meter(tmp_path)
    with pytest.raises(TemplateRefused, match=r"more than 1000B \(template_max\)"):
        other.add(written_bytes=1001)


def test_time_and_disk_end_it_too(tmp_path: Path) -> None:
    made, clock, _ = meter(tmp_path)
    made.look()
    clock.now_s += 61
    with pytest.raises(TemplateRefused, match=r"longer than 60 s \(template_timeout\)"):
        made.look()
    full, _, _ = meter(tmp_path, Limits(1000, 10, 2**62, 60))
    with pytest.raises(HostFull, match=r"must stay free \(system_reserve_storage\)"):
        full.look()


def test_what_another_program_writes_is_counted(tmp_path: Path) -> None:
    made, clock, _ = meter(tmp_path, dataclasses.replace(ROOMY, max_bytes=2**30))
    made.watch(str(tmp_path / "not there yet"))
    assert made.entries == 0
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("/usr")
    clock.now_s += 1
    made.watch(str(tmp_path))
    assert made.entries == 4
    for number in range(10):
        (inner / str(number)).touch()
    made.watch(str(tmp_path))  # too early to count again
    clock.now_s += 1
    with pytest.raises(TemplateRefused, match="more than 10 entries"):
        made.watch(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("plain/é", "plain/é"),
        ("a\nb\x1b[31m", r"a\nb\x1b[31m"),
        ("\udcff\u202e", r"\xff\u202e"),
        ("x" * 300, "…" + "x" * 200),
    ],
)
def test_paths_are_shown_and_never_obeyed(path: str, text: str) -> None:
    assert shown(path) == text
