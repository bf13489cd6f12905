"""What a node can promise out of what it has."""

import pytest

from ledger.capacity import node_of
from ledger.errors import InvalidArgument
from ledger.resources import Resources


def test_allocatable_is_capacity_less_reserve() -> None:
    node = node_of(Resources(4000, 100, 50, 0, 9), Resources(1000, 30, 60), "1", (("g", 8),))
    assert node.effective_allocatable == Resources(3000, 70, 0, 0, 9)
    assert node.gpu_allocatable == (("g", 8),)


def test_a_reserve_larger_than_the_node_is_cut_to_it() -> None:
    node = node_of(Resources(100, 10), Resources(500, 20), "2")
    assert node.system_reserve == Resources(100, 10)
    assert node.effective_allocatable == Resources()


@pytest.mark.parametrize(
    ("milli", "ratio", "effective"),
    [
        (1001, "2.5", 2502),
        (1000, "1.1", 1100),
        (10, "1.1", 11),
        (3, "0.34", 1),
        (1, "0.999", 0),
        (3000, "1.0", 3000),
        (7, ".5", 3),
        (1000, "1.0009999999999999999", 1000),
        (1000, "1.001", 1001),
    ],
)
def test_only_cpu_is_overcommitted_and_floored(milli: int, ratio: str, effective: int) -> None:
    node = node_of(Resources(milli, 10, 10, 0, 10), Resources(), ratio)
    assert node.effective_allocatable == Resources(effective, 10, 10, 0, 10)
    assert node.cpu_overcommit_ratio == ratio


@pytest.mark.parametrize("ratio", ["0", "-1", "NaN", "inf", "", "9" * 60])
def test_a_ratio_that_makes_no_sense_is_refused(ratio: str) -> None:
    with pytest.raises(InvalidArgument, match="cpu_overcommit_ratio"):
        node_of(Resources(1000), Resources(), ratio)
