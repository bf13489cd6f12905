"""Axern admits, launches and buries sandboxes on one host.

`axern.Client` and `axern.AsyncClient` ask its daemon from Python (docs/sdk.md). They are loaded
when they are first named: the daemon and the command line do without.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from axern.sdk import (
        AxernError,
        Client,
        DaemonUnreachable,
        Granted,
        InvalidArgument,
        Lease,
        LeaseLost,
        NotFound,
        PermissionDenied,
        Refused,
        RequestIdConflict,
        RunResult,
        StateConflict,
    )
    from axern.sdk.aio import AsyncClient, AsyncLease

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AsyncLease",
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
    "__version__",
]
_HOMES = {"AsyncClient": "axern.sdk.aio", "AsyncLease": "axern.sdk.aio"}

if not TYPE_CHECKING:  # a checker has the names above, and should miss all others

    def __getattr__(name: str) -> object:
        """Return what `__all__` names, loading its module."""
        if name not in __all__:
            raise AttributeError(f"module 'axern' has no attribute {name!r}")
        found: object = getattr(__import__(_HOMES.get(name, "axern.sdk"), fromlist=[name]), name)
        globals()[name] = found
        return found
