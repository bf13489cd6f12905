"""What one request of a namespace may be: resolve a spec within its limit range, or refuse it.

What was left out always ends inside the range: a default is moved to its nearest bound, and an
omitted limit becomes the largest that maximum and ratio allow. Only what somebody wrote is refused.
Source: docs/decisions/0029-namespaces.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ledger import spec as specs
from ledger.errors import InvalidArgument
from ledger.resources import BY_NAME, DIMENSIONS
from ledger.spec import SMALLEST_LIMITS, Defaults, ResolvedSpec, ResourceSpec
from ledger.units import format_short, parse_ratio

if TYPE_CHECKING:
    from ledger.tables import LimitRange

Edits = Mapping[str, Mapping[str, int | str | None]]
"""By the field of a LimitRange the new values by dimension; None takes one away."""
RATIOS = "ratios"
LIMITED = ("cpu_milli", "memory_bytes", "ephemeral_storage_bytes")
"""The dimensions with a limit, so those with a ratio."""
RANGED = (*LIMITED, "gpu_memory_bytes")
"""The dimensions with a minimum and a maximum: a request always takes one slot."""
DEFAULT_REQUESTS = ("cpu_milli", "memory_bytes")
DEFAULT_LIMITS = ("ephemeral_storage_bytes",)
"""Where a default is one of the request, and where one of the limit, which the request follows."""


def edited(row: LimitRange, edits: Edits) -> LimitRange:
    """Return *row* with the values of *edits*.

    Raises:
        InvalidArgument: A ratio is none, or the bounds contradict each other.
    """
    changed: dict[str, object] = {}
    for name, values in edits.items():
        if name == RATIOS:
            ratios = {**dict(row.ratios), **values}
            changed[name] = tuple(
                (each, str(ratios[each])) for each in LIMITED if ratios.get(each) is not None
            )
        else:
            changed[name] = replace(getattr(row, name), **values)
    found = replace(row, **changed)  # type: ignore[arg-type]  # field names are ours
    _require_sound(found)
    return found


def resolve(
    spec: ResourceSpec,
    defaults: Defaults,
    bounds: LimitRange | None,
    *,
    rootfs_readonly: bool,
    runtime: str,
) -> ResolvedSpec:
    """Return *spec* with every omitted value filled in, as `spec.resolve` does, within *bounds*.

    Raises:
        InvalidArgument: As `spec.resolve`, or outside of the range of the namespace.
    """
    if bounds is None:
        return specs.resolve(spec, defaults, rootfs_readonly=rootfs_readonly, runtime=runtime)
    within = _within(defaults, bounds)
    resolved = specs.resolve(spec, within, rootfs_readonly=rootfs_readonly, runtime=runtime)
    _require_in_range(resolved, bounds)
    filled = {
        name: _largest(resolved, bounds, name)
        for name in LIMITED
        if getattr(spec.limits, name) is None and getattr(resolved.requests, name)
    }
    resolved = replace(resolved, limits=replace(resolved.limits, **filled))
    specs.check(resolved, runtime)
    _require_ratio(resolved, bounds)
    return resolved


def resolve_lease(
    spec: ResourceSpec, defaults: Defaults, bounds: LimitRange | None
) -> ResolvedSpec:
    """Return the spec of a lease, as `spec.resolve_lease` does, its requests within *bounds*.

    Raises:
        InvalidArgument: As `spec.resolve_lease`, or outside of the range of the namespace.
    """
    if bounds is None:
        return specs.resolve_lease(spec, defaults)
    resolved = specs.resolve_lease(spec, _within(defaults, bounds))
    _require_in_range(resolved, bounds)
    return resolved


def _within(defaults: Defaults, bounds: LimitRange) -> Defaults:
    """Return the namespace's own defaults, else the node's, moved into the range."""
    found = {}
    for field in fields(defaults):
        side, _, name = field.name.partition("_")
        own = getattr(bounds.default_requests if side == "request" else bounds.default_limits, name)
        amount = own or getattr(defaults, field.name)
        least, most = getattr(bounds.minimum, name), getattr(bounds.maximum, name)
        amount = max(amount, least or 0)
        found[field.name] = amount if most is None else min(amount, most)
    return Defaults(**found)


def _largest(resolved: ResolvedSpec, bounds: LimitRange, name: str) -> int | None:
    """Return what an omitted limit becomes: as large as the range lets it be."""
    limit, most = getattr(resolved.limits, name), getattr(bounds.maximum, name)
    ratio = dict(bounds.ratios).get(name)
    request = getattr(resolved.requests, name)
    by_ratio = None if ratio is None else request * parse_ratio(ratio, name) // 1
    given = [amount for amount in (limit, most, by_ratio) if amount is not None]
    return min(given) if given else None


def _require_in_range(resolved: ResolvedSpec, bounds: LimitRange) -> None:
    for dimension in DIMENSIONS:
        name = dimension.name
        least, most = getattr(bounds.minimum, name), getattr(bounds.maximum, name)
        request = getattr(resolved.requests, name)
        limit = getattr(resolved.limits, name)
        if least is not None and 0 < request < least:
            raise InvalidArgument(
                f"requests.{name}: {format_short(request, dimension.format)} is below the minimum "
                f"of namespace {bounds.namespace}, {dimension.format(least)}",
                hint=f"use --request-{dimension.flag} {dimension.format(least)} or more",
            )
        for side, amount in (("limit", limit), ("request", request)):
            if most is not None and amount is not None and amount > most:
                raise InvalidArgument(
                    f"{side}s.{name}: {format_short(amount, dimension.format, up=True)} is above "
                    f"the maximum of namespace {bounds.namespace}, {dimension.format(most)}",
                    hint=f"use --{side}-{dimension.flag} {dimension.format(most)} or less",
                )


def _require_ratio(resolved: ResolvedSpec, bounds: LimitRange) -> None:
    for name, ratio in bounds.ratios:
        dimension = BY_NAME[name]
        request, limit = getattr(resolved.requests, name), getattr(resolved.limits, name)
        most = request * parse_ratio(ratio, name) // 1
        if limit is not None and limit > most:
            raise InvalidArgument(
                f"limits.{name}: {format_short(limit, dimension.format, up=True)} is more than "
                f"{ratio} times the request of {format_short(request, dimension.format)}, which "
                f"namespace {bounds.namespace} allows",
                hint=f"lower --limit-{dimension.flag} or raise --request-{dimension.flag}",
            )


def _require_sound(row: LimitRange) -> None:
    """Refuse bounds between which nothing could be."""
    for dimension in DIMENSIONS:
        name = dimension.name
        least, most = getattr(row.minimum, name), getattr(row.maximum, name)
        default = getattr(row.default_requests, name) or getattr(row.default_limits, name)
        smallest = SMALLEST_LIMITS.get(name, 0)
        ordered = [
            ("minimum", least),
            ("default", default),
            ("maximum", most),
        ]
        given = [(word, amount) for word, amount in ordered if amount is not None]
        for (low_word, low), (high_word, high) in pairwise(given):
            if low > high:
                raise InvalidArgument(
                    f"{low_word}.{name}: {dimension.format(low)} is above the {high_word}, "
                    f"{dimension.format(high)}",
                    hint="the order is minimum, default, maximum",
                )
        if most is not None and most < smallest:
            raise InvalidArgument(
                f"maximum.{name}: {dimension.format(most)} is below the smallest limit, "
                f"{dimension.format(smallest)}",
                hint=f"for example {dimension.format(smallest)}",
            )
    _require_names(row)
    for name, ratio in row.ratios:
        if parse_ratio(ratio, f"{RATIOS}.{name}") < 1:
            raise InvalidArgument(
                f"{RATIOS}.{name}: {ratio} is below 1, and no limit is below its request",
                hint="for example 2",
            )


def _require_names(row: LimitRange) -> None:
    """Refuse a default where a request takes none."""
    for values, known, word in (
        (row.default_requests, DEFAULT_REQUESTS, "default_requests"),
        (row.default_limits, DEFAULT_LIMITS, "default_limits"),
    ):
        for dimension in DIMENSIONS:
            amount = getattr(values, dimension.name)
            if amount == 0:
                raise InvalidArgument(f"{word}.{dimension.name}: it must be greater than zero")
            if dimension.name not in known and amount is not None:
                raise InvalidArgument(
                    f"{word}.{dimension.name}: there is no such default",
                    hint=f"known are {', '.join(known)}",
                )
    if row.minimum.sandbox_slots is not None or row.maximum.sandbox_slots is not None:
        raise InvalidArgument("a request always takes one sandbox slot")
