"""Known holes of the runtimes, by version: a warning, since a distribution may have closed one.

A distribution closes holes without a new number upstream, so that a version tells only what must be
looked up: the package's own changelog decides. The user namespace that every runc sandbox is in, a
fixed working folder and a terminal that is never there soften all of runc's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = re.compile(r"\d+")
_DATE = re.compile(r"(?<!\d)20\d{6}(?!\d)")
"""What gVisor's versions are, wherever a distribution puts it."""


@dataclass(frozen=True, slots=True)
class Hole:
    """One hole: open below the version `fixed_in`; of several, one for each line of releases.

    `since` is the first version that has it. `source` is the advisory that says so.
    """

    name: str
    runtime: str
    what: str
    fixed_in: tuple[str, ...]
    source: str
    since: str = "0"


HOLES = (
    Hole(
        "CVE-2019-5736",
        "runc",
        "the program itself could be overwritten from inside",
        ("1.0.0-rc7",),
        "GHSA-gxmr-w5mj-v8hh",
    ),
    Hole(
        "CVE-2021-30465",
        "runc",
        "a mount could be led through an exchanged link",
        ("1.0.0-rc95",),
        "GHSA-c3xm-pvg7-gh7r",
    ),
    Hole(
        "CVE-2024-21626",
        "runc",
        "an open folder of the host leaked into the sandbox",
        ("1.1.12",),
        "GHSA-xr7r-f8xq-vfvv",
        "1.0.0-rc93",
    ),
    Hole(
        "CVE-2024-45310",
        "runc",
        "empty files and folders could be made on the host",
        ("1.1.14", "1.2.0-rc.3"),
        "GHSA-jfvp-7x6p-h2pv",
    ),
    Hole(
        "CVE-2025-31133",
        "runc",
        "masked paths could be made to point elsewhere",
        ("1.2.8", "1.3.3", "1.4.0-rc.3"),
        "GHSA-9493-h29p-rfm2",
    ),
    Hole(
        "CVE-2025-52565",
        "runc",
        "the mount of the console could be made to point elsewhere",
        ("1.2.8", "1.3.3", "1.4.0-rc.3"),
        "GHSA-qw9x-cqr3-wc7r",
        "1.0.0-rc3",
    ),
    Hole(
        "CVE-2025-52881",
        "runc",
        "writes to /proc could be sent elsewhere",
        ("1.2.8", "1.3.3", "1.4.0-rc.3"),
        "GHSA-cgrx-mc8f-2prm",
    ),
    Hole(
        "CVE-2026-41579",
        "runc",
        "a link for /dev in a root file system was followed",
        ("1.3.6", "1.4.3", "1.5.0-rc.3"),
        "runc 1.3.6",
    ),
    Hole(
        "CVE-2025-2713",
        "runsc",
        "rights on files were not checked until the first fork",
        ("20250319",),
        "gVisor release-20250319.0",
    ),
    Hole(
        "CVE-2026-96812",
        "runsc",
        "a character device handed in could lead to root on the host",
        ("20261001",),  # fixed in September; a release of that month may have it or not
        "gVisor commit 573a9e73cf844f",
    ),
)


def open_in(runtime: str, version: str) -> tuple[Hole, ...]:
    """Return the holes that *version* of *runtime* has upstream; all, where it can't be read."""
    return tuple(hole for hole in HOLES if hole.runtime == runtime and _is_open(hole, version))


def _is_open(hole: Hole, version: str) -> bool:
    mine = ordered(version)
    if not mine:
        return True
    if mine < ordered(hole.since):
        return False
    fixes = sorted(map(ordered, hole.fixed_in))
    same_line = [fix for fix in fixes if fix[:2] == mine[:2]]
    return mine < (same_line[0] if same_line else fixes[-1])


def ordered(version: str) -> tuple[int, ...]:
    """Return *version* in a form that sorts: 1.0.0-rc7 before 1.0.0, gVisor's by their date.

    What stands behind `+` or `~` is a distribution's own and says nothing of the code upstream.
    """
    date = _DATE.search(version)
    if date is not None:
        return (int(date[0]),)
    number, _, candidate = re.split(r"[+~]", version, maxsplit=1)[0].partition("-")
    numbers = [int(digits) for digits in _NUMBER.findall(number)]
    if not numbers:
        return ()
    rank = [int(digits) for digits in _NUMBER.findall(candidate)]
    return (*numbers, *([0, *rank] if rank else [1]))
