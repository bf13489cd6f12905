"""Axern from Python: leases, runs and what would fit, blocking or with asyncio.

Nothing of it loads a library; whoever imports the blocking half has no asyncio.
"""

from __future__ import annotations

from axern.errors import DaemonUnreachable, LeaseLost
from axern.sdk.client import Client, Lease
from axern.sdk.results import Granted, Refused, RunResult
from ledger.errors import (
    AxernError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RequestIdConflict,
    StateConflict,
)

__all__ = [
    "AxernError",
    "Client",
    "DaemonUnreachable",
    "Granted",
    "InvalidArgument",
    "Lease",
    "LeaseLost",
    "NotFound",
    "PermissionDenied",
    "Refused",
    "RequestIdConflict",
    "RunResult",
    "StateConflict",
]
