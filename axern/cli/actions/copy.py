"""`axern cp`: files and folders into a sandbox and out of it, by a tar within the sandbox.

A process in the sandbox reads and writes there: nobody of the host opens a name of the sandbox, so
that no link in it can lead anywhere but within. What comes out is unpacked by our own code.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import select
import threading
from typing import TYPE_CHECKING

from axern.cli.actions.added import Added, NotStarted
from axern.cli.actions.target import checked_id
from axern.cli.actions.unpack import Unpacker
from axern.cli.actions.untar import Reader, components
from axern.cli.output import say
from ledger.errors import AxernError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from axern.cli.actions.where import Where

_PART_BYTES = 256 * 1024
_SAID_BYTES = 64 * 1024
_NOT_FOUND = 127
_BROKEN_PIPE = 128 + 13
_SETTLE_MS = 5000
_HEXADECIMAL = "0123456789abcdefABCDEF"


class CopyFailed(AxernError):
    """The tar within the sandbox failed, or there is none, or a path of ours does not do."""

    code = "invalid_argument"


def copy(where: Where, *, source: str, target: str) -> int:
    """Copy *source* to *target*, one of which is `ID:PATH`; return 1 if something was left out.

    Raises:
        InvalidArgument: None or both are in a sandbox, or a path does not make sense.
        CopyFailed: The sandbox has no tar, or it failed.
        ArchiveRefused: What the sandbox sent can't be taken in.
    """
    inside, outside = _parted(source), _parted(target)
    if (inside is None) == (outside is None):
        raise InvalidArgument(
            "one of SRC and DST must be ID:PATH, and the other one a path of this host",
            hint="for example: axern cp 4f1c:/tmp/result .",
        )
    try:
        if inside is not None:
            return _out(where, *inside, target)
        assert outside is not None  # noqa: S101 - seen above
        return _into(where, source, *outside)
    except NotStarted as error:
        if error.exit_code != _NOT_FOUND:
            raise
        raise CopyFailed(
            "the sandbox has no tar, by which files are copied",
            hint="copy one file with: axern exec ID -- cat PATH >FILE",
        ) from None
    except OSError as error:
        raise CopyFailed(f"{error.filename or 'the copy'}: {error.strerror}") from error


def _parted(text: str) -> tuple[str, str] | None:
    """Return id and path if *text* is in a sandbox; `./a:b` never is."""
    word, colon, path = text.partition(":")
    if not colon or not word or word.strip(_HEXADECIMAL):
        return None
    if not path.startswith("/"):
        raise InvalidArgument(f"{text!r}: a path in a sandbox is absolute", hint=f"{word}:/{path}")
    return checked_id(word), posixpath.normpath(path)


def _out(where: Where, run_id: str, path: str, target: str) -> int:
    base = components(os.fsencode(posixpath.basename(path)))
    if os.path.isdir(target):
        parent, name = target, os.fsencode(posixpath.basename(path) or "root")
    else:
        parent, last = os.path.split(os.path.abspath(target))
        name = os.fsencode(last)
    left_out: list[str] = []

    def leave_out(what: str, why: str) -> None:
        left_out.append(what)
        say(f"axern: left out: {what}: {why}")

    words = ["tar", "-cf", "-", "-C", posixpath.dirname(path), f"./{posixpath.basename(path)}"]
    parent_fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _running(where, run_id, words) as tar:
            reader = Reader(lambda size: os.read(tar.ends["stdout"], size))
            unpacker = Unpacker(parent_fd, base, name, leave_out)
            try:
                unpacker.unpack(reader, reader.content)
            except AxernError:
                # What a tar that failed has sent is no archive: it knows better why.
                tar.close("stdout")
                if not _wait(tar, _SETTLE_MS) or tar.exit_code() in (0, _BROKEN_PIPE):
                    with contextlib.suppress(AxernError):  # it has ended meanwhile
                        tar.revoke()
                    raise
            _require_done(tar)
    finally:
        os.close(parent_fd)
    return 1 if left_out else 0


def _into(where: Where, source: str, run_id: str, path: str) -> int:
    os.lstat(source)
    name = os.path.basename(os.path.abspath(source)) or "root"
    folder = path
    if not _is_folder(where, run_id, path):
        folder, name = posixpath.split(path)
    with _running(where, run_id, ["tar", "-xf", "-", "-C", folder], stdin=True) as tar:
        left_out = _pack(source, name, tar.ends["stdin"])
        tar.close("stdin")
        _require_done(tar)
    return 1 if left_out else 0


def _pack(source: str, name: str, pipe: int) -> int:
    """Write *source* to *pipe* as an archive that calls it *name*; return what was left out."""
    import tarfile

    left_out = 0

    def owned_by_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal left_out
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            left_out += 1
            say(f"axern: left out: {entry.name}: it is no file, folder or link")
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with (
        contextlib.suppress(BrokenPipeError),  # why it reads no more, it says itself
        open(pipe, "wb", closefd=False) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as archive,
    ):
        archive.add(source, name, filter=owned_by_nobody)
    return left_out


def _is_folder(where: Where, run_id: str, path: str) -> bool:
    with _running(where, run_id, ["test", "-d", path]) as test:
        _wait(test)
        return test.exit_code() == 0


class _Tar(Added):
    """An added process whose outputs are read to their end beside what else is done."""

    said = b""

    def listen(self) -> None:
        """Keep the beginning of what it says on standard error, and drop the rest."""
        descriptor = self.ends.pop("stderr")

        def drain() -> None:
            with open(descriptor, "rb", buffering=0) as stream:
                while part := stream.read(_PART_BYTES):
                    self.said += part[: _SAID_BYTES - len(self.said)]

        self._listener = threading.Thread(target=drain, daemon=True)
        self._listener.start()


@contextlib.contextmanager
def _running(where: Where, run_id: str, words: list[str], *, stdin: bool = False) -> Iterator[_Tar]:
    body = {"command": words, "kind": "copy", "stdin": stdin}
    with _Tar.begin(where, run_id, body) as tar:
        tar.listen()
        yield tar


def _wait(tar: _Tar, timeout_ms: int | None = None) -> bool:
    """Wait for its end, and tell whether it came in time."""
    poller = select.poll()
    poller.register(tar.over, select.POLLIN)
    return bool(poller.poll(timeout_ms))


def _require_done(tar: _Tar) -> None:
    _wait(tar)
    code = tar.exit_code()
    if code:
        said = tar.said.decode("utf-8", "backslashreplace").strip()
        raise CopyFailed(f"tar in the sandbox ended with {code}: {said}")
