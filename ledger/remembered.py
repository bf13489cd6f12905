"""The last generation that this boot has seen, kept outside the ledger so that no copy has it.

An old copy of a whole ledger verifies like any other. What it lacks is known only to something
that is not copied and put back with it: a file in a folder that is lost at a reboot.
"""

from __future__ import annotations

import hashlib
import os
import re

from ledger.files import write_all

_MODE = 0o644
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_NOTE = re.compile(rb"([0-9]{20}) ([^\n]*)\n")


def path_of(folder: str, node_id: str) -> str:
    """Return where *folder* remembers the generation of the node *node_id*."""
    plain = _PLAIN_NAME.fullmatch(node_id)
    name = node_id if plain else hashlib.sha256(node_id.encode()).hexdigest()
    return os.path.join(folder, f"{name}.generation")


def least(folder: str, node_id: str, boot_id: str) -> int:
    """Return the generation that the boot *boot_id* has seen of *node_id*; 0 where none is known.

    Raises:
        OSError: It can't be read.
    """
    try:
        fd = os.open(path_of(folder, node_id), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        note = _NOTE.fullmatch(os.read(fd, 256))
    finally:
        os.close(fd)
    return int(note[1]) if note and note[2] == boot_id.encode() else 0


def forget(folder: str, node_id: str) -> None:
    """Let an older ledger be taken from now on: for who has put one back on purpose."""
    try:
        os.unlink(path_of(folder, node_id))
    except FileNotFoundError:
        return


class Remembered:
    """The file in *folder* that says which generation *node_id* is at, kept open by its writer.

    One write of a few bytes in place, so that no kill leaves half of it. What can't be noted is
    not noted: the promise of a commit does not depend on it.
    """

    def __init__(self, folder: str, node_id: str, boot_id: str) -> None:
        self._boot_id = boot_id.encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path_of(folder, node_id), flags, _MODE)
        try:
            os.fchmod(self._fd, _MODE)  # whatever the umask is
            os.ftruncate(self._fd, 0)  # another boot's note may be longer
        except OSError:
            os.close(self._fd)
            raise

    def note(self, generation: int) -> None:
        """Remember *generation*, which is durable.

        Raises:
            OSError: It could not be written; the one before, or none, is remembered.
        """
        write_all(self._fd, b"%020d %b\n" % (generation, self._boot_id), 0)

    def close(self) -> None:
        """Let go of the file, which stays."""
        os.close(self._fd)
