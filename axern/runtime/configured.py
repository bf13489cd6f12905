"""What the configuration says of the host: where everything is, and who alone may use it now."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from axern.host import locks
from axern.host.cgroup import Hierarchies, find_hierarchies
from axern.runtime.layout import Layout
from ledger.errors import InvalidArgument, LedgerBusy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from axern.settings import Settings

_PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_LOCK = "axernd.lock"
_CGROUP_ROOT = "cgroup_root"
USUAL_CGROUP_ROOT = "axern"
_LONGEST_NOTE = 80


def layout_of(settings: Settings) -> Layout:
    """Return where everything is, with the programs searched for where none is configured.

    Raises:
        InvalidArgument: A configured folder has a name that can't be mounted.
    """
    hierarchies = find_hierarchies()
    cgroup_root = (
        remembered_cgroup_root(settings.run_dir)
        or cgroup_root_from(settings, hierarchies)
        or USUAL_CGROUP_ROOT
    )
    try:
        return Layout(
            state_dir=settings.state_dir,
            run_dir=settings.run_dir,
            filestore=settings.filestore or f"{settings.state_dir}/filestore",
            templates=f"{settings.state_dir}/templates",
            cgroup_root=cgroup_root,
            hierarchies=hierarchies,
            runc=_program("runc", settings.runc),
            runsc=_program("runsc", settings.runsc),
            conmon=_program("conmon", settings.conmon),
            bridge=settings.network_bridge,
        )
    except ValueError as error:
        raise InvalidArgument(f"state_dir, run_dir or filestore: {error}") from error


def cgroup_root_from(settings: Settings, hierarchies: Hierarchies) -> str:
    """Return the configured control group relative to the cgroup2 mount, empty for none."""
    return settings.cgroup_root.removeprefix(hierarchies.unified).strip("/")


def remembered_cgroup_root(run_dir: str) -> str | None:
    """Return the control group that the last daemon of this boot has used, None without one.

    What it was given by systemd, nobody else can find out, and there its sandboxes are.
    """
    try:
        with open(f"{run_dir}/{_CGROUP_ROOT}", encoding="utf-8") as file:
            return file.read().strip() or None
    except FileNotFoundError:
        return None


def remember_cgroup_root(run_dir: str, cgroup_root: str) -> None:
    """Let everybody who works on *run_dir* use *cgroup_root*; the caller holds the folder."""
    path = f"{run_dir}/{_CGROUP_ROOT}"
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        file.write(f"{cgroup_root}\n")
    os.rename(f"{path}.tmp", path)


def _program(name: str, configured: str) -> str:
    candidates = (f"{folder}/{name}" for folder in _PROGRAM_FOLDERS)
    found = next((path for path in candidates if os.access(path, os.X_OK)), f"/usr/bin/{name}")
    return configured or found


@contextlib.contextmanager
def sole_user_of(run_dir: str, holder: str = "axernd", timeout_s: float = 0.0) -> Iterator[None]:
    """Hold *run_dir* for this process: two ledgers must not share sockets, mounts and exits.

    Args:
        run_dir: The folder; made where missing.
        holder: What this process is doing, for the message to whoever finds it held.
        timeout_s: How long to wait for another holder.
    Raises:
        LedgerBusy: Another process holds it; the message names it.
        InvalidArgument: It can't be made or written to.
    """
    try:
        os.makedirs(run_dir, mode=0o755, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{run_dir}/{_LOCK}", flags, 0o600)
    except OSError as error:
        raise InvalidArgument(f"run_dir: {run_dir}: {error.strerror}") from error
    try:
        if not locks.take(descriptor, timeout_s):
            pid, _, what = (
                os.pread(descriptor, _LONGEST_NOTE, 0).decode(errors="replace").partition(" ")
            )
            raise LedgerBusy(
                f"run_dir {run_dir} is used by {what.strip() or 'axernd'}, process {pid.strip()}",
                hint="wait until it ends, or stop it; a second daemon needs a run_dir of its own",
            )
        with contextlib.suppress(OSError):  # the lock holds without its note, as on a full disk
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {holder}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
