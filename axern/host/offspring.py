"""What binds a process to those that it starts; kept apart, since who starts one loads little."""

from __future__ import annotations

import ctypes
import signal

# include/uapi/linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of whatever our children leave behind, from now on."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Get the signal *number* when the thread that started us ends; our children don't inherit it.

    Whoever calls it looks afterwards whether that was too late: `os.getppid` tells.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
