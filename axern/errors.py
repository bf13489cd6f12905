"""Errors of everything above the ledger: the kernel's, the runtimes' and the client's."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ledger.errors import AxernError

STDERR_TAIL_LINES = 5
"""Lines of a failed program's standard error that its message repeats."""


class HostError(AxernError):
    """The kernel said no; carries the call, the path, `errno` and the text that was written.

    `errno` is None where no system call failed but its answer was not acceptable.
    """

    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        syscall: str,
        path: str | None = None,
        errno: int | None = None,
        data: str | None = None,
        hint: str | None = None,
    ) -> None:
        reason = f": {os.strerror(errno)}" if errno is not None else ""
        super().__init__(f"{message}{reason}", hint=hint)
        self.syscall = syscall
        self.path = path
        self.errno = errno
        self.data = data


class CgroupError(HostError):
    """A control group could not be made, read, emptied or removed."""


class MountError(HostError):
    """A mount could not be made or undone."""


class FilestoreError(HostError):
    """A sandbox's folder could not be made, measured or removed."""


class QuotaError(HostError):
    """A project quota could not be set, read or cleared, or is not as it was set."""

    code = "storage_reserve_error"


class NetworkError(HostError):
    """An interface, address, route or firewall rule could not be made, read or removed."""


class ProcessError(HostError):
    """A process is not where it must be."""


class CapabilityMissing(HostError):
    """The host lacks something without which nothing can be launched, such as cgroup v2."""

    code = "node_selection_error"


class NotProvedGone(HostError):
    """Something of a sandbox is still there, so that it must stay charged; `leftovers` names it."""

    def __init__(self, sandbox_id: str, leftovers: Sequence[str]) -> None:
        super().__init__(
            f"sandbox {sandbox_id} is not proved gone: {'; '.join(leftovers)}",
            syscall="bury",
            hint="it stays charged and is tried again; look at it with: axern reservations",
        )
        self.sandbox_id = sandbox_id
        self.leftovers = tuple(leftovers)


class RuntimeFailure(AxernError):
    """A program that serves a sandbox failed: the runtime, the monitor or a helper."""

    code = "runtime_start_error"


class CommandFailed(RuntimeFailure):
    """A program ended with a code other than 0; negative codes are signals.

    `stderr` is the end of what it said, for the daemon's log and the user's message.
    """

    def __init__(self, argv: Sequence[str], exit_code: int, stderr: str) -> None:
        tail = " | ".join(stderr.strip().splitlines()[-STDERR_TAIL_LINES:])
        super().__init__(f"{os.path.basename(argv[0])} ended with {exit_code}: {tail}")
        self.argv = tuple(argv)
        self.exit_code = exit_code
        self.stderr = stderr


class CommandTimeout(RuntimeFailure):
    """A program did not end within its limit and was killed."""

    def __init__(self, argv: Sequence[str], timeout_s: float) -> None:
        super().__init__(f"{os.path.basename(argv[0])} did not end within {timeout_s:g} s")
        self.argv = tuple(argv)
        self.timeout_s = timeout_s


class MonitorFailed(RuntimeFailure):
    """The monitor did not report a created sandbox."""


class RootfsRefused(RuntimeFailure):
    """A root file system can't be used safely with this runtime."""


class TemplateRefused(AxernError):
    """A source can't become a template: hostile, damaged, too large, or changed meanwhile."""

    code = "invalid_argument"


class HostFull(AxernError):
    """Going on would leave the host less free space than its reserve."""

    code = "busy"


class HostUnproved(AxernError):
    """What a request needs of the host is being proved just now; asking again helps."""

    code = "busy"


class ProgramError(RuntimeFailure):
    """The workload's program can't be started; `exit_code` is what a shell would give."""

    exit_code: int

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"{program}: {reason}")
        self.program = program


class ProgramNotExecutable(ProgramError):
    """The program was found in the root file system but can't be executed."""

    exit_code = 126


class ProgramNotFound(ProgramError):
    """The root file system holds no such program."""

    exit_code = 127


class ClientError(AxernError):
    """The command line could not talk to the daemon."""

    code = "daemon_unreachable"


class DaemonUnreachable(ClientError):
    """No socket, nobody behind it, or no answer in time."""


class OutputIncomplete(ClientError):
    """Something of a run's output was dropped before it could be handed on."""

    code = "output_incomplete"


class LeaseLost(ClientError):
    """A lease ended while somebody relied on it: its time was over, or another one took it."""

    code = "lease_lost"


class ProtocolError(ClientError):
    """The daemon's answer could not be understood."""

    code = "internal_error"
