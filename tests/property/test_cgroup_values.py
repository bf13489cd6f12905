"""Laws of what is told to the kernel: never more than was asked for, exact where it can be."""

from hypothesis import given
from hypothesis import strategies as st

from axern.host.cgroup_values import (
    PAGE_BYTES,
    CgroupLimits,
    CgroupOptions,
    cpu_max_of,
    cpu_weight_of,
    leaf_files,
    limits_of,
    oci_resources,
    pages_down,
    wall_files,
)
from ledger.resources import OptionalResources, Resources
from ledger.spec import SMALLEST_LIMITS, SMALLEST_RUNSC_MEMORY_LIMIT_BYTES
from ledger.units import MAX_INTEGER

MILLI = st.integers(SMALLEST_LIMITS["cpu_milli"], 1_000_000)
BYTES = st.integers(0, MAX_INTEGER)
LIMIT_BYTES = st.integers(SMALLEST_LIMITS["memory_bytes"], MAX_INTEGER)
RUNTIMES = st.sampled_from(("runc", "runsc"))


@st.composite
def limits(draw: st.DrawFn) -> CgroupLimits:
    most = draw(st.none() | LIMIT_BYTES)
    request = draw(st.integers(1, most or MAX_INTEGER))
    return limits_of(
        Resources(cpu_milli=draw(st.integers(1, 1_000_000)), memory_bytes=request),
        OptionalResources(cpu_milli=draw(st.none() | MILLI), memory_bytes=most),
        draw(RUNTIMES),
        CgroupOptions(4096, draw(st.integers(0, 100)), draw(st.booleans())),
    )


@given(MILLI)
def test_a_cpu_cap_is_exact_and_one_the_kernel_takes(milli: int) -> None:
    cap = cpu_max_of(milli)
    assert cap.quota_us * 1000 == milli * cap.period_us
    assert cap.quota_us >= 1000
    assert 1000 <= cap.period_us <= 1_000_000


@given(BYTES)
def test_memory_is_rounded_down_by_less_than_a_page(amount: int) -> None:
    assert pages_down(amount) % PAGE_BYTES == 0
    assert 0 <= amount - pages_down(amount) < PAGE_BYTES


@given(st.integers(0, 2_000_000), st.integers(0, 2_000_000))
def test_weights_grow_with_requests_and_stay_in_the_kernels_range(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert 1 <= cpu_weight_of(low) <= cpu_weight_of(high) <= 10_000


@given(st.integers(1, 10_000))
def test_weights_are_in_the_proportion_of_the_requests(tens: int) -> None:
    assert cpu_weight_of(10 * tens) == tens


@given(limits())
def test_no_limit_is_above_what_was_asked_for(held: CgroupLimits) -> None:
    files = wall_files(held)
    numbers = {
        name: int(files[name])
        for name in ("memory.low", "memory.high", "memory.max")
        if files[name] != "max"
    }
    most = numbers.get("memory.max", MAX_INTEGER)
    assert all(number <= most and number % PAGE_BYTES == 0 for number in numbers.values())
    assert files["memory.swap.max"] == "0"


@given(limits(), RUNTIMES)
def test_the_group_below_never_allows_less_than_the_wall(held: CgroupLimits, runtime: str) -> None:
    """It may repeat a limit or have none; a lower one would strike without the wall's rules."""
    wall, leaf = wall_files(held), leaf_files(held, runtime)
    for name, text in leaf.items():
        assert text in (wall[name], "max", "max 100000")


@given(limits())
def test_what_runc_is_told_is_what_is_looked_for(held: CgroupLimits) -> None:
    told, looked_for = oci_resources(held, "runc"), leaf_files(held, "runc")
    memory = told.get("memory")
    assert looked_for["memory.max"] == (str(memory["limit"]) if memory else "max")  # type: ignore[index]
    assert "cpu" not in told, "its own work would be capped"
    assert memory is None or memory["limit"] == memory["swap"]  # type: ignore[index]
    assert oci_resources(held, "runsc") == {}


def test_the_smallest_limits_are_what_the_contract_says() -> None:
    assert cpu_max_of(5).text() == "1000 200000"
    assert cpu_max_of(1500).text() == "150000 100000"
    assert SMALLEST_LIMITS == {
        "cpu_milli": 5,
        "memory_bytes": 16 * 1024**2,
        "ephemeral_storage_bytes": 1024**2,
    }
    assert SMALLEST_RUNSC_MEMORY_LIMIT_BYTES == 64 * 1024**2
