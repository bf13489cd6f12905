"""Resolve a user's resource spec: fill in what was omitted and prove `0 < request <= limit`."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.errors import InvalidArgument
from ledger.quick import quick
from ledger.resources import BY_NAME, DIMENSIONS, OptionalResources, Resources
from ledger.units import format_bytes, format_short


@quick
@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """What the user wrote: None is omitted, which is not the same as zero."""

    requests: OptionalResources = OptionalResources()
    limits: OptionalResources = OptionalResources()


@dataclass(frozen=True, slots=True)
class Defaults:
    """What stands in for omitted values, in milli-cores and bytes, each > 0."""

    request_cpu_milli: int = 500
    request_memory_bytes: int = 4 * 1024**3
    limit_ephemeral_storage_bytes: int = 256 * 1024**2


@quick
@dataclass(frozen=True, slots=True)
class ResolvedSpec:
    """What is reserved and enforced: `requests` complete, `limits` with None for no cap."""

    requests: Resources
    limits: OptionalResources


SMALLEST_LIMITS = {
    "cpu_milli": 5,
    "memory_bytes": 16 * 1024**2,
    "ephemeral_storage_bytes": 1024**2,
}
"""Below these a sandbox can't start or the kernel can't hold the cap. Source: contract."""
SMALLEST_RUNSC_MEMORY_LIMIT_BYTES = 64 * 1024**2
_NO_LIMITS = OptionalResources()
_CAPPED = ("cpu_milli", "memory_bytes", "ephemeral_storage_bytes")


def resolve(
    spec: ResourceSpec, defaults: Defaults, *, rootfs_readonly: bool, runtime: str
) -> ResolvedSpec:
    """Return *spec* with every omitted value filled in.

    An omitted request follows its limit; without one it takes the default. A writable root always
    has a storage limit, a read-only root has none and refuses one.

    Args:
        spec: The user's words.
        defaults: The node's or the namespace's defaults.
        rootfs_readonly: Whether the sandbox writes to no root of its own.
        runtime: `runc` or `runsc`; the smallest memory limit depends on it.
    Raises:
        InvalidArgument: Zero, below the smallest limit, request over limit, or storage on a
            read-only root; the message names the field and both numbers.
    """
    requests, limits = spec.requests, spec.limits
    for name in (*_CAPPED, "gpu_memory_bytes"):
        for side, values in (("requests", requests), ("limits", limits)):
            amount = getattr(values, name)
            if amount is None or amount > 0 or (rootfs_readonly and name == _CAPPED[2]):
                continue
            raise InvalidArgument(
                f"{side}.{name}: {amount} is not valid: it must be greater than zero",
                hint="leave it out to take the default",
            )
    if limits.gpu_memory_bytes is not None:
        raise InvalidArgument("limits.gpu_memory_bytes: GPU memory has a request only, no limit")
    storage_request, storage_limit = _storage(spec, defaults, rootfs_readonly=rootfs_readonly)
    resolved = ResolvedSpec(
        requests=Resources(
            cpu_milli=requests.cpu_milli or limits.cpu_milli or defaults.request_cpu_milli,
            memory_bytes=requests.memory_bytes
            or limits.memory_bytes
            or defaults.request_memory_bytes,
            ephemeral_storage_bytes=storage_request,
            gpu_memory_bytes=requests.gpu_memory_bytes or 0,
            sandbox_slots=1,
        ),
        limits=OptionalResources(
            cpu_milli=limits.cpu_milli,
            memory_bytes=limits.memory_bytes,
            ephemeral_storage_bytes=storage_limit,
        ),
    )
    check(resolved, runtime)
    return resolved


def resolve_lease(spec: ResourceSpec, defaults: Defaults) -> ResolvedSpec:
    """Return the spec of a lease without a sandbox, with omitted CPU and memory filled in.

    There is no sandbox, so it takes no slot, and no limit that could be enforced; and no root to
    write to, so that storage is held only where it is asked for.

    Raises:
        InvalidArgument: A limit, or a request of zero.
    """
    requests = spec.requests
    if spec.limits != _NO_LIMITS or 0 in requests.amounts():
        _refuse_for_a_lease(spec)
    return ResolvedSpec(
        requests=Resources(
            requests.cpu_milli or defaults.request_cpu_milli,
            requests.memory_bytes or defaults.request_memory_bytes,
            requests.ephemeral_storage_bytes or 0,
            requests.gpu_memory_bytes or 0,
            0,
        ),
        limits=_NO_LIMITS,
    )


def _refuse_for_a_lease(spec: ResourceSpec) -> None:
    for dimension in DIMENSIONS:
        if getattr(spec.limits, dimension.name) is not None:
            raise InvalidArgument(
                f"limits.{dimension.name}: a lease has requests only: there is no sandbox whose "
                "limits could be enforced",
                hint="leave out the limits",
            )
        if getattr(spec.requests, dimension.name) == 0:
            raise InvalidArgument(
                f"requests.{dimension.name}: 0 is not valid: it must be greater than zero",
                hint="leave it out to take the default",
            )


def _storage(
    spec: ResourceSpec, defaults: Defaults, *, rootfs_readonly: bool
) -> tuple[int, int | None]:
    request = spec.requests.ephemeral_storage_bytes
    limit = spec.limits.ephemeral_storage_bytes
    if not rootfs_readonly:
        resolved_limit = limit or defaults.limit_ephemeral_storage_bytes
        return request or resolved_limit, resolved_limit
    if request or limit:
        raise InvalidArgument(
            "a read-only root writes nothing, so it takes no ephemeral storage: "
            f"request {format_short(request or 0, format_bytes, up=True)}, "
            f"limit {format_short(limit or 0, format_bytes)}",
            hint="leave out the ephemeral-storage flags or --rootfs-readonly",
        )
    return 0, None


def check(resolved: ResolvedSpec, runtime: str) -> None:
    """Do nothing if every limit of *resolved* can be held and is no less than its request.

    Raises:
        InvalidArgument: One is below the smallest, or below its request.
    """
    for name in _CAPPED:
        dimension = BY_NAME[name]
        request, limit = getattr(resolved.requests, name), getattr(resolved.limits, name)
        if limit is None:
            continue
        smallest = SMALLEST_LIMITS[name]
        if name == "memory_bytes" and runtime == "runsc":
            smallest = SMALLEST_RUNSC_MEMORY_LIMIT_BYTES
        if limit < smallest:
            raise InvalidArgument(
                f"limits.{name}: {format_short(limit, dimension.format)} is below "
                f"the smallest limit, {dimension.format(smallest)}",
                hint=f"use --limit-{dimension.flag} {dimension.format(smallest)} or more",
            )
        if request > limit:
            raise InvalidArgument(
                f"requests.{name} must be at most limits.{name}: "
                f"request {format_short(request, dimension.format, up=True)}, "
                f"limit {format_short(limit, dimension.format)}",
                hint=f"raise --limit-{dimension.flag} or lower --request-{dimension.flag}",
            )
