"""Capabilities: what a host can do or enforce, as rows of one table; each is proved, never assumed.

This module has the words and the values. Probes live in the modules that know their facility; the
table is put together in `axern.runtime.capability_table`, which may know them all; what is known of
a row over time is `axern.host.standings`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from axern.errors import CapabilityMissing
from ledger.errors import AxernError

ADMISSION_ONLY = "admission-only"
"""Lost while sandboxes run: new ones that need it are refused."""
DEGRADE = "degrade"
"""The same, and the node is marked; what runs goes on."""
FAIL_STOP = "fail-stop"
"""The same, and what runs and stands on it is ended: its limit would no longer hold."""

AVAILABLE = "available"
PENDING = "pending"
PROBE_FAILED = "probe-failed"
PROBE_ERROR = "probe-error"
IDENTITY_CHANGED = "identity-changed"
EXPIRED = "expired"
RECOVERY_PENDING = "recovery-pending"
DEPENDENCY_UNAVAILABLE = "dependency-unavailable"
DISABLED = "disabled"
CODES = {
    AVAILABLE: "proved, and what the proof stands on was seen lately",
    PENDING: "not tried yet, or being tried",
    PROBE_FAILED: "the host can't; the message says why",
    PROBE_ERROR: "nothing could be told; tried again after 5 s, later up to 5 min",
    IDENTITY_CHANGED: "what the proof stood on was replaced, and it is being proved again",
    EXPIRED: "what the proof stands on was not seen for too long",
    RECOVERY_PENDING: "seen again once; a second time, 5 s later, is wanted",
    DEPENDENCY_UNAVAILABLE: "what it needs is absent",
    DISABLED: "the configuration rules it out",
}
"""Why a capability is present or absent, each with what it means."""

VALID_MS = 15_000
"""A proof counts as long as its identity was seen within this time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One capability: how it is proved, what the proof stands on, what its loss means.

    `probe` does it for real, once at the start and again when `identity` changes, never for a
    request. It returns in a few words what was proved. `CapabilityMissing` means a definite no, its
    message the exact reason and its hint the remedy; any other `AxernError` or `OSError` means
    that nothing could be told, and it is tried again.

    `identity` names what the proof stands on: boot, mount, folder, binary. It is read every few
    seconds and must be cheap; it raises like `probe`. `needs` are the keys without which the probe
    isn't even tried. `valid_ms` is None where no time can void the proof. `is_self_test` tells that
    the probe runs a sandbox: it may take a minute, and one success is enough to recover.
    `disabled` is why the configuration rules it out, if it does.
    """

    key: str
    title: str
    loss: str
    probe: Callable[[], str]
    identity: Callable[[], str]
    needs: tuple[str, ...] = ()
    valid_ms: int | None = VALID_MS
    is_self_test: bool = False
    disabled: str | None = None


@dataclass(frozen=True, slots=True)
class Capability:
    """What is known of a row at one moment; `present` is what admission looks at."""

    key: str
    title: str
    loss: str
    present: bool
    code: str
    message: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of them at one moment; `generation` grows by one with each change of any."""

    generation: int
    capabilities: tuple[Capability, ...]

    def present(self) -> tuple[str, ...]:
        """Return the keys of what is present, in the order of the table."""
        return tuple(item.key for item in self.capabilities if item.present)

    def find(self, key: str) -> Capability | None:
        """Return what is known of *key*, None where the table has no such row."""
        return next((item for item in self.capabilities if item.key == key), None)


@dataclass(frozen=True, slots=True)
class Proved:
    """It was done for real; of an identity, `message` is the identity itself."""

    message: str


@dataclass(frozen=True, slots=True)
class Denied:
    """A definite no."""

    message: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Unclear:
    """Nothing could be told."""

    message: str


Outcome = Proved | Denied | Unclear

_PASSING = (
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EINTR,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.ENOSPC,
)
"""What the kernel says when it lacks something for now, which is no word on what it can do."""


def attempt(call: Callable[[], str]) -> Outcome:
    """Call a probe or read an identity; what it raises is an outcome too."""
    try:
        return Proved(call())
    except CapabilityMissing as error:
        if error.errno in _PASSING:
            return Unclear(error.message)
        return Denied(error.message, error.hint)
    except AxernError as error:
        return Unclear(error.message)
    except OSError as error:
        return Unclear(f"{error.filename}: {error.strerror}" if error.filename else str(error))
