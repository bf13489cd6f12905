"""runc: Linux namespaces, with a user namespace so that root inside is nobody on the host."""

from __future__ import annotations

import re
from dataclasses import dataclass

from axern.errors import ProgramError, ProgramNotExecutable, ProgramNotFound
from ledger.tables import NO_NETWORK

# Texts of libcontainer/init_linux.go and Go's os/exec and syscall errors in runc 1.1 to 1.3.
_NOT_FOUND = re.compile(r"executable file not found|exec: .*no such file or directory")
_NOT_EXECUTABLE = re.compile(r"exec: .*(permission denied|is a directory|exec format error)")


@dataclass(frozen=True, slots=True)
class Runc:
    """The `runc` program and its state folder."""

    binary: str
    root: str
    name: str = "runc"
    maps_ids: bool = True

    def options(self, network: str = NO_NETWORK) -> tuple[str, ...]:
        """Return the global options that every call needs; the *network* is none of them."""
        del network
        return (f"--root={self.root}",)

    def create_options(
        self, overlay: str | None, *, enforced: bool, network: str = NO_NETWORK
    ) -> tuple[str, ...]:
        """Return the global options of `create`; layer and limits are no options with runc."""
        del overlay, enforced, network
        return self.options()

    def exec_options(self, inner_pid_file: str) -> tuple[str, ...]:
        """Return the options of `exec`: a process has a number on the host, too."""
        del inner_pid_file
        return ()

    def signal_inside(self, sandbox_id: str, inner_pid: int, number: int) -> None:
        """Return None: the host can do it."""
        del sandbox_id, inner_pid, number

    def start_through(self, network: str) -> tuple[str, ...]:
        """Return the words before `start`: none."""
        del network
        return ()

    def program_error(self, program: str, stderr: str) -> ProgramError | None:
        """Read from *stderr* that the program is missing (127) or not executable (126)."""
        if _NOT_FOUND.search(stderr):
            return ProgramNotFound(program, "not found in the root file system")
        if _NOT_EXECUTABLE.search(stderr):
            return ProgramNotExecutable(program, "can't be executed")
        return None

    def state_names(self, entries: list[str], sandbox_id: str) -> list[str]:
        """Return the sandbox's state folder if it is among *entries*."""
        return [name for name in entries if name == sandbox_id]
