"""What an import has done so far, told now and then, and the limits that end it."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from axern.errors import HostFull, TemplateRefused
from axern.host import linux
from ledger.units import format_bytes, format_short

REPORT_EVERY_S = 0.5
_LOOK_EVERY_S = 0.1
_COUNT_PAUSE = 10
"""Counting what another program has written may take a tenth of the time."""
_BLOCK_BYTES = 512
"""The unit of st_blocks; stat(2)."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_STAY_BELOW = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_XDEV
_DEPTH_LIMIT = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a template may be, how much the disk must keep free, and until when it may take."""

    max_bytes: int
    max_entries: int
    reserve_bytes: int
    timeout_s: float


@dataclass(slots=True)
class Meter:
    """Counts entries and bytes of one step after the other below the folder *staging*."""

    staging: str
    limits: Limits
    tell: Callable[[dict[str, object]], None]
    clock: Callable[[], float] = time.monotonic
    step: str = ""
    entries: int = 0
    written_bytes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    _began_s: float = field(init=False)
    _look_at_s: float = 0.0
    _report_at_s: float = 0.0
    _count_at_s: float = 0.0

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def begin(self, step: str) -> None:
        """Start counting anew for *step*, and tell so."""
        self.step, self.entries, self.written_bytes = step, 0, 0
        self._report_at_s = self._look_at_s = 0.0
        self.look()

    def add(self, *, entries: int = 0, written_bytes: int = 0) -> None:
        """Count what this program has just written.

        Raises:
            TemplateRefused: It is more than a template may have, or took too long.
            HostFull: The disk keeps less free than its reserve.
        """
        self.entries += entries
        self.written_bytes += written_bytes
        self._require_within()
        self.look()

    def look(self) -> None:
        """Check time and disk, if that is due, and tell how far it is; raises as `add` does."""
        now_s = self.clock()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _LOOK_EVERY_S
        if now_s - self._began_s > self.limits.timeout_s:
            raise TemplateRefused(
                f"the import took longer than {self.limits.timeout_s:g} s (template_timeout)",
                hint="raise template_timeout in the configuration",
            )
        disk = os.statvfs(self.staging)
        free_bytes = disk.f_bavail * disk.f_frsize
        if free_bytes < self.limits.reserve_bytes:
            raise HostFull(
                f"{_short(free_bytes)} are free on the disk of the templates, and "
                f"{_short(self.limits.reserve_bytes)} must stay free "
                "(system_reserve_storage)",
                hint="make room, or import something smaller",
            )
        if now_s >= self._report_at_s:
            self._report_at_s = now_s + REPORT_EVERY_S
            self.tell({"step": self.step, "entries": self.entries, "bytes": self.written_bytes})

    def watch(self, folder: str) -> None:
        """Count what another program has written below *folder*, if that is due; raises as `add`.

        *folder* need not exist yet, and may change while it is counted.
        """
        now_s = self.clock()
        if now_s >= self._count_at_s:
            self.entries, self.written_bytes = _count(folder)
            self._require_within()
            taken_s = self.clock() - now_s
            self._count_at_s = self.clock() + max(_LOOK_EVERY_S, _COUNT_PAUSE * taken_s)
        self.look()

    def _require_within(self) -> None:
        if self.entries > self.limits.max_entries:
            raise TemplateRefused(
                f"it has more than {self.limits.max_entries:,} entries (template_max_entries), "
                f"as found in step {self.step}",
                hint="raise template_max_entries in the configuration, or import something smaller",
            )
        if self.written_bytes > self.limits.max_bytes:
            raise TemplateRefused(
                f"it has more than {_short(self.limits.max_bytes)} (template_max), "
                f"as found in step {self.step}",
                hint="raise template_max in the configuration, or import something smaller",
            )


def _count(folder: str) -> tuple[int, int]:
    """Return entries and bytes on the disk below *folder*; what vanishes meanwhile is not counted.

    Folders deeper than any template may have are counted, and not what is in them.
    """
    try:
        top_fd = os.open(folder, _OPEN_FOLDER | os.O_CLOEXEC)
    except OSError:
        return 0, 0
    entries = used_bytes = 0
    levels = [(top_fd, os.listdir(top_fd))]
    while levels:
        folder_fd, names = levels[-1]
        if not names:
            os.close(folder_fd)
            levels.pop()
            continue
        name = names.pop()
        try:
            found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            entries += 1
            used_bytes += found.st_blocks * _BLOCK_BYTES
            if stat.S_ISDIR(found.st_mode) and len(levels) < _DEPTH_LIMIT:
                inner_fd = linux.openat2(folder_fd, name, _OPEN_FOLDER, resolve=_STAY_BELOW)
                levels.append((inner_fd, os.listdir(inner_fd)))
        except OSError:
            continue
    return entries, used_bytes


def _short(amount_bytes: int) -> str:
    return format_short(amount_bytes, format_bytes)
