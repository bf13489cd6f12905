"""What one sandbox is asked to be, and the few questions on which runtimes differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from axern.errors import ProgramError
from axern.host.cgroup_values import CgroupLimits
from ledger.tables import NO_NETWORK

if TYPE_CHECKING:
    from axern.runtime.connection import Connection
    from axern.runtime.storage import Quota

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a program without a slash is looked for if the workload's environment has no PATH."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One workload; `rootfs` is an absolute host path that is only ever read.

    `env` is ordered, names are unique. `lane` chooses the host ids of a runc sandbox. Neither
    `argv` nor `env` may reach the ledger or a log. `user` is as
    `runtime.user` takes it, None for root. Without `stdin` its standard input is /dev/null.
    `quota` limits what it writes and `limits` is what its control group holds, None where nothing
    of it is enforced. `gpu_device` is the UUID of its GPU. `connection` is its
    network, None for none.
    """

    sandbox_id: str
    runtime: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    rootfs: str
    rootfs_readonly: bool
    lane: int
    hostname: str
    user: str | None = None
    stdin: bool = False
    quota: Quota | None = None
    gpu_device: str | None = None
    limits: CgroupLimits | None = None
    connection: Connection | None = None

    @property
    def search_path(self) -> str:
        """The PATH that the workload's program is looked for in."""
        return dict(self.env).get("PATH", DEFAULT_PATH)


class Runtime(Protocol):
    """An OCI runtime: how its command line is put, and how its words are read."""

    @property
    def name(self) -> str:
        """`runc` or `runsc`."""

    @property
    def binary(self) -> str:
        """The absolute path of the program."""

    @property
    def root(self) -> str:
        """The folder in which it keeps the state of all its sandboxes."""

    @property
    def maps_ids(self) -> bool:
        """Whether root inside is another user on the host, by a user namespace."""

    def options(self, network: str = NO_NETWORK) -> tuple[str, ...]:
        """Return the global options that every call of the runtime needs.

        Those that make and start a sandbox must know its *network*: `none`, `bridge` or `host`.
        """

    def create_options(
        self, overlay: str | None, *, enforced: bool, network: str = NO_NETWORK
    ) -> tuple[str, ...]:
        """Return the global options of `create`; *overlay* is where a writable root is kept.

        Where limits are *enforced* it must put its processes into the group that the bundle names.
        """

    def exec_options(self, inner_pid_file: str) -> tuple[str, ...]:
        """Return the options of `exec`; *inner_pid_file* is for a number that only it knows."""

    def signal_inside(self, sandbox_id: str, inner_pid: int, number: int) -> tuple[str, ...] | None:
        """Return the command that sends a signal to whom the sandbox knows as *inner_pid*.

        None where processes of sandboxes are sent signals as any others of the host.
        """

    def start_through(self, network: str) -> tuple[str, ...]:
        """Return the words of a program that becomes `start` of a sandbox with this *network*."""

    def program_error(self, program: str, stderr: str) -> ProgramError | None:
        """Read from a failed call's *stderr* that the workload's program was at fault."""

    def state_names(self, entries: list[str], sandbox_id: str) -> list[str]:
        """Pick from the names in `root` those that belong to one sandbox."""
