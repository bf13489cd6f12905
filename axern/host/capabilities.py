"""Capabilities: what a host can do or enforce, as rows of one table; each is proved, never assumed.

This module has the words and the values. Probes live in the modules that know their facility; the
table is put together in `axern.runtime.capability_table`, which may know them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ADMISSION_ONLY = "admission-only"
"""Lost while sandboxes run: new ones that need it are refused."""
DEGRADE = "degrade"
"""The same, and the node is marked; what runs goes on."""
FAIL_STOP = "fail-stop"
"""The same, and what runs and stands on it is ended: its limit would no longer hold."""

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
    isn't even tried. `valid_ms` is None where no time can void the proof.
    """

    key: str
    title: str
    loss: str
    probe: Callable[[], str]
    identity: Callable[[], str]
    needs: tuple[str, ...] = ()
    valid_ms: int | None = VALID_MS
