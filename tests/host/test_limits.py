"""Limits that the kernel holds, each shown by a real attempt to break it; in the test machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from axern.errors import CgroupError, HostError
from axern.host import cgroup_files, cgroup_probe, cgroup_tree
from axern.host.cgroup import Cgroup
from axern.host.cgroup_values import IoMax
from axern.host.control_files import open_folder, write_at
from axern.host.disk import disk_of
from axern.runtime import confinement, launch, memory_proof, outcome, teardown, verdict
from axern.runtime.layout import SandboxPaths
from axern.runtime.oci import SandboxSpec
from tests.conftest import LONG
from tests.host.conftest import Lab, wait_until

pytestmark = [pytest.mark.host, pytest.mark.machine, pytest.mark.timeout(3600)]

MIB = 1024**2
LIMIT_BYTES = 128 * MIB
AT_ONCE = 20 if LONG else 2
HOG = ("sh", "-c", f"sleep 1000 & exec dd if=/dev/zero of=/dev/null bs={2 * LIMIT_BYTES} count=1")
"""Two processes, of which one takes more than it may, at once: emulated, bit by bit takes long."""
BOMB = ("sh", "-c", "f() { sleep 1000 & }; while :; do f; done")
MEASURED_S = 10.0


def write(group: Cgroup, name: str, text: str) -> None:
    with open_folder(group.folder) as folder_fd:
        write_at(folder_fd, name, text)


@contextmanager
def one_core() -> Iterator[None]:
    """Let whatever is started meanwhile share one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def cpu_time_us(paths: SandboxPaths) -> int:
    return cgroup_files.read_counters(paths.wall, "cpu.stat")["usage_usec"]


def test_over_its_limit_all_of_a_sandbox_is_killed_and_nothing_else(
    enforcing_lab: Lab, runtime: str
) -> None:
    lab = enforcing_lab
    neighbour = lab.limited("runc", "sleep", "1000", memory_bytes=LIMIT_BYTES)
    lab.launch(neighbour)
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        hogs = [lab.limited(runtime, *HOG, memory_bytes=LIMIT_BYTES) for _ in range(AT_ONCE)]
        for hog in hogs:
            lab.launch(hog)
        for hog in hogs:
            code = lab.wait_exit(hog)
            wall = lab.layout.sandbox(hog.sandbox_id).wall
            assert wall.wait_empty(60)
            assert memory_proof.faults(memory_proof.observe(wall)) == ()
            events = cgroup_files.read_counters(wall, verdict.MEMORY_EVENTS)
            judged = verdict.of_events(outcome.exited(code, 0), events, LIMIT_BYTES)
            assert (judged.diagnostic_code, judged.exit_code) == ("memory-limit-exceeded", 137)
        assert bystander.poll() is None
        bystander.kill()
    assert lab.layout.sandbox(neighbour.sandbox_id).wall.is_populated()
    for spec in (*hogs, neighbour):
        lab.bury(spec)
    assert lab.leftovers() == []


def test_every_file_holds_what_was_asked_for(enforcing_lab: Lab, quick_runtime: str) -> None:
    lab = enforcing_lab
    spec = lab.limited(
        quick_runtime,
        "sleep",
        "1000",
        memory_bytes=LIMIT_BYTES + 5,
        cpu_milli=1500,
        request_milli=2000,
    )
    lab.launch(spec)
    wall = lab.layout.sandbox(spec.sandbox_id).wall
    cgroup_files.require(
        wall,
        {
            "memory.max": str(LIMIT_BYTES),
            "memory.swap.max": "0",
            "memory.oom.group": "1",
            "memory.low": str(16 * MIB),
            "memory.high": "max",
            "cpu.max": "150000 100000",
            "cpu.weight": "200",
            "pids.max": "512" if quick_runtime == "runc" else "768",
        },
    )
    mount = Cgroup(wall.hierarchies, "")
    with open(f"{mount.folder}{cgroup_tree.AVAILABLE}", encoding="ascii") as file:
        assert bool(cgroup_files.without_huge_pages(wall)) is ("hugetlb" in file.read().split())
    cgroup_files.require(wall, cgroup_files.without_huge_pages(wall))


