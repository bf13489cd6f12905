"""Every seeded fault by area, and the tests that have to find it, the nearest ones first."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.mutation import admission, commits, endings, journal, opening, state
from tests.mutation.fault import Fault

ROOT = Path(__file__).resolve().parents[2]
UNIT = "tests/unit/ledger"


class Area(NamedTuple):
    """What belongs together: faults, the unit tests nearest to them, and tests that take longer."""

    faults: tuple[Fault, ...]
    units: str
    longer: tuple[str, ...]

    @property
    def tests(self) -> tuple[str, ...]:
        """Return what is run against each fault until one fails; all unit tests are in it."""
        near = [f"{UNIT}/test_{name}.py" for name in self.units.split()]
        units = sorted(str(path.relative_to(ROOT)) for path in (ROOT / UNIT).glob("test_*.py"))
        return tuple(dict.fromkeys((*near, *self.longer, *units)))


def _files(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


AREAS = {
    "admission": Area(
        admission.FAULTS,
        "admission claims capacity standing",
        _files("property", "admission claims capacity why"),
    ),
    "state": Area(
        state.FAULTS,
        "state transitions reservation store",
        _files("property", "transitions claims admission group_commit"),
    ),
    "journal": Area(
        journal.FAULTS,
        "journal codec checkpoint store",
        _files("faults", "damage failing_disk full_disk power"),
    ),
    "opening": Area(
        opening.FAULTS,
        "store journal checkpoint upgrade",
        _files("faults", "openers damage power full_disk crash"),
    ),
    "commits": Area(
        commits.FAULTS,
        "committer upkeep store request_ids",
        _files("faults", "failing_disk full_disk") + _files("property", "group_commit"),
    ),
    "endings": Area(
        endings.FAULTS,
        "reclaim reservation request_ids deadlines transitions rights batch",
        _files("property", "release"),
    ),
}
