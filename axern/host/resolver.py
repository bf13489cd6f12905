"""What a sandbox's resolver reads: resolv.conf from the host's, hosts from who is there.

Source: resolv.conf(5), hosts(5).
"""

from __future__ import annotations

import contextlib
import os
from ipaddress import AddressValueError, IPv4Address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HOST_FILES = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
"""The host's own, and what systemd-resolved asks behind its stub at 127.0.0.53."""
_KEPT = ("search", "domain", "options")
_MODE = 0o644


def conf(nameservers: Iterable[str] = (), files: Iterable[str] = HOST_FILES) -> str:
    """Return a resolv.conf for a sandbox on the bridge.

    *nameservers*, if there are any, stand in for the host's, of which those on its loopback can't
    be reached from a sandbox: the first of *files* that has another one is taken.
    """
    texts = [text for text in map(_read, files) if text is not None]
    usable = [(text, tuple(_reachable(text))) for text in texts]
    text, found = next(((text, found) for text, found in usable if found), ("", ()))
    kept = [line for line in text.splitlines() if line.split()[:1] and line.split()[0] in _KEPT]
    lines = [f"nameserver {address}" for address in (tuple(nameservers) or found)]
    return "".join(
        f"{line}\n" for line in (lines or ["# no name server but the host's own"]) + kept
    )


def _read(path: str) -> str | None:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return None


def _reachable(text: str) -> Iterator[str]:
    for line in text.splitlines():
        match line.split():
            case ["nameserver", word, *_]:
                with contextlib.suppress(AddressValueError):
                    if not IPv4Address(word).is_loopback:
                        yield word


def hosts(guests: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    """Return a hosts file with loopback and *guests*: an address, and the names that it has."""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost"]
    lines += (f"{address}\t{' '.join(names)}" for address, names in guests)
    return "".join(f"{line}\n" for line in lines)


def rewrite(path: str, text: str) -> None:
    """Let the file *path*, which is bound into sandboxes, hold *text*; made where missing.

    It stays the same file, so that they see the new text. Who reads in the same moment may see
    some of both.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, _MODE)
    try:
        data = text.encode()
        if os.pread(descriptor, len(data) + 1, 0) != data:
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)
