"""Why a sandbox ended: what the kernel counted, and what its end was called before."""

from dataclasses import replace

import pytest

from axern.host.cgroup_files import counters_from_text
from axern.host.cgroup_tree import clean_cache_bytes
from axern.host.project_quota import Limits, Project
from axern.runtime import outcome, verdict

MIB = 1024**2
EVENTS = "low 0\nhigh 0\nmax 31\noom 1\noom_kill 3\noom_group_kill 1\n"
EXITED = outcome.exited(1, 1000)


def test_a_kill_at_its_own_limit_is_told_with_the_limit() -> None:
    judged = verdict.of_events(EXITED, counters_from_text(EVENTS), 128 * MIB)
    assert (judged.status, judged.exit_code, judged.cli_exit_code) == ("failed", 137, 137)
    assert judged.diagnostic_code == "memory-limit-exceeded"
    assert judged.message == (
        "out of memory: its limit of 128MiB was reached, and the kernel killed all of it"
    )
    assert judged.finished_wall_ms == EXITED.finished_wall_ms


@pytest.mark.parametrize(("oom", "limit"), [(0, 128 * MIB), (1, None)])
def test_a_kill_for_all_sandboxes_is_told_as_such(oom: int, limit: int | None) -> None:
    events = {"oom": oom, "oom_kill": 2, "oom_group_kill": 1}
    judged = verdict.of_events(EXITED, events, limit)
    assert judged.diagnostic_code == "memory-limit-exceeded"
    assert "all sandboxes on this node" in (judged.message or "")


def test_where_one_process_was_killed_the_code_is_the_workloads_own() -> None:
    judged = verdict.of_events(EXITED, {"oom": 1, "oom_kill": 1, "oom_group_kill": 0}, MIB)
    assert (judged.exit_code, judged.cli_exit_code) == (1, 1)
    assert (judged.message or "").endswith("killed 1 of its processes")


def test_nothing_killed_is_no_verdict() -> None:
    assert verdict.of_events(EXITED, {"oom": 0, "oom_kill": 0}, MIB) is EXITED
    assert verdict.of_events(EXITED, {}, MIB) is EXITED


def test_a_launch_that_was_killed_has_no_code_of_a_workload() -> None:
    failed = outcome.failed("the runtime was killed")
    judged = verdict.of_events(failed, counters_from_text(EVENTS), 16 * MIB)
    assert (judged.exit_code, judged.cli_exit_code) == (None, 125)
    assert judged.diagnostic_code == "memory-limit-exceeded"


@pytest.mark.parametrize(
    "end",
    [
        outcome.exited(0, 1),
        outcome.stopped("cancelled", 137, 1),
        outcome.stopped("timeout", 137, 1),
        replace(EXITED, diagnostic_code="monitor-lost"),
    ],
)
def test_only_an_end_that_nobody_asked_for_is_judged(end: outcome.Outcome) -> None:
    assert verdict.judged(end, None, None) is end  # type: ignore[arg-type]  # never looked at


def test_clean_cache_is_what_the_lists_have_and_nobody_must_write() -> None:
    stat = counters_from_text(
        "anon 9\nfile 500\nshmem 100\nfile_dirty 30\nfile_writeback 20\n"
        "active_file 150\ninactive_file 250\nworkingset 1 2\n"
    )
    assert clean_cache_bytes(stat) == 350
    assert clean_cache_bytes({"file_dirty": 10}) == 0


@pytest.mark.parametrize(
    ("used_bytes", "used_inodes", "exceeded"),
    [
        (10 * MIB, 5, True),
        (10 * MIB - 640 * 1024, 5, True),
        (10 * MIB - 640 * 1024 - 1, 5, False),
        (0, 2560, True),
        (0, 2559, False),
    ],
)
def test_a_storage_limit_was_exceeded_where_a_usual_write_no_longer_fits(
    used_bytes: int, used_inodes: int, *, exceeded: bool
) -> None:
    found = Project(7, Limits(10 * MIB, 2560), used_bytes, used_inodes)
    judged = verdict.of_usage(EXITED, found)
    assert (judged is EXITED) is not exceeded
    if exceeded:
        assert judged.diagnostic_code == "storage-limit-exceeded"
        assert (judged.exit_code, judged.cli_exit_code) == (1, 1)
        assert "has all but used up its limit of 10MiB" in (judged.message or "")
    assert verdict.of_usage(EXITED, found, hit=False) is EXITED, "the kernel knows better"


def test_the_kernels_word_counts_whatever_is_left() -> None:
    found = Project(7, Limits(10 * MIB, 2560), 0, 0)
    judged = verdict.of_usage(EXITED, found, hit=True)
    assert judged.diagnostic_code == "storage-limit-exceeded"
    assert "it hit its limit of 10MiB" in (judged.message or "")
