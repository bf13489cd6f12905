"""The bodies of the busiest routes, read in one step where nothing about them is unusual.

What is read here has the values that `schema` reads from the same bytes. Whatever that might refuse
or read in another way is left to it: a reader returns None for an unknown field, an explicit null,
an escaped character, a key that stands twice.
The last is found by counting: without a backslash every quote begins or ends a key or a text, so a
body has as many quotes as its values account for, or something was given twice.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from axern.api.batch_schema import OPERATIONS_LIMIT, RESERVATION_ID
from axern.api.schema import (
    DNS_LABEL,
    LONGEST_MS,
    LONGEST_NAME,
    LONGEST_TOKEN,
    REQUEST_ID,
    is_printable,
)
from ledger.release import LONGEST_REASON
from ledger.resources import OptionalResources
from ledger.spec import ResourceSpec
from ledger.tables import DEFAULT_NAMESPACE
from ledger.units import MAX_INTEGER


def _whole(pattern: str) -> Meta:
    """Return *pattern* as a rule; `$` would let a line break stand behind it."""
    return Meta(pattern=pattern.removesuffix("$") + r"\Z")


Amount = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Milliseconds = Annotated[int, Meta(ge=1, le=LONGEST_MS)]
Label = Annotated[str, _whole(DNS_LABEL)]
RequestId = Annotated[str, _whole(REQUEST_ID)]
ReservationId = Annotated[str, _whole(RESERVATION_ID)]
_A_KEY, _A_TEXT = 2, 4
"""The quotes of a key, and of a key and the text behind it."""


class Amounts(Struct, forbid_unknown_fields=True, gc=False):
    """As `schema.Amounts`."""

    cpu_milli: Amount | None = None
    memory_bytes: Amount | None = None
    ephemeral_storage_bytes: Amount | None = None
    gpu_memory_bytes: Amount | None = None

    def given(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Return them in the order of the dimensions."""
        return (
            self.cpu_milli,
            self.memory_bytes,
            self.ephemeral_storage_bytes,
            self.gpu_memory_bytes,
        )


class Reserve(Struct, forbid_unknown_fields=True, gc=False):
    """As `schema.ReserveRequest`, without what a lease is seldom asked for with."""

    request_id: RequestId | None = None
    namespace: Label = ""  # until `settled`
    requests: Amounts | None = None
    ttl_ms: Milliseconds | None = None
    name: Annotated[str, Meta(max_length=LONGEST_NAME)] = ""
    max_lifetime_ms: Milliseconds | None = None
    owner_process: ClassVar[None] = None
    parent: ClassVar[None] = None
    wait_for_capacity_ms: ClassVar[None] = None
    priority: ClassVar[None] = None

    def spec(self) -> ResourceSpec:
        """Return the resources as the ledger's value."""
        if self.requests is None:
            return ResourceSpec()
        return _spec_of(*self.requests.given())

    def document(self) -> dict[str, Any]:
        """Return all that was asked for, as `schema.ReserveRequest` does."""
        return {
            "request_id": self.request_id,
            "namespace": self.namespace,
            "requests": self.requests or Amounts(),
            "limits": Amounts(),
            "ttl_ms": self.ttl_ms,
            "name": self.name,
            "max_lifetime_ms": self.max_lifetime_ms,
            "owner_process": None,
        }

    def settled(self) -> int:
        """Let what was left out have its default, and return how many quotes the rest takes.

        Below zero where it must not be read here.
        """
        quotes = _A_TEXT * (self.request_id is not None)
        quotes += _A_KEY * ((self.ttl_ms is not None) + (self.max_lifetime_ms is not None))
        if self.namespace:
            quotes += _A_TEXT
        else:
            self.namespace = DEFAULT_NAMESPACE
        if self.requests is not None:
            left_out = self.requests.given().count(None)
            quotes += _A_KEY * (5 - left_out)
        if self.name:
            quotes += _A_TEXT
            if not is_printable(self.name):
                return -1
        return quotes


@lru_cache(1024)
def _spec_of(*given: int | None) -> ResourceSpec:
    """Return the spec of these requests; many ask for the same, and share one value."""
    return ResourceSpec(OptionalResources(*given))


class Release(Struct, forbid_unknown_fields=True, gc=False):
    """As `batch_schema.BatchRelease`."""

    id: ReservationId
    reason: Annotated[str, Meta(max_length=LONGEST_REASON)] | None = None
    request_id: RequestId | None = None

    def document(self) -> dict[str, Any]:
        """Return all that was asked for, as `batch_schema.BatchRelease` does."""
        return {"id": self.id, "reason": self.reason, "request_id": self.request_id}

    def quotes(self) -> int:
        """Return how many quotes it takes."""
        return _A_TEXT * (1 + (self.reason is not None) + (self.request_id is not None))


class Heartbeat(Struct, forbid_unknown_fields=True, gc=False):
    """As `batch_schema.BatchHeartbeat`."""

    id: ReservationId
    token: Annotated[str, Meta(max_length=LONGEST_TOKEN)]
    ttl_ms: Milliseconds | None = None

    def quotes(self) -> int:
        """Return how many quotes it takes."""
        return 2 * _A_TEXT + _A_KEY * (self.ttl_ms is not None)


class Operation(Struct, forbid_unknown_fields=True, gc=False):
    """As `batch_schema.BatchOperation`."""

    reserve: Reserve | None = None
    release: Release | None = None
    heartbeat: Heartbeat | None = None

    def settled(self) -> int:
        """Do and return what `Reserve.settled` does."""
        reserve, release, heartbeat = self.reserve, self.release, self.heartbeat
        if reserve is not None and release is None and heartbeat is None:
            quotes = reserve.settled()
        elif release is not None and reserve is None and heartbeat is None:
            quotes = release.quotes()
        elif heartbeat is not None and reserve is None and release is None:
            quotes = heartbeat.quotes()
        else:
            return -1
        return quotes if quotes < 0 else quotes + _A_KEY


class Batch(Struct, forbid_unknown_fields=True, gc=False):
    """As `batch_schema.BatchRequest`."""

    mode: Literal["all", "each"]
    operations: Annotated[list[Operation], Meta(min_length=1, max_length=OPERATIONS_LIMIT)]
    request_id: RequestId | None = None


_decode_reserve = msgspec.json.Decoder(Reserve).decode
_decode_batch = msgspec.json.Decoder(Batch).decode


def reserve(body: bytes) -> Reserve | None:
    """Return *body* as what is asked of a lease, or None where `schema` has to read it."""
    if b"\\" in body:
        return None
    try:
        found = _decode_reserve(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.settled() == body.count(b'"') else None


def batch(body: bytes) -> Batch | None:
    """Return *body* as a batch, or None where `schema` has to read it."""
    if b"\\" in body:
        return None
    try:
        found = _decode_batch(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    quotes = _A_TEXT + _A_KEY + _A_TEXT * (found.request_id is not None)
    for operation in found.operations:
        taken = operation.settled()
        if taken < 0:
            return None
        quotes += taken
    return found if quotes == body.count(b'"') else None
