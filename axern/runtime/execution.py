"""Adds a process to a running sandbox, watched by a monitor of its own, and ends it.

The runtime puts it beside the first process; what starts and watches it lives within the sandbox's
wall too, so that all of it is charged to the sandbox and ends with it. The monitor (conmon) writes
down how it ended, also while no daemon is there, and touches no byte: the process has one end of
each pipe or of a terminal, and the client has the other.
Source: docs/decisions/0036-exec.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import time
from dataclasses import dataclass
from io import FileIO
from typing import TYPE_CHECKING

from axern.errors import HostError, MonitorFailed, ProcessError, RuntimeFailure
from axern.host import console, filestore, idmap, process
from axern.runtime import bundle, command, exec_lease, monitor, user
from axern.runtime.launch import runtime_for
from ledger.errors import StateConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from axern.runtime.exec_lease import Lease, Place
    from axern.runtime.layout import Layout, SandboxPaths
    from axern.runtime.oci import Runtime, SandboxSpec
    from axern.runtime.user import Identity

TERMINAL, STDIN, STDOUT, STDERR = "terminal", "stdin", "stdout", "stderr"
PIPE_BYTES = 1024**2
"""What each pipe may hold; as much as the kernel gives unprivileged users, too."""
_MOVE = 'in="$0" out="$1" err="$2" && shift 2 && exec "$@" <"$in" >"$out" 2>"$err"'
_STAY = 'exec "$0" "$@"'
"""Scripts that start a command line, the first with other standard descriptors."""
_SAID_BYTES = 64 * 1024
_MESSAGE = re.compile(r'^time="[^"]*" level=error msg="(.*)"$', re.MULTILINE)
"""What runc wants to be read, in the form of its log. Source: sirupsen/logrus, TextFormatter."""
_END_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Order:
    """What shall run beside a sandbox's first process; `spec` has its words, folder and user.

    `size` is that of its terminal, rows and columns; with None it has pipes, and without `stdin`
    its standard input is /dev/null.
    """

    spec: SandboxSpec
    lease: Lease
    stdin: bool = False
    size: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class End:
    """How an added process ended: with the code a shell would give, None if nobody saw it."""

    exit_code: int | None


def begin(order: Order, layout: Layout, *, timeout_s: float) -> dict[str, FileIO]:
    """Start the process of *order* and return the client's ends: a terminal, or pipes by name.

    Raises:
        StateConflict: The sandbox is gone.
        ProgramNotFound: Its root has no such program.
        ProgramNotExecutable: It has, but it can't be executed.
        RootfsRefused: There is no such user.
        RuntimeFailure: The runtime or the monitor failed.
        HostError: The kernel refused a step, or the process is not within the wall.
    """
    start = _Start(order, layout, time.monotonic() + timeout_s)
    start.make_place()
    try:
        exec_lease.write(start.where, order.lease)
        return start.with_terminal() if order.size else start.with_pipes()
    except BaseException:
        kill(order.spec.runtime, layout, order.spec.sandbox_id, order.lease.exec_id)
        forget(start.where)
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(start.where.process)


class _Start:
    """The steps of one start; `deadline_s` is on the monotonic clock."""

    def __init__(self, order: Order, layout: Layout, deadline_s: float) -> None:
        self.order = order
        self.paths: SandboxPaths = layout.sandbox(order.spec.sandbox_id)
        self.where: Place = exec_lease.place(self.paths, order.lease.exec_id)
        self._conmon = layout.conmon
        self._runtime: Runtime = runtime_for(order.spec.runtime, layout)
        self._deadline_s = deadline_s

    def make_place(self) -> None:
        """Make folder and control group, of which the sandbox's own must be there."""
        groups = (self.paths.exec_groups.folder, self.where.group.folder)
        try:
            _make_folders((self.paths.execs, self.where.folder), 0o700)
            _make_folders(groups, 0o755)
        except FileNotFoundError:
            raise StateConflict(f"sandbox {self.paths.sandbox_id} has ended") from None
        except OSError as error:
            raise HostError(
                "cannot make a place", syscall="mkdir", path=error.filename, errno=error.errno
            ) from error

    def with_terminal(self) -> dict[str, FileIO]:
        """Start it with a terminal, and return the master."""
        self._write_process()
        with console.console(self.where.folder) as door:
            try:
                pid = self._watch(_STAY, (), ("--console-socket", door.path))
            except MonitorFailed as error:
                raise self._blamed(error, error.message) from error
            self._require_inside(pid)
            master = door.receive(max(self._deadline_s - time.monotonic(), 1.0))
        ours = FileIO(master, "r+")
        rows, columns = self.order.size or (0, 0)
        console.resize(master, rows, columns)
        return {TERMINAL: ours}

    def with_pipes(self) -> dict[str, FileIO]:
        """Start it with pipes, and return our ends of them."""
        host_ids = self._write_process()
        ours: dict[str, FileIO] = {}
        with contextlib.ExitStack() as theirs:
            paths = []
            try:
                for name in (STDIN, STDOUT, STDERR):
                    end = self._end(name, ours, host_ids)
                    theirs.callback(os.close, end)
                    paths.append(f"/proc/{os.getpid()}/fd/{end}")
                self._require_inside(self._watch(_MOVE, tuple(paths), ()))
            except BaseException as error:
                said = _said(ours[STDERR]) if isinstance(error, MonitorFailed) else ""
                for file in ours.values():
                    file.close()
                if isinstance(error, MonitorFailed):
                    raise self._blamed(error, said) from error
                raise
        return ours

    def _end(self, name: str, ours: dict[str, FileIO], host_ids: tuple[int, int]) -> int:
        """Return the process's end of the pipe *name*, and put the other among *ours*."""
        if name == STDIN and not self.order.stdin:
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        mine, other = (writing, reading) if name == STDIN else (reading, writing)
        ours[name] = FileIO(mine, "wb" if name == STDIN else "rb")
        # It may open /dev/stdout anew, and is another user on the host.
        os.fchown(other, *host_ids)
        with contextlib.suppress(PermissionError):  # all pipes together are too large already
            fcntl.fcntl(other, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return other

    def _write_process(self) -> tuple[int, int]:
        """Write what the runtime reads, for root alone, and return who runs it on the host."""
        spec = self.order.spec
        identity = user.resolve(spec.user, self.paths.rootfs) if spec.user is not None else None
        content = bundle.process(spec, identity, terminal=self.order.size is not None)
        if self.order.size:
            rows, columns = self.order.size
            content["consoleSize"] = {"height": rows, "width": columns}
        bundle.write(content, self.where.process)
        return _host_ids(spec, identity, maps_ids=self._runtime.maps_ids)

    def _watch(self, script: str, words: tuple[str, ...], options: tuple[str, ...]) -> int:
        """Start the monitor, and through it the runtime by *script*; return the new process.

        Raises:
            MonitorFailed: The runtime refused.
        """
        report_fd, child_fd = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                command.run(
                    self._argv(script, words, options),
                    timeout_s=self._deadline_s - time.monotonic(),
                    environment={"_OCI_SYNCPIPE": str(child_fd)},
                    pass_fds=(child_fd,),
                )
            finally:
                os.close(child_fd)
            return monitor.read_report(report_fd, self._deadline_s)
        finally:
            os.close(report_fd)

    def _argv(self, script: str, words: tuple[str, ...], options: tuple[str, ...]) -> list[str]:
        where, runtime, sandbox_id = self.where, self._runtime, self.paths.sandbox_id
        argv = [monitor.SHELL, "-c", monitor.ENTER, where.group.folder, self._conmon]
        argv += ["--api-version", "1"]
        for flag in ("-c", "-u", "-n"):
            argv += [flag, sandbox_id]
        argv += ["-r", monitor.SHELL]
        for word in ("-c", monitor.BORN + script, *words, runtime.binary, *runtime.options()):
            argv += ["--runtime-arg", word]
        for word in (*runtime.exec_options(where.inner_pid_file), *options):
            argv += ["--runtime-opt", word]
        argv += ["-b", where.folder, "-p", where.pid_file, "-P", where.monitor_pid_file]
        argv += ["-l", "none", "--exit-dir", where.folder, "--full-attach"]
        return [*argv, "--exec", "--exec-process-spec", where.process]

    def _require_inside(self, pid: int) -> None:
        """Do nothing if the process *pid* is within the wall, or has ended."""
        identity = process.identify(pid)
        if identity is None or pid in self.paths.wall.pids() or not process.is_alive(identity):
            return
        watcher = _number(self.where.monitor_pid_file)
        if watcher is not None:
            process.kill_child(pid, watcher)
        raise ProcessError(
            f"the process {pid} is not in {self.paths.wall.folder}",
            syscall="cgroup.procs",
            path=self.paths.wall.folder,
        )

    def _blamed(self, error: MonitorFailed, said: str) -> RuntimeFailure:
        """Return whose fault it is by what the runtime *said*."""
        blamed = self._runtime.program_error(self.order.spec.argv[0], said)
        told = _MESSAGE.search(said)
        return blamed or MonitorFailed(
            told[1].replace('\\"', '"') if told else said.strip() or error.message
        )


def _make_folders(paths: Iterable[str], mode: int) -> None:
    """Make each where it is missing, and none above: a burial may be under way."""
    for path in paths:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)


