"""Published ports: how they are written, and who holds those that a demand asks for.

Pure. A port is (protocol, port of the host, port of the sandbox); no two entries hold the same port
of the host under one protocol. Source: docs/decisions/0035-network.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from ledger import tables
from ledger.errors import InvalidArgument
from ledger.refusal import PUBLISHED_PORT, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ledger.refusal import Shortfall
    from ledger.reservation import Reservation
    from ledger.state import State
    from ledger.tables import Network, Port

PROTOCOLS = ("tcp", "udp")
MOST_PORTS = 64
"""Of one sandbox."""
_LAST_PORT = 65_535
SPELLED = "^([1-9][0-9]{0,4}):([1-9][0-9]{0,4})(?:/(tcp|udp))?$"
RULE = "it must be HOST:SANDBOX[/udp], each a port from 1 to 65535, for example 8080:80"


def parse(text: str) -> Port:
    """Read `HOST:SANDBOX`, with `/udp` behind it for a port of UDP.

    Raises:
        InvalidArgument: It is written otherwise, or a port is over 65535.
    """
    found = re.fullmatch(SPELLED[1:-1], text)
    if found is None or max(int(found[1]), int(found[2])) > _LAST_PORT:
        raise InvalidArgument(
            f"{text!r} is no published port: HOST:SANDBOX[/udp], each from 1 to {_LAST_PORT}",
            hint="for example 8080:80 or 5353:53/udp",
        )
    return found[3] or PROTOCOLS[0], int(found[1]), int(found[2])


def spelled(port: Port) -> str:
    """Return *port* as `parse` reads it; TCP goes without saying."""
    protocol, host, sandbox = port
    return f"{host}:{sandbox}" + ("" if protocol == PROTOCOLS[0] else f"/{protocol}")


def require_distinct(ports: Iterable[Port]) -> None:
    """Do nothing unless two of *ports* are the same of the host.

    Raises:
        InvalidArgument: Two are.
    """
    seen: set[str] = set()
    for port in ports:
        name = name_of(port)
        if name in seen:
            raise InvalidArgument(
                f"port {name} is published twice", hint="give each port of the host once"
            )
        seen.add(name)


def name_of(port: Port) -> str:
    """Return what is held of the host, such as `tcp/8080`."""
    return f"{port[0]}/{port[1]}"


def holders(view: State) -> dict[str, str]:
    """Return who holds which port of the host; entries that are gone hold none."""
    return {
        name_of(port): key
        for key, row in view.rows(tables.NETWORKS)
        if view.find_reservation(key) is not None
        for port in cast("Network", row).ports
    }


def shortfalls(view: State, ports: Iterable[Port]) -> list[Shortfall]:
    """Return one shortfall for each of *ports* that somebody holds."""
    listed = tuple(ports)
    held: Mapping[str, str] = holders(view) if listed else {}
    return [
        short(PUBLISHED_PORT, name, 1, 1, 0) for port in listed if (name := name_of(port)) in held
    ]


def holds(view: State, row: Reservation, name: str) -> bool:
    """Tell whether *row* holds the port of the host called *name*."""
    network = cast("Network | None", view.row(tables.NETWORKS, row.id))
    return network is not None and any(name_of(port) == name for port in network.ports)
