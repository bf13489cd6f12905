"""The CPU floor is exact for every ratio and size, against two other ways to compute it."""

from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.capacity import node_of
from ledger.errors import InvalidArgument
from ledger.resources import Resources
from ledger.units import MAX_CPU_MILLI, MAX_INTEGER

ratios = st.from_regex(r"\A(?:[0-9]{1,20}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})\Z")
# Ratios a hair below and above where the product becomes whole: where a float would be wrong.
edges = st.builds(
    lambda whole, size, hair: f"{Decimal(whole) / Decimal(size) + hair:f}",
    st.integers(1, 10**6),
    st.sampled_from([1, 2, 4, 5, 8, 10, 16, 20, 25, 1000, 1024]),
    st.sampled_from([Decimal(0), Decimal("1e-20"), Decimal("-1e-20")]),
)


@given(st.integers(0, MAX_CPU_MILLI), st.integers(0, MAX_CPU_MILLI), ratios | edges)
def test_the_cpu_floor_is_exact(capacity: int, reserve: int, ratio: str) -> None:
    exact = Fraction(ratio if ratio[0] != "." else f"0{ratio}")
    allocatable = max(0, capacity - reserve)
    expected = allocatable * exact.numerator // exact.denominator
    if not exact > 0 or expected > MAX_INTEGER:
        with pytest.raises(InvalidArgument, match="cpu_overcommit_ratio"):
            node_of(Resources(capacity), Resources(reserve), ratio)
        return
    effective = node_of(Resources(capacity), Resources(reserve), ratio).effective_allocatable
    assert effective == Resources(expected)
    with localcontext(prec=200):
        product = Decimal(allocatable) * Decimal(ratio)
        assert effective.cpu_milli == int(product.to_integral_value(ROUND_FLOOR))
    assert effective.cpu_milli <= allocatable * exact < effective.cpu_milli + 1


amounts = st.builds(Resources, *[st.integers(0, MAX_INTEGER)] * 5)


@given(amounts, amounts)
def test_promised_and_kept_is_what_there_is(capacity: Resources, reserve: Resources) -> None:
    node = node_of(capacity, reserve, "1")
    assert node.effective_allocatable.plus(node.system_reserve) == capacity
    assert all(
        kept <= asked
        for kept, asked in zip(node.system_reserve.amounts(), reserve.amounts(), strict=True)
    )