def test_the_least_of_cpu_is_exact_and_lets_the_runtime_do_its_work(enforcing_lab: Lab) -> None:
    lab = enforcing_lab
    spec = lab.limited("runc", "sleep", "1000", cpu_milli=5, request_milli=5)
    launch.create(spec, lab.layout)
    paths = lab.layout.sandbox(spec.sandbox_id)
    for group in (paths.wall, paths.workload):
        assert cgroup_files.mismatches(group, {"cpu.max": "1000 200000"}) == ()


def test_a_guest_sees_its_own_limit(enforcing_lab: Lab, runtime: str) -> None:
    lab = enforcing_lab
    script = {
        "runc": "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max; echo 1 > /sys/fs/cgroup/x",
        "runsc": "grep MemTotal /proc/meminfo",
    }[runtime]
    ended = lab.run(
        lab.limited(runtime, "sh", "-c", script, memory_bytes=LIMIT_BYTES, cpu_milli=500)
    )
    if runtime == "runc":
        assert ended.stdout.decode().split("\n")[:2] == [str(LIMIT_BYTES), "50000 100000"]
        assert b"Read-only" in ended.stderr
    else:
        assert int(ended.stdout.split()[1]) * 1024 <= LIMIT_BYTES


def test_busy_sandboxes_share_a_core_by_their_requests(
    enforcing_lab: Lab, quick_runtime: str
) -> None:
    lab = enforcing_lab
    busy = ("sh", "-c", "while :; do :; done")
    with one_core():
        specs = [lab.limited(quick_runtime, *busy, request_milli=milli) for milli in (1000, 3000)]
        for spec in specs:
            lab.launch(spec)
    walls = [lab.layout.sandbox(spec.sandbox_id) for spec in specs]
    time.sleep(1)  # until both loops run
    before = [cpu_time_us(paths) for paths in walls]
    time.sleep(MEASURED_S)
    one, three = (cpu_time_us(paths) - was for paths, was in zip(walls, before, strict=True))
    assert 2.4 <= three / one <= 3.6, (one, three)


def test_a_fork_bomb_stops_at_its_limit(enforcing_lab: Lab, runtime: str) -> None:
    lab = enforcing_lab
    spec = lab.limited(runtime, *BOMB, memory_bytes=512 * MIB, pids_max=64)
    lab.launch(spec)
    wall = lab.layout.sandbox(spec.sandbox_id).wall
    most = 64 if runtime == "runc" else 64 + 256

    def has_hit() -> bool:
        return cgroup_files.read_counters(wall, "pids.events").get("max", 0) > 0

    wait_until(has_hit, 600)
    assert (cgroup_files.read_number(wall, "pids.peak") or 0) <= most
    subprocess.run(["true"], check=True, timeout=60)
    assert lab.bury(spec).killed <= most


def test_who_ignores_term_and_forks_is_gone_all_the_same(
    enforcing_lab: Lab, quick_runtime: str
) -> None:
    lab = enforcing_lab
    script = "trap '' TERM; sleep 1000 & sleep 1000 & (trap '' TERM; sleep 1000) & wait; sleep 1000"
    spec = lab.limited(quick_runtime, "sh", "-c", script, memory_bytes=LIMIT_BYTES)
    lab.launch(spec)
    teardown.stop(quick_runtime, lab.layout, spec.sandbox_id, grace_s=1)
    lab.bury(spec)
    assert lab.leftovers() == []


def test_a_limit_that_changed_before_the_start_refuses_it(enforcing_lab: Lab) -> None:
    lab = enforcing_lab
    spec = lab.limited("runc", "sleep", "1000", memory_bytes=LIMIT_BYTES)
    created = launch.create(spec, lab.layout)
    paths = lab.layout.sandbox(spec.sandbox_id)
    confinement.require(spec, paths, created.init)
    write(paths.wall, "memory.max", "max")
    with pytest.raises(CgroupError, match=r"memory\.max holds max, not 134217728"):
        confinement.require(spec, paths, created.init)
    assert spec.limits is not None
    confinement.mend(spec.limits, "runc", paths)
    assert confinement.broken(spec.limits, "runc", paths) == ()


