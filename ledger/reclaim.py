"""What to do about entries whose owner is silent or whose time is over: a pure plan.

The plan never ends a sandbox's charge: it says where to look, what to stop and what to bury. Only
a lease without a sandbox ends by its deadline alone, since Axern has made nothing for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ledger import tables, tickets
from ledger.claims import has_expired
from ledger.reservation import (
    ACTIVE,
    EXPIRED,
    RETIRING,
    STALE,
    LivenessPolicy,
    liveness,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ledger.clock import Now
    from ledger.state import State
    from ledger.tables import Claim, RequestRecord, Ticket

REQUEST_LIFETIME_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Look:
    """Find out whether the owner of this silent entry lives."""

    reservation_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End this sandbox: its deadline has passed."""

    reservation_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndLease:
    """End the charge of this external lease: its deadline has passed."""

    reservation_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetRequests:
    """Drop these request records: they are older than `REQUEST_LIFETIME_MS`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndClaim:
    """Give up this claim: its time is over, and its namespace has best effort from now on."""

    claim_id: str


@dataclass(frozen=True, slots=True)
class EndTicket:
    """Take this ticket out of the queue: it has waited for as long as it would."""

    ticket_id: str


Action = Look | Stop | EndLease | ForgetRequests | EndClaim | EndTicket


def plan(
    state: State,
    beats: Mapping[str, int],
    now: Now,
    policy: LivenessPolicy,
    grace_until_monotonic_ms: int = 0,
) -> tuple[Action, ...]:
    """Return what to do now, in the order of the entries.

    Args:
        state: The published state.
        beats: Last heartbeat by reservation id, on CLOCK_MONOTONIC of this boot.
        now: The clocks.
        policy: The windows.
        grace_until_monotonic_ms: Until then silence counts for nothing: after a restart, a suspend
            or a gap in the daemon's own ticks, owners had no chance to beat.
    """
    in_grace = now.monotonic_ms < grace_until_monotonic_ms
    return (
        *_entry_actions(state, beats, now, policy, in_grace=in_grace),
        *_request_actions(state, now),
        *_claim_actions(state, now),
        *_ticket_actions(state, now),
    )


def _entry_actions(
    state: State, beats: Mapping[str, int], now: Now, policy: LivenessPolicy, *, in_grace: bool
) -> Iterator[Action]:
    for reservation in state.reservations():
        standing = liveness(reservation, beats.get(reservation.id), now, policy)
        # Without a deadline, only silence makes an entry expire, and in grace silence is nothing.
        by_silence = standing == STALE or reservation.expires_boottime_ms is None
        if standing == ACTIVE or (by_silence and in_grace):
            continue
        if standing == EXPIRED and not reservation.is_sandbox:
            yield EndLease(reservation.id, standing)
        elif by_silence:
            yield Look(reservation.id, standing)
        elif reservation.phase != RETIRING:
            yield Stop(reservation.id, standing)


def _request_actions(state: State, now: Now) -> Iterator[ForgetRequests]:
    oldest_ms = now.boottime_ms - REQUEST_LIFETIME_MS
    keys = tuple(
        key
        for key, row in state.rows(tables.REQUESTS)
        if cast("RequestRecord", row).created_boottime_ms <= oldest_ms
    )
    if keys:
        yield ForgetRequests(keys)


def _claim_actions(state: State, now: Now) -> Iterator[EndClaim]:
    for key, row in state.rows(tables.CLAIMS):
        if has_expired(cast("Claim", row), now):
            yield EndClaim(key)


def _ticket_actions(state: State, now: Now) -> Iterator[EndTicket]:
    for key, row in state.rows(tables.TICKETS):
        if tickets.has_expired(cast("Ticket", row), now):
            yield EndTicket(key)
