"""Seeded faults of the ledger: each has its place, and the tests find them (in the long form)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.catalogue import AREAS, ROOT
from tests.mutation.fault import Fault
from tests.mutation.trial import CAUGHT, HUNG, SURVIVED, Copy

FAULTS = [fault for area in AREAS.values() for fault in area.faults]
LEAST = 60
FILE = "ledger/reclaim.py"
TESTS = ("tests/unit/ledger/test_reclaim.py",)
PLACE = "REQUEST_LIFETIME_MS = 24 * 3_600_000\n"


def test_each_fault_has_one_place_and_is_python() -> None:
    assert len(FAULTS) >= LEAST
    assert len({fault.breaks for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        planted = fault.planted((ROOT / fault.file).read_text(encoding="utf-8"))
        compile(planted, fault.file, "exec")
        assert fault.new != fault.old, fault
        assert fault.breaks.endswith("."), fault


def test_each_test_is_there() -> None:
    for area in AREAS.values():
        for path in area.tests:
            assert (ROOT / path).is_file(), path


def test_control_what_changes_nothing_survives_and_what_does_is_caught(tmp_path: Path) -> None:
    copy = Copy(ROOT, tmp_path / "tree")
    nothing = Fault(FILE, PLACE, f"{PLACE}# nothing else\n", "Nothing.")
    real = Fault(FILE, "if standing == ACTIVE or", "if", "Who lives is looked for.")
    endless = Fault(FILE, PLACE, f"{PLACE}while True:\n    pass\n", "No end.")
    assert copy.try_out(nothing, TESTS).verdict == SURVIVED
    assert copy.try_out(real, TESTS).verdict == CAUGHT
    assert copy.try_out(endless, TESTS, limit_s=3).verdict == HUNG
    assert copy.run(TESTS).verdict == SURVIVED, "a fault was left in the copy"


@pytest.mark.long
@pytest.mark.parametrize("name", AREAS)
def test_every_fault_is_caught(name: str, tmp_path: Path) -> None:
    copy = Copy(ROOT, tmp_path / "tree")
    area = AREAS[name]
    assert copy.run(area.tests).verdict == SURVIVED
    survivors = [
        fault.breaks for fault in area.faults if copy.try_out(fault, area.tests).verdict == SURVIVED
    ]
    assert survivors == []