def test_a_process_beside_the_group_of_the_runtime_refuses_the_start(enforcing_lab: Lab) -> None:
    lab = enforcing_lab
    spec = lab.limited("runc", "sleep", "1000", memory_bytes=LIMIT_BYTES)
    created = launch.create(spec, lab.layout)
    paths = lab.layout.sandbox(spec.sandbox_id)
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        try:
            paths.birth.add(stranger.pid)
            with pytest.raises(HostError, match=f"where .{stranger.pid}. are"):
                confinement.require(spec, paths, created.init)
        finally:
            stranger.kill()


def test_a_process_that_was_moved_out_dies_with_its_sandbox(enforcing_lab: Lab) -> None:
    lab = enforcing_lab
    spec = lab.limited("runc", "sleep", "1000", memory_bytes=LIMIT_BYTES)
    created = launch.create(spec, lab.layout)
    launch.start(spec, lab.layout)
    outside = lab.layout.root.child("daemon")
    outside.create()
    outside.add(created.init.pid)
    lab.bury(spec)
    assert not outside.is_populated()


def test_probes_say_what_they_proved_and_leave_nothing(enforcing_lab: Lab) -> None:
    root = enforcing_lab.layout.root
    for probe in (cgroup_probe.memory, cgroup_probe.cpu, cgroup_probe.pids):
        assert "read back" in probe(root)
    assert cgroup_tree.identity(root).endswith(" memory cpu pids")


def test_the_memory_proof_of_a_runtime(enforcing_lab: Lab, runtime: str) -> None:
    said = memory_proof.prove(runtime, enforcing_lab.layout)
    assert "killed together" in said
    assert enforcing_lab.leftovers() == []


def test_the_wall_is_never_lowered_onto_who_lives_behind_it(enforcing_lab: Lab) -> None:
    lab = enforcing_lab
    root = lab.layout.root
    cgroup_tree.reclaim(root, 512 * MIB)  # file cache that others have left
    assert cgroup_tree.raise_wall(root, 512 * MIB)
    holder = ("sh", "-c", f"dd if=/dev/zero of=/dev/shm/x bs={48 * MIB} count=1; exec sleep 1000")
    spec: SandboxSpec = lab.limited("runc", *holder, memory_bytes=LIMIT_BYTES)
    lab.launch(spec)
    wait_until(lambda: (cgroup_tree.memory_in_use_bytes(root) or 0) > 48 * MIB, 300)
    assert not cgroup_tree.raise_wall(root, 32 * MIB)
    sandboxes = root.child("sandboxes")
    assert cgroup_files.read_number(sandboxes, "memory.max") == 512 * MIB
    assert lab.layout.sandbox(spec.sandbox_id).wall.is_populated()
    lab.bury(spec)
    wait_until(lambda: cgroup_tree.raise_wall(root, 32 * MIB), 300)


def test_clean_file_cache_is_no_use_and_can_be_taken_back(enforcing_lab: Lab) -> None:
    root = enforcing_lab.layout.root
    group = root.child("sandboxes").child("reader")
    group.create()
    path = f"{enforcing_lab.layout.state_dir}/cached"
    script = f"echo 0 > {group.folder}/cgroup.procs; head -c {64 * MIB} /dev/zero > {path}; sync"
    subprocess.run(["sh", "-c", script], check=True)
    sandboxes = root.child("sandboxes")
    current = cgroup_files.read_number(sandboxes, "memory.current") or 0
    assert current > 48 * MIB
    assert (cgroup_tree.memory_in_use_bytes(root) or 0) < 32 * MIB
    cgroup_tree.reclaim(root, 64 * MIB)
    assert (cgroup_files.read_number(sandboxes, "memory.current") or 0) < current - 32 * MIB
    group.destroy(10)


def test_reading_and_writing_is_capped_where_that_is_asked_for(enforcing_lab: Lab) -> None:
    lab = enforcing_lab
    most = IoMax(disk_of(lab.layout.filestore), 10 * MIB, None)
    spec = lab.limited("runc", "sleep", "1000")
    assert spec.limits is not None
    spec = replace(spec, limits=replace(spec.limits, io_max=most))
    lab.launch(spec)
    wall = lab.layout.sandbox(spec.sandbox_id).wall
    held = f"{most.device} rbps={10 * MIB} wbps=max riops=max wiops=max"
    assert cgroup_files.mismatches(wall, {"io.max": held}) == ()
