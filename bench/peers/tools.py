"""Gets what peers and load need: programs by apt, never as system services, and C by gcc."""

import contextlib
import glob
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
POLICY = Path("/usr/sbin/policy-rc.d")
"""Asked by every package before it starts a service. Source: Debian's invoke-rc.d(8)."""
_ELSEWHERE = ("/usr/sbin", "/sbin", *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True))


class Missing(Exception):
    """A program that a benchmark needs is not there; the message says what would bring it."""


def find(name: str) -> str | None:
    """Return the path of the program *name*, None where there is none."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_ELSEWHERE)))


def program(name: str, package: str) -> str:
    """Return the path of the program *name*, installing *package* where it is missing.

    Raises:
        Missing: It can't be installed here.
    """
    found = find(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(package)
        global _ELSEWHERE  # noqa: PLW0603 - a version's folder may just have come
        _ELSEWHERE = (*_ELSEWHERE, *glob.glob("/usr/lib/postgresql/*/bin"))
        found = find(name)
    if found is None:
        raise Missing(f"{name} is not installed: apt-get install {package}")
    return found


def _install(package: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    with _no_service_starts():
        for argv in (["apt-get", "update", "-qq"], install):
            subprocess.run(argv, check=False, stdout=subprocess.DEVNULL, env=environment)
    for unit in ("redis-server", "etcd", "postgresql"):
        if shutil.which("systemctl"):  # nor at the next boot
            subprocess.run(["systemctl", "disable", unit], check=False, capture_output=True)


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Let no package start its service while it is installed."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def compile_c(source: str, target: str, *flags: str) -> str:
    """Compile *source*, a file beside this one, to *target* and return that.

    Raises:
        Missing: There is no compiler.
        CalledProcessError: It does not compile.
    """
    compiler = program("gcc", "gcc libc6-dev")
    argv = [compiler, "-O2", "-Wall", "-Wextra", *flags, "-o", target, str(HERE / source)]
    subprocess.run(argv, check=True)
    return target


def slow_disk(folder: str, flush_us: int) -> dict[str, str]:
    """Return the environment in which each flush takes *flush_us* microseconds longer."""
    if not flush_us:
        return {}
    library = f"{folder}/slow_flush.so"
    if not os.path.exists(library):
        compile_c("slow_flush.c", library, "-shared", "-fPIC", "-ldl")
    return {"LD_PRELOAD": library, "SLOW_FLUSH_US": str(flush_us)}
