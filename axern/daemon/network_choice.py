"""What a request says of the network, as the ledger keeps it, or why that can't be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger import published
from ledger.errors import InvalidArgument
from ledger.tables import BRIDGE, NO_NETWORK, Network

if TYPE_CHECKING:
    from axern.api.schema import RunRequest


def of(body: RunRequest) -> Network | None:
    """Return what the ledger keeps, None for a sandbox without a network.

    Raises:
        InvalidArgument: A port is not written as one, or published where there is no bridge.
    """
    ports = tuple(published.parse(text) for text in body.publish)
    published.require_distinct(ports)
    if ports and body.network != BRIDGE:
        raise InvalidArgument(
            f"publish: ports are published on the bridge only, and network is {body.network}",
            hint="axern run --network bridge --publish HOST:SANDBOX",
        )
    return None if body.network == NO_NETWORK else Network(body.network, ports)
