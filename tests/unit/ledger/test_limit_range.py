"""What one request of a namespace may be: omitted values end inside, written ones are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import limit_range
from ledger.errors import InvalidArgument
from ledger.limit_range import edited
from ledger.resources import DIMENSIONS, OptionalResources
from ledger.spec import Defaults, ResolvedSpec, ResourceSpec
from ledger.tables import LimitRange
from ledger.units import parse_ratio
from tests.unit.ledger.samples import GIB, MIB

FREE = LimitRange("team")
BOUNDED = edited(
    FREE,
    {
        "minimum": {"cpu_milli": 100, "memory_bytes": 64 * MIB},
        "maximum": {"cpu_milli": 2000, "memory_bytes": 2 * GIB, "ephemeral_storage_bytes": GIB},
        "ratios": {"memory_bytes": "1.5"},
    },
)


def resolve(row: LimitRange | None, spec: ResourceSpec = ResourceSpec()) -> ResolvedSpec:  # noqa: B008 - frozen
    return limit_range.resolve(spec, Defaults(), row, rootfs_readonly=False, runtime="runc")


def spec(requests: dict[str, int], limits: dict[str, int] | None = None) -> ResourceSpec:
    return ResourceSpec(OptionalResources(**requests), OptionalResources(**(limits or {})))


def test_without_a_range_nothing_changes() -> None:
    assert resolve(FREE) == resolve(None)


def test_defaults_of_the_namespace_come_before_those_of_the_node() -> None:
    row = edited(
        FREE,
        {
            "default_requests": {"cpu_milli": 250, "memory_bytes": GIB},
            "default_limits": {"ephemeral_storage_bytes": 5 * MIB},
        },
    )
    found = resolve(row)
    assert (found.requests.cpu_milli, found.requests.memory_bytes) == (250, GIB)
    assert found.limits.ephemeral_storage_bytes == 5 * MIB


def test_what_is_omitted_ends_inside() -> None:
    found = resolve(BOUNDED)
    assert found.requests.memory_bytes == 2 * GIB
    assert found.limits == OptionalResources(2000, 2 * GIB, 256 * MIB)
    less = resolve(BOUNDED, spec({"memory_bytes": 100 * MIB}))
    assert less.limits.memory_bytes == 150 * MIB


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (spec({"cpu_milli": 99}), "requests.cpu_milli: 99m is below the minimum of namespace team"),
        (spec({"cpu_milli": 2001}), "requests.cpu_milli: 2001m is above the maximum"),
        (
            spec({}, {"cpu_milli": 2001}),
            "limits.cpu_milli: 2001m is above the maximum of namespace team, 2",
        ),
        (spec({"memory_bytes": GIB}, {"memory_bytes": 2 * GIB}), "more than 1.5 times the request"),
    ],
)
def test_what_is_written_and_outside_is_refused(asked: ResourceSpec, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as refused:
        resolve(BOUNDED, asked)
    assert refused.value.hint


def test_a_lease_has_bounds_and_no_limits() -> None:
    found = limit_range.resolve_lease(ResourceSpec(), Defaults(), BOUNDED)
    assert (found.requests.memory_bytes, found.limits) == (2 * GIB, OptionalResources())
    with pytest.raises(InvalidArgument, match="below the minimum"):
        limit_range.resolve_lease(spec({"cpu_milli": 1}), Defaults(), BOUNDED)
    assert limit_range.resolve_lease(ResourceSpec(), Defaults(), None).requests.cpu_milli == 500


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ({"minimum": {"cpu_milli": 9}, "maximum": {"cpu_milli": 8}}, "minimum.cpu_milli: 9m"),
        ({"minimum": {"cpu_milli": 9}, "default_requests": {"cpu_milli": 8}}, "above the default"),
        ({"maximum": {"memory_bytes": MIB}}, "below the smallest limit"),
        ({"ratios": {"cpu_milli": "0.9"}}, "is below 1"),
        ({"ratios": {"cpu_milli": "many"}}, "finite decimal"),
        ({"default_requests": {"ephemeral_storage_bytes": 1}}, "no such default"),
        ({"default_limits": {"cpu_milli": 1}}, "no such default"),
        ({"maximum": {"sandbox_slots": 1}}, "one sandbox slot"),
    ],
)
def test_bounds_that_contradict_each_other_are_refused(edits: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        edited(FREE, edits)


def test_a_bound_is_taken_away_by_none() -> None:
    edits = {
        "minimum": dict.fromkeys(("cpu_milli", "memory_bytes")),
        "ratios": {"memory_bytes": None},
    }
    edits["maximum"] = dict.fromkeys(("cpu_milli", "memory_bytes", "ephemeral_storage_bytes"))
    assert edited(BOUNDED, edits) == FREE


some = st.none() | st.integers(1, 40).map(lambda units: units * 8 * MIB)
maybe = st.builds(OptionalResources, some, some, some)


@given(maybe, maybe, maybe, maybe, st.sampled_from([None, "1", "1.5", "3"]))
def test_whatever_is_resolved_lies_inside(
    requests: OptionalResources,
    limits: OptionalResources,
    minimum: OptionalResources,
    maximum: OptionalResources,
    ratio: str | None,
) -> None:
    row = LimitRange(
        "team", minimum=minimum, maximum=maximum, ratios=(("memory_bytes", ratio),) if ratio else ()
    )
    try:
        row = edited(row, {})
    except InvalidArgument:
        return
    try:
        found = resolve(row, ResourceSpec(requests, limits))
    except InvalidArgument:
        assert (requests, limits) != (OptionalResources(), OptionalResources())
        return
    for each in DIMENSIONS[:3]:
        request, limit = getattr(found.requests, each.name), getattr(found.limits, each.name)
        least, most = getattr(minimum, each.name), getattr(maximum, each.name)
        assert (least or 1) <= request
        assert most is None or (limit is not None and request <= limit <= most)
    if ratio:
        limit = found.limits.memory_bytes
        assert limit is not None
        assert limit <= found.requests.memory_bytes * parse_ratio(ratio, "ratio")
