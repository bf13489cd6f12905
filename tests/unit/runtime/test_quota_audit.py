"""What quota records and entries say of each other, in both directions."""

from dataclasses import replace

import pytest

from axern.daemon import storage_facts
from axern.host.project_quota import NOTHING, Limits, Project
from axern.runtime import quota_audit, storage
from axern.runtime.quota_audit import Records
from axern.runtime.storage import FIRST_PROJECT
from ledger.reservation import RESERVED, RUNNING, Reservation
from ledger.resources import OptionalResources, Resources
from tests.unit.runtime.test_doctor import entry

MIB = 1024**2
LIMITS = Limits(10 * MIB, 2560)
ROW = replace(
    entry().row,
    phase=RUNNING,
    lane=7,
    enforced=True,
    limits=OptionalResources(ephemeral_storage_bytes=10 * MIB),
    charged=Resources(ephemeral_storage_bytes=4 * MIB),
)


def project(lane: int, limits: Limits = LIMITS, used_bytes: int = 0, inodes: int = 3) -> Project:
    return Project(FIRST_PROJECT + lane, limits, used_bytes, inodes)


def codes(rows: list[Reservation], *projects: Project) -> list[tuple[str, str]]:
    lanes = {each.id - FIRST_PROJECT: each for each in projects}
    held = [row.lane for row in rows if row.lane is not None]
    found = quota_audit.examine(rows, held, Records("/filestore", 4096, lanes))
    return [(finding.code, finding.id) for finding in found]


def test_agreement_is_no_finding() -> None:
    assert codes([ROW], project(7)) == []
    assert codes([replace(ROW, enforced=False)]) == []
    assert codes([replace(ROW, phase=RESERVED)]) == []
    assert codes([]) == []


@pytest.mark.parametrize(
    "records", [(), (project(7, NOTHING),), (project(7, Limits(20 * MIB, 2560)),)]
)
def test_a_limit_that_is_not_as_it_was_set_has_drifted(records: tuple[Project, ...]) -> None:
    assert codes([ROW], *records) == [("drifting-quota", ROW.id)]


def test_a_filestore_without_quotas_holds_nobody() -> None:
    found = quota_audit.examine([ROW], [7], Records("/filestore", 0, None))
    assert [finding.code for finding in found] == ["drifting-quota"]


def test_what_no_entry_holds_is_leaked_or_foreign() -> None:
    records = (project(8), project(9, NOTHING), project(10, inodes=0))
    assert codes([ROW], project(7), *records) == [
        ("leaked-project", str(FIRST_PROJECT + 8)),
        ("foreign-project", str(FIRST_PROJECT + 9)),
        ("leaked-quota", str(FIRST_PROJECT + 10)),
    ]


def test_written_counts_up_to_the_request_and_used_lanes_without_entry_are_quarantined() -> None:
    other = replace(ROW, lane=8, charged=Resources(ephemeral_storage_bytes=MIB))
    held = {7: ROW, 8: other}
    lanes = {7: project(7, used_bytes=3 * MIB), 8: project(8, used_bytes=9 * MIB)}
    assert storage_facts.written_bytes(held, lanes) == 4 * MIB
    lanes |= {9: project(9, used_bytes=MIB), 10: project(10, inodes=0)}
    assert storage_facts.quarantined(held, lanes) == (9,)


@pytest.mark.parametrize(
    ("limit", "block", "expected"),
    [
        (MIB, 4096, Limits(MIB, 1024)),
        (10 * MIB + 5000, 4096, Limits(10 * MIB + 4096, 2561)),
        (10 * MIB + 5000, 65536, Limits(10 * MIB, 2561)),
    ],
)
def test_limits_are_rounded_down_to_blocks(limit: int, block: int, expected: Limits) -> None:
    assert storage.limits_of(limit, block) == expected


def test_a_lane_out_of_range_has_no_project() -> None:
    with pytest.raises(ValueError, match="lane 4096"):
        storage.project_id(4096)