def _host_ids(spec: SandboxSpec, identity: Identity | None, *, maps_ids: bool) -> tuple[int, int]:
    first = idmap.first_id(spec.lane) if maps_ids else 0
    return (first + identity.uid, first + identity.gid) if identity else (first, first)


def _said(file: FileIO) -> str:
    """Return what the runtime has said where the process would have."""
    os.set_blocking(file.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        return os.read(file.fileno(), _SAID_BYTES).decode(errors="replace")
    return ""


def _number(path: str) -> int | None:
    """Return the number that the file *path* holds, or None without one."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read(32))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def open_process(paths: SandboxPaths, where: Place) -> int | None:
    """Return a pidfd of the added process, or of what stands for it; None if it has ended."""
    return _open_inside(where.pid_file, paths.wall.pids)


def open_monitor(where: Place) -> int | None:
    """Return a pidfd of the monitor, or None if it has ended: then `ended` has the last word."""
    return _open_inside(where.monitor_pid_file, where.group.pids)


def _open_inside(pid_file: str, pids: Callable[[], tuple[int, ...]]) -> int | None:
    pid = _number(pid_file)
    if pid is None:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    # Looked at with the descriptor open: from here on the number can't change its owner.
    if pid in pids():
        return pidfd
    os.close(pidfd)
    return None


def send(runtime_name: str, layout: Layout, sandbox_id: str, exec_id: str, number: int) -> bool:
    """Send the added process a signal; return False if it has ended.

    Raises:
        RuntimeFailure: The runtime could not pass it on.
    """
    paths = layout.sandbox(sandbox_id)
    where = exec_lease.place(paths, exec_id)
    pidfd = open_process(paths, where)
    if pidfd is None:
        return False
    try:
        runtime, inner = runtime_for(runtime_name, layout), _number(where.inner_pid_file)
        argv = None if inner is None else runtime.signal_inside(sandbox_id, inner, number)
        if argv is not None:
            command.run(argv, timeout_s=_END_TIMEOUT_S)
        else:
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def kill(runtime_name: str, layout: Layout, sandbox_id: str, exec_id: str) -> None:
    """Kill the added process; one that has ended is fine. Its helpers end by themselves, or too."""
    where = exec_lease.place(layout.sandbox(sandbox_id), exec_id)
    with contextlib.suppress(RuntimeFailure):
        send(runtime_name, layout, sandbox_id, exec_id, signal.SIGKILL)
    if not where.group.wait_empty(_END_TIMEOUT_S):
        where.group.kill()


def ended(where: Place) -> End | None:
    """Return how the added process ended, or None while it runs."""
    found = _number(where.exit_file)
    if found is None and where.group.is_populated():
        return None
    return End(_number(where.exit_file) if found is None else found)


def running(paths: SandboxPaths) -> list[Lease]:
    """Return the lease of each added process that has not ended, oldest first."""
    held = exec_lease.held(exec_lease.places(paths))
    return [lease for lease, where in held if where.group.is_populated()]


def forget(where: Place) -> None:
    """Remove all that there is of an added process which has ended, its helpers too."""
    where.group.destroy(_KILL_TIMEOUT_S)
    filestore.remove_tree(where.folder)
