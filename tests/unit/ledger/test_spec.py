"""What an omitted request or limit becomes, and which specs are refused."""

from dataclasses import replace

import pytest

from ledger.errors import InvalidArgument
from ledger.resources import OptionalResources, Resources
from ledger.spec import Defaults, ResolvedSpec, ResourceSpec, resolve
from tests.unit.ledger.samples import GIB, MIB


def resolved(
    requests: OptionalResources | None = None,
    limits: OptionalResources | None = None,
    *,
    rootfs_readonly: bool = False,
    runtime: str = "runc",
    defaults: Defaults | None = None,
) -> ResolvedSpec:
    spec = ResourceSpec(requests or OptionalResources(), limits or OptionalResources())
    return resolve(spec, defaults or Defaults(), rootfs_readonly=rootfs_readonly, runtime=runtime)


def test_nothing_given() -> None:
    assert resolved() == ResolvedSpec(
        Resources(500, 4 * GIB, 256 * MIB, 0, 1),
        OptionalResources(None, None, 256 * MIB),
    )


def test_a_request_follows_its_limit() -> None:
    made = resolved(limits=OptionalResources(250, 512 * MIB, GIB))
    assert made.requests == Resources(250, 512 * MIB, GIB, 0, 1)
    assert made.limits == OptionalResources(250, 512 * MIB, GIB)


def test_a_request_stands_and_sets_no_limit() -> None:
    made = resolved(requests=OptionalResources(2000, GIB, 100 * MIB, 8 * GIB))
    assert made.requests == Resources(2000, GIB, 100 * MIB, 8 * GIB, 1)
    assert made.limits == OptionalResources(None, None, 256 * MIB)


def test_defaults_can_be_set() -> None:
    made = resolved(defaults=Defaults(100, GIB, 2 * MIB))
    assert made.requests == Resources(100, GIB, 2 * MIB, 0, 1)


def test_a_read_only_root_has_no_storage() -> None:
    made = resolved(rootfs_readonly=True)
    assert made.requests.ephemeral_storage_bytes == 0
    assert made.limits.ephemeral_storage_bytes is None
    zero = OptionalResources(ephemeral_storage_bytes=0)
    assert resolved(zero, zero, rootfs_readonly=True) == made


def test_a_read_only_root_refuses_storage_with_both_values() -> None:
    with pytest.raises(InvalidArgument, match="request 0B, limit 1GiB"):
        resolved(limits=OptionalResources(ephemeral_storage_bytes=GIB), rootfs_readonly=True)
    with pytest.raises(InvalidArgument, match="request 1MiB, limit 0B"):
        resolved(OptionalResources(ephemeral_storage_bytes=MIB), rootfs_readonly=True)


def test_a_storage_request_over_the_default_limit_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"requests\.ephemeral_storage_bytes .*256MiB"):
        resolved(OptionalResources(ephemeral_storage_bytes=300 * MIB))


def test_a_request_over_its_limit_names_both() -> None:
    with pytest.raises(InvalidArgument, match=r"requests\.cpu_milli .* request 2, limit 1$"):
        resolved(OptionalResources(cpu_milli=2000), OptionalResources(cpu_milli=1000))
    with pytest.raises(InvalidArgument, match=r"requests\.memory_bytes .*2GiB.*1GiB"):
        resolved(OptionalResources(memory_bytes=2 * GIB), OptionalResources(memory_bytes=GIB))
    over = OptionalResources(memory_bytes=2 * GIB + 1), OptionalResources(memory_bytes=2 * GIB - 1)
    with pytest.raises(InvalidArgument, match=r"request 2\.01GiB, limit 1\.99GiB$"):
        resolved(*over)


@pytest.mark.parametrize("amount", [0, -1, -(2**60)])
@pytest.mark.parametrize("side", ["requests", "limits"])
@pytest.mark.parametrize(
    "name", ["cpu_milli", "memory_bytes", "ephemeral_storage_bytes", "gpu_memory_bytes"]
)
def test_zero_and_less_are_refused(side: str, name: str, amount: int) -> None:
    values = replace(OptionalResources(), **{name: amount})
    with pytest.raises(InvalidArgument, match=rf"{side}\.{name}: {amount} "):
        resolved(**{side: values})  # type: ignore[arg-type]  # one of the two sides


def test_gpu_memory_has_no_limit() -> None:
    with pytest.raises(InvalidArgument, match="GPU memory has a request only"):
        resolved(limits=OptionalResources(gpu_memory_bytes=GIB))


@pytest.mark.parametrize(
    ("name", "smallest", "runtime"),
    [
        ("cpu_milli", 5, "runc"),
        ("memory_bytes", 16 * MIB, "runc"),
        ("memory_bytes", 64 * MIB, "runsc"),
        ("ephemeral_storage_bytes", MIB, "runc"),
    ],
)
def test_the_smallest_limits(name: str, smallest: int, runtime: str) -> None:
    enough = replace(OptionalResources(), **{name: smallest})
    assert getattr(resolved(limits=enough, runtime=runtime).requests, name) == smallest
    short = replace(OptionalResources(), **{name: smallest - 1})
    with pytest.raises(InvalidArgument, match="below the smallest limit") as caught:
        resolved(limits=short, runtime=runtime)
    assert caught.value.hint is not None
    assert caught.value.hint.endswith("or more")


def test_an_update_of_the_spec_alone_re_resolves() -> None:
    """`update --limit-memory 1GiB` works on a default service: its request was never the user's."""
    spec = ResourceSpec()
    updated = replace(spec, limits=replace(spec.limits, memory_bytes=GIB))
    made = resolve(updated, Defaults(), rootfs_readonly=False, runtime="runc")
    assert (made.requests.memory_bytes, made.limits.memory_bytes) == (GIB, GIB)
