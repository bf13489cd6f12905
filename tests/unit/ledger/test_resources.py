"""The dimensions are listed once; vectors, pools and names follow from the list."""

from dataclasses import fields

import pytest

from ledger.errors import InvalidArgument
from ledger.resources import (
    BY_NAME,
    DIMENSIONS,
    OptionalResources,
    Resources,
    by_pool,
    dimension_of,
    gpu_pool,
    parse_count,
    pool,
)


def test_vectors_have_the_listed_dimensions_in_order() -> None:
    names = [dimension.name for dimension in DIMENSIONS]
    assert [field.name for field in fields(Resources)] == names
    assert [field.name for field in fields(OptionalResources)] == names
    assert Resources(1, 2, 3, 4, 5).amounts() == (1, 2, 3, 4, 5)


def test_labels_and_flags_are_distinct() -> None:
    assert len({dimension.label for dimension in DIMENSIONS}) == len(DIMENSIONS)
    assert len({dimension.flag for dimension in DIMENSIONS}) == len(DIMENSIONS)


def test_sums() -> None:
    assert Resources(1, 2, 3, 4, 5).plus(Resources(10, 20, 30, 40, 50)) == Resources(
        11, 22, 33, 44, 55
    )
    assert Resources(5, 5, 5, 5, 5).minus(Resources(1, 9, 5, 0, 6)) == Resources(4, 0, 0, 5, 0)


def test_only_gpu_memory_is_a_pool_per_device() -> None:
    assert by_pool(Resources(1, 2, 0, 4, 5), "gpu-1") == {
        "cpu_milli": 1,
        "memory_bytes": 2,
        "gpu_memory_bytes/gpu-1": 4,
        "sandbox_slots": 5,
    }
    assert gpu_pool("a/b") == "gpu_memory_bytes/a/b"
    for dimension in DIMENSIONS:
        assert dimension_of(pool(dimension, "a/b")) is dimension
        assert BY_NAME[dimension.name] is dimension


@pytest.mark.parametrize(("text", "count"), [("0", 0), ("64", 64), (" 7 ", 7)])
def test_a_count_is_read(text: str, count: int) -> None:
    assert parse_count(text, "--max-sandboxes") == count


@pytest.mark.parametrize("text", ["", "1.0", "2KiB", "1m", "-1", "٣", "9007199254740992"])
def test_a_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^--max-sandboxes: "):
        parse_count(text, "--max-sandboxes")
