"""What the body of a request about namespaces, quotas and claims may hold.

A field that is left out changes nothing, null takes a bound away.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from axern.api.schema import Body, Label, Milliseconds
from ledger.claims import CLAIM_TTL_MS
from ledger.dimensions import BY_NAME, DIMENSIONS
from ledger.limit_range import DEFAULT_LIMITS, DEFAULT_REQUESTS, LIMITED, RANGED
from ledger.units import MAX_INTEGER

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)
Amount = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Ratio = Annotated[str, Field(max_length=32)]


def _model(name: str, doc: str, names: tuple[str, ...], kind: Any) -> type[BaseModel]:
    fields: dict[str, Any] = {
        each: (kind, Field(None, description=f"{BY_NAME[each].label}")) for each in names
    }
    return create_model(name, __config__=_STRICT, __doc__=doc, **fields)


_ALL = tuple(each.name for each in DIMENSIONS)
Ceilings = _model("Ceilings", "Ceilings by dimension; null is unlimited.", _ALL, Amount | None)
ClaimAmounts = _model("ClaimAmounts", "Amounts by dimension; 0 is not claimed.", _ALL, Amount)
Bounds = _model("Bounds", "Bounds of one request by dimension.", RANGED, Positive | None)
DefaultRequests = _model(
    "DefaultRequests", "Requests of whoever gives none.", DEFAULT_REQUESTS, Positive | None
)
DefaultLimits = _model(
    "DefaultLimits", "Limits of whoever gives none.", DEFAULT_LIMITS, Positive | None
)
Ratios = _model(
    "Ratios", "How many times its request a limit may be: decimals.", LIMITED, Ratio | None
)


def given(model: BaseModel) -> dict[str, Any]:
    """Return the values that the client has sent, null among them."""
    return {name: getattr(model, name) for name in model.model_fields_set}


class NamespaceRequest(Body):
    """Make a namespace."""

    name: Label


class NamespaceUpdate(Body):
    """Change what one request of a namespace may be, and what stands in for what it omits."""

    default_requests: DefaultRequests = Field(default_factory=DefaultRequests)  # type: ignore[valid-type]  # made above
    default_limits: DefaultLimits = Field(default_factory=DefaultLimits)  # type: ignore[valid-type]
    minimum: Bounds = Field(default_factory=Bounds)  # type: ignore[valid-type]
    maximum: Bounds = Field(default_factory=Bounds)  # type: ignore[valid-type]
    ratios: Ratios = Field(default_factory=Ratios)  # type: ignore[valid-type]

    def edits(self) -> dict[str, dict[str, Any]]:
        """Return the changes as the ledger takes them."""
        return {name: given(getattr(self, name)) for name in self.model_fields_set}


class QuotaRequest(Body):
    """Change the ceilings that are named."""

    quota: Ceilings  # type: ignore[valid-type]


class ClaimRequest(Body):
    """Guarantee capacity to a namespace; without `ttl_ms` for a day, with null for ever."""

    namespace: Label
    amounts: ClaimAmounts  # type: ignore[valid-type]
    mode: Literal["hard", "advisory"] = "hard"
    ttl_ms: Milliseconds | None = CLAIM_TTL_MS


class ClaimUpdateRequest(Body):
    """Let a claim grow, shrink, change its mode, or last `ttl_ms` from now, with null for ever."""

    amounts: ClaimAmounts = Field(default_factory=ClaimAmounts)  # type: ignore[valid-type]
    mode: Literal["hard", "advisory"] | None = None
    ttl_ms: Milliseconds | None = None
