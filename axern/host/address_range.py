"""The private range of the bridge: which one is free, and which address each lane has in it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from axern.errors import CapabilityMissing
from ledger.reservation import LANES

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = 19
"""8,192 addresses: one for each of the 4,096 lanes, and the gateway's."""
_CANDIDATES = IPv4Network("10.192.0.0/10")
"""Apart from the defaults of Docker (172.16/12, 192.168/16), podman (10.88/16) and Kubernetes
(10.96/12, 10.244/16, 10.42/15), and of most local networks."""
_FIRST_LANE = 2

Taken = tuple[IPv4Network, str]
"""A range that is in use, and by what."""


def gateway_of(addresses: IPv4Network) -> IPv4Address:
    """Return the host's own address in the range."""
    return addresses.network_address + 1


def address_of(addresses: IPv4Network, lane: int) -> IPv4Address:
    """Return the address of the sandbox that has *lane*.

    Raises:
        ValueError: There is no such lane.
    """
    if not 0 <= lane < LANES:
        raise ValueError(f"lane {lane} is not in 0..{LANES - 1}")
    return addresses.network_address + _FIRST_LANE + lane


def choose(taken: Iterable[Taken], wanted: str = "") -> IPv4Network:
    """Return the range that the configuration wants, else the first that meets none of *taken*.

    Raises:
        CapabilityMissing: The one that is wanted meets another, or all do.
    """
    used = tuple(taken)
    candidates = (IPv4Network(wanted),) if wanted else _CANDIDATES.subnets(new_prefix=PREFIX)
    for candidate in candidates:
        if collision(candidate, used) is None:
            return candidate
    met = collision(IPv4Network(wanted), used) if wanted else None
    raise CapabilityMissing(
        f"network_range {wanted} meets {met}"
        if met
        else f"each /{PREFIX} of {_CANDIDATES} meets a route of this host",
        syscall="netlink",
        hint="set network_range to a private range that nothing routes to, or leave it out",
    )


def collision(addresses: IPv4Network, taken: Iterable[Taken]) -> str | None:
    """Return what of *taken* meets *addresses*, in words, or None."""
    met = (f"{other} of {who}" for other, who in taken if addresses.overlaps(other))
    return next(met, None)
