"""The process around the command line: signals and descriptors first, then the words."""

from __future__ import annotations

import gc
import os
import sys

from axern.cli.interrupt import leave_at_once

_OBJECTS_A_COLLECTION = 100_000
"""A command is over before it pays to look for garbage; one that stays still does so at times."""


def main() -> None:
    """Answer the command line, and end the process: there is nothing that Python need tidy up."""
    leave_at_once()
    gc.set_threshold(_OBJECTS_A_COLLECTION)
    _hold_standard_descriptors()
    from axern.cli.dispatch import answer

    os._exit(answer(sys.argv[1:]))


def _hold_standard_descriptors() -> None:
    """Open /dev/null where a standard descriptor is closed, so that no socket takes its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the kernel gives out the lowest free number


if __name__ == "__main__":
    main()
