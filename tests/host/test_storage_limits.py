"""A storage limit holds against every way to write, in both runtimes; nothing of it is left over.

Needs a kernel with XFS quotas.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator

import pytest

from axern.errors import QuotaError
from axern.host import inventory, project_quota, quota_events
from axern.host.project_quota import Limits
from axern.runtime import launch, storage, storage_proof
from axern.runtime.oci import SandboxSpec
from tests.conftest import LONG
from tests.host.conftest import Lab, wait_until
from tests.host.filestores import MIB, is_real, xfs_lab
from tests.host.killing import create_s, kill_inside_create

pytestmark = [pytest.mark.host, pytest.mark.machine]

LIMIT_BYTES = 10 * MIB
INODES = 2560
SANDBOXES = 20 if LONG else 4
KILLS = {"runc": 400, "runsc": 100} if LONG else {"runc": 20}

FILL = "dd if=/dev/zero of=/{} bs=256k count=48 2>/dev/null"
RUNTIMES = ("runc", "runsc") if LONG else ("runc",)
"""For what is done many times: emulated, gVisor takes long."""
ATTEMPTS = {
    "one file": FILL.format("fill"),
    "many files": "; ".join(FILL.format(f"fill{n}") for n in range(3)),
    "hard links and renames": (
        f"mkdir /a /b; {FILL.format('a/fill')}; ln /a/fill /b/link; mv /a/fill /b/moved; "
        f"mv /b /c; {FILL.format('a/more')}"
    ),
    "sparse": (
        "truncate -s 1G /sparse; i=0; while [ $i -lt 64 ]; do dd if=/dev/zero of=/sparse "
        "bs=256k count=1 seek=$((i * 8)) conv=notrunc 2>/dev/null; i=$((i + 1)); done"
    ),
    "copies of the lower": "i=0; while cp /bin/busybox /copy$i 2>/dev/null; do i=$((i + 1)); done",
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with xfs_lab() as lab:
        if not is_real():
            if "quota" in os.environ.get("AXERN_REQUIRE", "").split(","):
                pytest.fail("the kernel has no XFS quotas")
            pytest.skip("the kernel has no XFS quotas")
        yield lab


@pytest.fixture(autouse=True)
def buried(lab: Lab) -> Iterator[None]:
    """Bury what a test has left, so that the next one finds nothing of it."""
    first = len(lab.made)
    yield
    for spec in lab.made[first:]:
        lab.bury(spec)


def until_told(lab: Lab, spec: SandboxSpec) -> str:
    """Wait until the script has said that it is over, and return what it said."""
    wait_until(lambda: lab.outputs(spec)["stdout"].endswith(b"over\n"))
    return lab.outputs(spec)["stdout"].decode()


def record(lab: Lab, spec: SandboxSpec) -> project_quota.Project:
    assert spec.quota is not None
    found = project_quota.read(lab.layout.filestore, spec.quota.project)
    assert found is not None
    return found


def gone(lab: Lab, spec: SandboxSpec) -> bool:
    assert spec.quota is not None
    return project_quota.read(lab.layout.filestore, spec.quota.project) is None


@pytest.mark.parametrize(
    ("runtime", "attempt"),
    sorted({("runsc", "one file"), *itertools.product(RUNTIMES, ATTEMPTS)}),
)
def test_no_way_to_write_passes_the_limit(lab: Lab, runtime: str, attempt: str) -> None:
    script = f"{ATTEMPTS[attempt]}; echo over; sleep 1000"
    spec = lab.spec(runtime, "sh", "-c", script, limit_bytes=LIMIT_BYTES)
    free_bytes = inventory.filestore_free_bytes(lab.layout.filestore)
    lab.launch(spec)
    until_told(lab, spec)
    found = record(lab, spec)
    assert found.limits == Limits(LIMIT_BYTES, INODES)
    assert LIMIT_BYTES // 2 <= found.used_bytes <= LIMIT_BYTES + MIB
    taken = free_bytes - inventory.filestore_free_bytes(lab.layout.filestore)
    assert taken <= LIMIT_BYTES + MIB
    assert lab.bury(spec).project == spec.quota.project if spec.quota else None
    assert gone(lab, spec)


def test_the_kernel_tells_of_a_limit_that_was_hit(lab: Lab, runtime: str) -> None:
    """Also where nothing is in use any more: of runsc, and where the workload has tidied up."""
    events = quota_events.QuotaEvents()
    try:
        for script, hit in ((f"{FILL.format('fill')}; rm /fill; exit 3", True), ("exit 3", False)):
            spec = lab.spec(runtime, "sh", "-c", script, limit_bytes=LIMIT_BYTES)
            assert lab.run(spec).exit_code == 3
            heard = events.hear(lab.layout.filestore)
            assert heard.projects == ({spec.quota.project} if hit and spec.quota else set())
    finally:
        events.close()


def test_many_small_files_meet_the_bound_on_inodes(lab: Lab) -> None:
    script = "mkdir /a; cd /a; i=0; while : >f$i; do i=$((i + 1)); done 2>/dev/null"
    spec = lab.spec("runc", "sh", "-c", f"({script}); echo over; sleep 1000", limit_bytes=MIB)
    lab.launch(spec)
    until_told(lab, spec)
    found = record(lab, spec)
    assert found.limits.inodes == 1024
    assert 1000 <= found.used_inodes <= 1024
    lab.bury(spec)
    assert gone(lab, spec)


def test_df_inside_shows_the_limit(lab: Lab) -> None:
    spec = lab.spec("runc", "df", "-k", "/", limit_bytes=LIMIT_BYTES)
    assert lab.run(spec).stdout.split(b"\n")[1].split()[1] == str(LIMIT_BYTES // 1024).encode()


def test_a_lane_that_something_else_uses_is_refused_and_left_alone(lab: Lab) -> None:
    spec = lab.spec("runc", "true", limit_bytes=LIMIT_BYTES)
    assert spec.quota is not None
    foreign = f"{lab.layout.filestore}/foreign"
    os.mkdir(foreign)
    project_quota.set_project(foreign, spec.quota.project)
    try:
        with pytest.raises(QuotaError, match="is used by something else"):
            launch.create(spec, lab.layout)
        assert lab.bury(spec).project is None
        assert set(storage.lanes(lab.layout.filestore)) == {spec.lane}
    finally:
        os.rmdir(foreign)
    wait_until(lambda: not storage.lanes(lab.layout.filestore))


def test_a_record_with_limits_alone_is_taken_over_or_cleared(lab: Lab) -> None:
    filestore = lab.layout.filestore
    spec = lab.spec("runc", "true", limit_bytes=LIMIT_BYTES)
    for lane in (spec.lane, 4000, 4001):
        project_quota.set_limits(filestore, storage.project_id(lane), Limits(MIB, 7))
    assert lab.run(spec).exit_code == 0
    assert storage.clear_unheld(filestore, [4000]) == 1
    assert set(storage.lanes(filestore)) == {4000}
    assert storage.clear_unheld(filestore, []) == 1


def test_the_proofs_hold_here(lab: Lab, runtime: str) -> None:
    assert "was stopped" in storage_proof.prove_quota(lab.layout)
    assert storage_proof.prove(runtime, lab.layout).endswith("of 8MiB")
    assert storage.lanes(lab.layout.filestore) == {}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_sandboxes_leave_no_quota_record(lab: Lab, runtime: str) -> None:
    scripts = (
        "exit 0",
        "echo x >/x; exit 3",
        "mkdir -p /a/b/c; sleep 1000",
        "trap '' TERM; sleep 1000",
    )
    specs = [
        lab.spec(runtime, "sh", "-c", scripts[n % len(scripts)], limit_bytes=MIB)
        for n in range(SANDBOXES)
    ]
    for spec in specs:
        lab.launch(spec)
    for spec in specs:
        assert lab.bury(spec).project is not None
    assert storage.lanes(lab.layout.filestore) == {}
    assert os.listdir(lab.layout.filestore) == []


@pytest.mark.timeout(3_600 if LONG else 600)
@pytest.mark.parametrize("runtime", sorted(KILLS))
def test_a_runtime_killed_inside_create_leaves_no_quota_record(lab: Lab, runtime: str) -> None:
    chance = random.Random(4713)
    usual_s = create_s(lab, lab.spec(runtime, "true", limit_bytes=MIB))
    lab.bury(lab.made[-1])
    for _ in range(KILLS[runtime]):
        spec = lab.spec(runtime, "true", limit_bytes=MIB)
        kill_inside_create(lab, spec, chance.random(), patience_s=10.0, longest_s=usual_s)
        lab.bury(spec)
        assert gone(lab, spec)
    assert os.listdir(lab.layout.filestore) == []
