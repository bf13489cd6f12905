"""conmon, the process that watches one sandbox: it outlives the daemon and loses no exit or byte.

The monitor is born in a control group of its own, and the runtime, with all that it forks, in the
sandbox's: each is started by a shell that moves itself first and then becomes it, so that at no
moment a crash of the daemon could leave either elsewhere.
Source: docs/decisions/0004-disabled-dev-and-proof-of-death.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import stat
import time
from dataclasses import dataclass

from axern.errors import HostError, MonitorFailed, ProcessError
from axern.failpoint import failpoint
from axern.host.process import identify
from axern.runtime import command
from axern.runtime.bundle import OOM_SCORE_ADJ
from axern.runtime.layout import SandboxPaths
from axern.runtime.oci import Runtime
from ledger.reservation import ProcessIdentity
from ledger.tables import NO_NETWORK

SHELL = "/bin/sh"
ENTER = 'echo 0 >"$0/cgroup.procs" && exec "$@"'
"""A script that takes a control group's folder and a command line."""
BORN = f"echo {OOM_SCORE_ADJ} >/proc/self/oom_score_adj && "
"""Before the runtime: each of its helpers dies before the daemon, which they would else equal."""
_ENTER_READING = 'echo 0 >"$0/cgroup.procs" && in="$1" && shift && exec "$@" <"$in"'
"""The same, with a file for standard input in between."""
_REPORT_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Created:
    """A created sandbox that waits for its start: who watches it, and its first process."""

    monitor: ProcessIdentity
    init: ProcessIdentity


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How a sandbox ended: the code a shell would give, and when, by the wall clock."""

    exit_code: int
    ended_at_ms: int


def create(
    conmon: str,
    runtime: Runtime,
    paths: SandboxPaths,
    *,
    overlay: str | None,
    log_segment_bytes: int,
    enforced: bool = False,
    stdin: str | None = None,
    network: str = NO_NETWORK,
    timeout_s: float = command.TIMEOUT_S,
) -> Created:
    """Start a monitor that creates the sandbox, and check that each process is where it belongs.

    It begins another log file each *log_segment_bytes*. The workload reads from the file *stdin*.

    Raises:
        MonitorFailed: The runtime refused, with its own message, or took longer than *timeout_s*.
        RuntimeFailure: The monitor itself did not start.
        HostError: A process is where it must not be.
    """
    deadline_s = time.monotonic() + timeout_s
    options = runtime.create_options(overlay, enforced=enforced, network=network)
    report_fd, child_fd = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            command.run(
                _monitor_argv(conmon, (runtime.binary, *options), paths, log_segment_bytes, stdin),
                timeout_s=timeout_s,
                environment={"_OCI_SYNCPIPE": str(child_fd)},
                pass_fds=(child_fd,),
            )
        finally:
            os.close(child_fd)
        failpoint("launch.monitor")
        init_pid = read_report(report_fd, deadline_s)
    finally:
        os.close(report_fd)
    return _verify(paths, init_pid)


def _monitor_argv(
    conmon: str,
    runtime_argv: tuple[str, ...],
    paths: SandboxPaths,
    log_segment_bytes: int,
    stdin: str | None,
) -> list[str]:
    argv = [SHELL, "-c", ENTER, paths.monitor.folder, conmon, "--api-version", "1"]
    for flag in ("-c", "-u", "-n"):
        argv += [flag, paths.sandbox_id]
    argv += ["-r", SHELL]
    script = (
        (BORN + ENTER, paths.birth.folder)
        if stdin is None
        else (BORN + _ENTER_READING, paths.birth.folder, stdin)
    )
    enter = ("-c", *script)
    for argument in (*enter, *runtime_argv):
        argv += ["--runtime-arg", argument]
    argv += ["-b", paths.bundle, "-p", paths.pid_file]
    argv += ["-l", f"k8s-file:{paths.log}", "--log-size-max", str(log_segment_bytes)]
    argv += ["--exit-dir", os.path.dirname(paths.exit_file)]
    return [*argv, "--full-attach", "--no-sync-log"]


def read_report(report_fd: int, deadline_s: float) -> int:
    """Return the new process's number from a monitor's report, one line of JSON.

    Raises:
        MonitorFailed: The runtime refused, with its own message, or it came too late.
    """
    text = b""
    poller = select.poll()
    poller.register(report_fd, select.POLLIN)
    while b"\n" not in text and len(text) < _REPORT_LIMIT_BYTES:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not poller.poll(left_s * 1000):
            raise MonitorFailed("the monitor did not report a new process in time")
        chunk = os.read(report_fd, _REPORT_LIMIT_BYTES)
        if not chunk:
            break
        text += chunk
    try:
        report = json.loads(text.partition(b"\n")[0])  # how it ended may be behind it
        pid = int(report["data"])
    except (ValueError, KeyError, TypeError) as err:
        raise MonitorFailed(f"the monitor ended without a report: {text!r}") from err
    if pid <= 0:
        raise MonitorFailed(str(report.get("message") or "the runtime gave no reason").strip())
    return pid


def _verify(paths: SandboxPaths, init_pid: int) -> Created:
    monitors = paths.monitor.pids()
    if len(monitors) != 1 or init_pid not in paths.wall.pids():
        raise ProcessError(
            f"the first process {init_pid} is not in {paths.wall.folder}, or the monitor is not "
            f"alone in {paths.monitor.folder} but one of {monitors}",
            syscall="cgroup.procs",
            path=paths.wall.folder,
        )
    monitor, init = identify(monitors[0]), identify(init_pid)
    if monitor is None or init is None:
        raise MonitorFailed("the sandbox ended before it was started")
    return Created(monitor, init)


def hand_over_outputs(created: Created, host_uid: int, host_gid: int) -> None:
    """Give the workload's output pipes to its user, who else could not open /dev/stdout anew.

    The monitor made them as root of the host, whom a user namespace does not map.

    Raises:
        MonitorFailed: The first process has ended.
    """
    for number in (1, 2):
        path = f"/proc/{created.init.pid}/fd/{number}"
        try:
            if stat.S_ISFIFO(os.stat(path).st_mode):
                os.chown(path, host_uid, host_gid)
        except OSError as err:
            raise MonitorFailed("the sandbox ended before it was started") from err


def read_exit(paths: SandboxPaths) -> ExitRecord | None:
    """Return how the sandbox ended, or None while the monitor has not said so.

    The monitor writes the file under another name and renames it, so that it is always whole; all
    output is in the log by then.

    Raises:
        HostError: The file is there but holds no number.
    """
    try:
        with open(paths.exit_file, "rb") as file:
            text = file.read()
            ended_at_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return None
    try:
        return ExitRecord(int(text), ended_at_ms)
    except ValueError as err:
        raise HostError(
            f"{paths.exit_file} holds {text!r}, not an exit code",
            syscall="read",
            path=paths.exit_file,
        ) from err


def discard_exit(paths: SandboxPaths) -> None:
    """Remove the exit file, once the daemon's own record of it is durable; safe to repeat."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(paths.exit_file)
