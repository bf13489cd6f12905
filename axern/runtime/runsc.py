"""runsc: gVisor, a kernel in a process; only what differs from runc is said here."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass

from axern.errors import ProgramError, ProgramNotExecutable, ProgramNotFound
from axern.runtime import command
from ledger.tables import BRIDGE, HOST_NETWORK, NO_NETWORK

_NETWORKS = {NO_NETWORK: "none", BRIDGE: "sandbox", HOST_NETWORK: "host"}
"""As runsc calls them: `sandbox` is its own TCP/IP stack, at the interface it finds."""
_COVERED = (
    *("/usr/bin/unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c"),
    'mount -t tmpfs -o ro none /proc/sys/net && exec "$@"',
    "start",
)
"""Builds up to 2023 refuse the host's own network namespace, and take each for that one in which
/proc/sys/net/core/rmem_default exists, which it does in all of them in a kernel of 6.9 and later.
So that they don't see it, its folder is covered for this one call.
Source: runsc/sandbox/network.go, isRootNS.
"""
# Texts of runsc/boot and pkg/sentry/loader; the numbers are Linux errnos as gVisor prints them.
_NOT_FOUND = re.compile(
    r"no such file or directory|error finding executable|executable file not found"
)
_NOT_EXECUTABLE = re.compile(r"permission denied|exec format error|is a directory|not executable")


@dataclass(frozen=True, slots=True)
class Runsc:
    """The `runsc` program and its state folder.

    The platform is the program's own default: Debian's build has ptrace and kvm, and kvm can hang
    where it is nested.
    """

    binary: str
    root: str
    name: str = "runsc"
    maps_ids: bool = False

    def options(self, network: str = NO_NETWORK) -> tuple[str, ...]:
        """Return the global options that every call needs: which network, none where not told."""
        return (f"--root={self.root}", f"--network={_NETWORKS[network]}")

    def create_options(
        self, overlay: str | None, *, enforced: bool, network: str = NO_NETWORK
    ) -> tuple[str, ...]:
        """Return the global options of `create`; a writable root keeps its changes in *overlay*.

        Only where limits are *enforced* it looks at control groups: it goes into the one that the
        bundle names, and tells its guest the memory limit of the one above.
        """
        options = self.options(network)
        if not enforced:
            options = (*options, "--ignore-cgroups")
        if overlay is None:
            return (*options, "--overlay2=none")
        changed_at_ns = os.stat(self.binary).st_mtime_ns
        return (*options, _overlay_option(self.binary, changed_at_ns) + overlay)

    def exec_options(self, inner_pid_file: str) -> tuple[str, ...]:
        """Return the options of `exec`: on the host there is only who waits for the process."""
        return ("--internal-pid-file", inner_pid_file)

    def signal_inside(self, sandbox_id: str, inner_pid: int, number: int) -> tuple[str, ...]:
        """Return the command that sends a signal to a process of the guest."""
        pid = f"--pid={inner_pid}"
        return (self.binary, *self.options(), "kill", pid, sandbox_id, str(number))

    def start_through(self, network: str) -> tuple[str, ...]:
        """Return the words before `start`: for one on the bridge, what makes old builds take it."""
        return _COVERED if network == BRIDGE else ()

    def program_error(self, program: str, stderr: str) -> ProgramError | None:
        """Read from *stderr* that the program is missing (127) or not executable (126)."""
        if program not in stderr:
            return None
        if _NOT_FOUND.search(stderr):
            return ProgramNotFound(program, "not found in the root file system")
        if _NOT_EXECUTABLE.search(stderr):
            return ProgramNotExecutable(program, "can't be executed")
        return None

    def state_names(self, entries: list[str], sandbox_id: str) -> list[str]:
        """Return the sandbox's files among *entries*: state, lock and control socket."""
        return [name for name in entries if sandbox_id in name]


@functools.cache
def _overlay_option(binary: str, changed_at_ns: int) -> str:
    """Ask this very program how it wants a folder for a root's changes to be named.

    Builds before 2023 take a bare path and would read `dir=` as a part of it. The time of change
    makes an upgraded program be asked again.
    """
    del changed_at_ns
    answer = command.run((binary, "flags"))
    return (
        "--overlay2=root:dir=" if "dir=/" in answer.stdout + answer.stderr else "--overlay2=root:"
    )
