"""Named places at which a crash test lets the process die as if the power had gone."""

from __future__ import annotations

import os
import signal

VARIABLE = "AXERN_FAILPOINT"
"""Environment variable that names the one place to die at; unset in production."""

LAUNCH = (
    "launch.spec",
    "launch.reserved",
    "launch.starting",
    "launch.quota",
    "launch.folders",
    "launch.cgroup",
    "launch.rootfs",
    "launch.bundle",
    "launch.monitor",
    "launch.created",
    "launch.start",
    "launch.running",
)
"""Steps of a launch, in order; each name is the moment right after that step."""

BURY = (
    "bury.begin",
    "bury.killed",
    "bury.monitor",
    "bury.disconnected",
    "bury.unmounted",
    "bury.folders",
    "bury.quota",
    "bury.cgroups",
    "bury.proved",
    "bury.exit_record",
    "bury.released",
)
"""Steps of a burial, in order; each name is the moment right after that step."""

CONNECT = ("launch.namespace", "launch.connected")
"""Steps of a launch that only a sandbox on the bridge has; runc's has no `launch.namespace`."""

RELEASE = ("release.begun", "release.stopped", "release.retired")
"""Steps of an offline release before and between those of the burial, in order."""

LOG = ("log.named", "log.stray", "log.counted", "log.dropped", "log.laid", "log.prepared")
"""Steps of keeping a log; each name is the moment right after that step."""

NAMES = frozenset(LAUNCH + CONNECT + BURY + RELEASE + LOG)


def failpoint(name: str) -> None:
    """Kill this process with SIGKILL if the environment names *name*, else do nothing.

    Raises:
        ValueError: *name* is in none of the lists above, so that no test could reach it.
    """
    if name not in NAMES:
        raise ValueError(f"unknown failpoint {name!r}")
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
