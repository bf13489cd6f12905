"""What the body of a batch may hold: operations on leases, all or none or each for itself."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from axern.api.schema import Body, HeartbeatRequest, RequestId, ReserveRequest
from ledger.release import LONGEST_REASON

OPERATIONS_LIMIT = 256
RESERVATION_ID = r"^[0-9a-f]{32}$"

ReservationId = Annotated[str, Field(pattern=RESERVATION_ID)]


class BatchRelease(Body):
    """Release one entry, if nothing of it runs."""

    id: ReservationId
    reason: Annotated[str, Field(max_length=LONGEST_REASON)] | None = None
    request_id: RequestId | None = None


class BatchHeartbeat(HeartbeatRequest):
    """Say that the owner of one lease is alive."""

    id: ReservationId


class BatchOperation(Body):
    """One of reserve, release and heartbeat."""

    reserve: ReserveRequest | None = None
    release: BatchRelease | None = None
    heartbeat: BatchHeartbeat | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"it must have one of {', '.join(type(self).model_fields)}, and has {len(given)}"
            )
        if self.reserve and self.reserve.wait_for_capacity_ms:
            raise ValueError("what is in a batch does not wait: ask for it by itself")
        return self


class BatchRequest(Body):
    """Many operations in one commit: `all` or none of them, or `each` for itself.

    Operations without a request id of their own have `<request_id>/<index>`.
    """

    mode: Literal["all", "each"]
    request_id: RequestId | None = None
    operations: Annotated[list[BatchOperation], Field(min_length=1, max_length=OPERATIONS_LIMIT)]
