"""Each finding of the doctor, and that what agrees has none: as values, without a host."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.runtime import doctor
from axern.runtime.doctor import CODES, Entry
from axern.runtime.traces import Group, Traces
from ledger.findings import PROBLEM, WARNING, Finding
from ledger.reservation import (
    ACTIVE,
    EXPIRED,
    EXTERNAL,
    PHASES,
    RESERVED,
    RETIRING,
    RUNNING,
    STALE,
    STARTING,
    STOPPING,
    UNOBSERVED,
    CgroupIdentity,
    Owner,
    ProcessIdentity,
    Reservation,
)
from tests.unit.ledger.samples import ask, host_state, proposal, reserve

ID = "a" * 32
DIR = "/var/lib/axern/ledger"
MONITOR = ProcessIdentity("boot-1", 4242, 99)
RUN = replace(
    reserve(host_state(), proposal(ID, ask(cpu=10, memory=1024))),
    phase=RUNNING,
    monitor=MONITOR,
    cgroup=CgroupIdentity("boot-1", "axern/sandboxes/a", 77),
)
LEASE = replace(
    RUN,
    phase=RESERVED,
    owner=Owner(EXTERNAL, 1000),
    monitor=None,
    cgroup=None,
    owner_process=ProcessIdentity("boot-1", 17, 1),
)
NO_GROUP = Group("/cg/sandboxes/a", None, populated=False, processes=0, pids=())
NOTHING = Traces(
    sandbox_id=ID,
    workload=NO_GROUP,
    monitor=replace(NO_GROUP, path="/cg/monitors/a"),
    strays=(),
    legacy_groups=(),
    mounts=(),
    folder=None,
    store=None,
    runtime_files=(),
    exit_file=None,
    exit_code=None,
    run_folder=None,
    run_folder_age_s=0,
    has_spec=False,
    has_exit_record=False,
)
HEALTHY = replace(
    NOTHING,
    workload=Group("/cg/sandboxes/a", 77, populated=True, processes=1, pids=(5,)),
    monitor=Group("/cg/monitors/a", 78, populated=True, processes=1, pids=(4242,)),
    mounts=("/run/axern/sandboxes/a/rootfs",),
    folder="/run/axern/sandboxes/a",
    store="/var/lib/axern/filestore/a",
    runtime_files=("/run/axern/runc/a",),
    run_folder="/var/lib/axern/runs/a",
    run_folder_age_s=1000,
    has_spec=True,
)
ADMITTED = replace(NOTHING, run_folder="/runs/a", run_folder_age_s=1000, has_spec=True)
AGREEING = {
    RESERVED: (ADMITTED,),
    STARTING: (ADMITTED, HEALTHY),
    RUNNING: (HEALTHY,),
    STOPPING: (HEALTHY,),
    RETIRING: (ADMITTED, HEALTHY, replace(ADMITTED, has_exit_record=True, exit_file="/exits/a")),
}


def examine(entry: Entry | None, traces: Traces | None) -> list[Finding]:
    host = {} if traces is None else {ID: traces}
    return list(doctor.examine([entry] if entry else [], host, DIR))


def entry(
    row: Reservation = RUN, liveness: str = ACTIVE, *, on_bridge: bool = False, **seen: bool | None
) -> Entry:
    alive = {"monitor_alive": True, **seen}
    return Entry(row, liveness, alive.get("owner_alive"), alive["monitor_alive"], on_bridge)


def group(change: Callable[[Group], Group]) -> Traces:
    return replace(HEALTHY, workload=change(HEALTHY.workload))


EMPTY = replace(HEALTHY.workload, populated=False, processes=0, pids=())
CASES: list[tuple[str, Entry | None, Traces | None]] = [
    ("stale-owner", entry(LEASE, STALE), None),
    ("stale-owner", entry(RUN, STALE), HEALTHY),
    ("expired-entry", entry(LEASE, EXPIRED), None),
    ("orphaned-lease", entry(LEASE, owner_alive=False), None),
    ("orphaned-lease", entry(LEASE, EXPIRED, owner_alive=False), None),
    ("orphaned-sandbox", entry(), ADMITTED),
    ("orphaned-sandbox", entry(monitor_alive=False), ADMITTED),
    ("drifting-monitor", entry(monitor_alive=False), HEALTHY),
    ("drifting-monitor", entry(), replace(HEALTHY, monitor=NO_GROUP)),
    ("drifting-cgroup", entry(), group(lambda seen: replace(seen, inode=1))),
    ("drifting-mount", entry(), replace(HEALTHY, mounts=())),
    ("drifting-network", entry(on_bridge=True), HEALTHY),
    ("drifting-phase", entry(), replace(HEALTHY, workload=EMPTY)),
    ("drifting-phase", entry(), replace(HEALTHY, exit_file="/exits/a", exit_code=0)),
    ("drifting-phase", entry(replace(RUN, phase=RESERVED, monitor=None)), HEALTHY),
    ("drifting-process", entry(), replace(HEALTHY, strays=(5,))),
    ("drifting-charge", entry(replace(RUN, charged=ask(cpu=11, memory=1024))), HEALTHY),
    ("drifting-record", entry(), replace(HEALTHY, has_spec=False)),
    ("drifting-record", entry(), replace(HEALTHY, has_spec=False, run_folder=None)),
    ("drifting-record", entry(), replace(HEALTHY, has_exit_record=True)),
    ("leaked-sandbox", None, replace(HEALTHY, has_exit_record=True)),
    ("leaked-sandbox", None, replace(NOTHING, workload=EMPTY)),
    ("leaked-sandbox", None, replace(NOTHING, mounts=("/run/axern/sandboxes/a/rootfs",))),
    ("leaked-sandbox", None, replace(NOTHING, legacy_groups=("/cg/memory/a",))),
    ("leaked-sandbox", None, replace(NOTHING, interface="axa")),
    ("leaked-files", None, replace(NOTHING, store="/filestore/a")),
    ("leaked-files", None, replace(NOTHING, folder="/sandboxes/a")),
    ("leaked-files", None, replace(NOTHING, exit_file="/exits/a")),
    ("leaked-files", None, replace(NOTHING, runtime_files=("/runc/a",))),
    ("leaked-run", None, ADMITTED),
]


@pytest.mark.parametrize(("code", "seen", "traces"), CASES)
def test_one_finding_for_one_thing(code: str, seen: Entry | None, traces: Traces | None) -> None:
    (finding,) = examine(seen, traces)
    assert (finding.code, finding.id, finding.severity) == (code, ID, CODES[code])
    assert finding.found
    assert ID in finding.remedy or DIR in finding.remedy
    runs = traces is not None and traces.runs
    if "axern reservations release" in finding.remedy and runs:
        assert "--force --reason" in finding.remedy


def test_every_code_has_a_case() -> None:
    assert {code for code, _, _ in CASES} == set(CODES)
    assert set(CODES.values()) == {WARNING, PROBLEM}


@given(st.sampled_from(PHASES), st.data())
def test_what_agrees_has_no_finding(phase: str, data: st.DataObject) -> None:
    traces = data.draw(st.sampled_from(AGREEING[phase]))
    liveness = data.draw(st.sampled_from((ACTIVE, UNOBSERVED)))
    started = phase in (RUNNING, STOPPING)
    row = replace(RUN, phase=phase)
    if not started:
        row = replace(row, monitor=None, cgroup=None)
    seen = entry(row, liveness, monitor_alive=True if started else None)
    assert examine(seen, traces) == []


def test_what_ended_and_is_remembered_is_no_leak() -> None:
    assert examine(None, replace(ADMITTED, has_exit_record=True)) == []
    assert examine(None, replace(ADMITTED, run_folder_age_s=10)) == []  # perhaps being admitted
    assert examine(None, NOTHING) == []


def test_retiring_memory_may_be_charged_higher() -> None:
    row = replace(RUN, phase=RETIRING, charged=ask(cpu=10, memory=4096))
    assert examine(entry(row), HEALTHY) == []


def test_two_looks_are_needed() -> None:
    (first,) = examine(entry(), replace(HEALTHY, strays=(5, 6)))
    (second,) = examine(entry(), replace(HEALTHY, strays=(7,)))
    (other,) = examine(entry(), replace(HEALTHY, workload=EMPTY))
    assert doctor.confirmed([first], [second, other]) == (second,)
    assert doctor.confirmed([], [second]) == ()
