"""The API's socket: what systemd hands over, else one of our own."""

from __future__ import annotations

import contextlib
import grp
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from axern.api import listener
from ledger.errors import InvalidArgument

if TYPE_CHECKING:
    from axern.host.systemd import Handover
    from axern.settings import Settings


def listening(settings: Settings, handover: Handover) -> listener.Listener:
    """Return the API's socket: what was handed over, else one of our own.

    Raises:
        InvalidArgument: What was handed over is not it, or it can't be made.
    """
    if not handover.listeners:
        return listener.listen(settings.socket_path, _group_id(settings.socket_group))
    if len(handover.listeners) > 1:
        raise InvalidArgument(
            f"LISTEN_FDS: {len(handover.listeners)} sockets were handed over, and one is wanted"
        )
    return listener.take_over(handover.listeners[0], settings.socket_path)


def second_key(handover: Handover) -> Handover:
    """Return the same handover once more: whoever serves on a socket closes it in the end."""
    return replace(handover, listeners=tuple(map(os.dup, handover.listeners)))


def shut(settings: Settings, handover: Handover) -> None:
    """Take the name of a socket of our own away; what was handed over is not ours."""
    if not handover.listeners:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(settings.socket_path)


def _group_id(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
