"""Reads a tar stream that a sandbox made: nothing of it is believed, and all of it is bounded.

Plain headers, GNU's long names and pax's paths and sizes are understood, which is what the tars of
common images write. Whatever else there is, is an entry of the kind `OTHER`, or an error.
Source: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from axern.errors import ProtocolError

FILE, FOLDER, LINK, HARD_LINK, OTHER = "file", "folder", "link", "hard link", "other"
ENTRIES_LIMIT = 1_000_000
TOTAL_LIMIT_BYTES = 64 * 1024**3
NAME_LIMIT_BYTES = 4096
_META_LIMIT_BYTES = 64 * 1024
_METAS_LIMIT = 8
_FILLING_LIMIT_BYTES = 1024**2
_BLOCK = 512
_PART_BYTES = 256 * 1024
_KINDS = {
    b"0": FILE,
    b"\0": FILE,
    b"7": FILE,
    b"5": FOLDER,
    b"2": LINK,
    b"1": HARD_LINK,
    b"3": OTHER,
    b"4": OTHER,
    b"6": OTHER,
}


class ArchiveRefused(ProtocolError):
    """What the sandbox sent is no archive that can be taken in."""

    code = "invalid_argument"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: `path` has its components, none of which is empty, `.` or `..`."""

    kind: str
    path: tuple[bytes, ...]
    size_bytes: int
    mode: int
    target: bytes


@dataclass(slots=True)
class _Extra:
    """What the entries before the next one say of it."""

    name: bytes | None = None
    target: bytes | None = None
    size_bytes: int | None = None


class Reader:
    """The entries of a stream, each read to its end before the next one.

    `read` returns up to so many bytes, none at the end.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        *,
        entries_limit: int = ENTRIES_LIMIT,
        total_limit_bytes: int = TOTAL_LIMIT_BYTES,
    ) -> None:
        self._read = read
        self._entries_left = entries_limit
        self._bytes_left = total_limit_bytes
        self._left = 0
        self._padding = 0

    def __iter__(self) -> Iterator[Entry]:
        """Yield each entry.

        Raises:
            ArchiveRefused: The stream is cut short, is none, or passes a bound.
        """
        extra, metas = _Extra(), 0
        while (head := self._head()) is not None:
            kind, size_bytes = head[156:157], _number(head[124:136])
            if kind in (b"L", b"K", b"x", b"g"):
                metas += 1
                if metas > _METAS_LIMIT:
                    raise ArchiveRefused("the archive describes an entry without end")
                self._describe(extra, kind, self._meta(size_bytes))
                continue
            yield self._entry(head, extra, size_bytes)
            for _ in self.content():
                pass  # what nobody wanted
            self._take(self._padding)
            extra, metas = _Extra(), 0

    def content(self) -> Iterator[bytes]:
        """Yield the content of the entry that was yielded last."""
        while self._left:
            part = self._some(min(self._left, _PART_BYTES))
            self._left -= len(part)
            yield part

    def _head(self) -> bytes | None:
        """Return the next header, or None at the archive's end."""
        head = self._take(_BLOCK)
        if not head.strip(b"\0"):
            self._drain()
            return None
        told = _number(head[148:156])
        if told != sum(head[:148]) + 8 * ord(" ") + sum(head[156:]):
            raise ArchiveRefused("the archive is damaged: a header's checksum is wrong")
        self._entries_left -= 1
        if self._entries_left < 0:
            raise ArchiveRefused("the archive has too many entries")
        return head

    def _drain(self) -> None:
        """Read what fills up the end, so that who writes it is not cut off."""
        filling = 0
        while part := self._read(_PART_BYTES):
            filling += len(part)
            if filling > _FILLING_LIMIT_BYTES:
                raise ArchiveRefused("the archive goes on behind its end")

    def _entry(self, head: bytes, extra: _Extra, size_bytes: int) -> Entry:
        kind = _KINDS.get(head[156:157], OTHER)
        name, prefix = _text(head[:100]), b""
        if head[257:263] == b"ustar\0":
            prefix = _text(head[345:500])
        name = (prefix + b"/" if prefix else b"") + name if extra.name is None else extra.name
        target = _text(head[157:257]) if extra.target is None else extra.target
        if extra.size_bytes is not None:
            size_bytes = extra.size_bytes
        if head[156:157] not in _KINDS and size_bytes:
            raise ArchiveRefused(f"the archive has an entry of the unknown type {head[156:157]!r}")
        if kind not in (FILE, OTHER) or head[156:157] in (b"3", b"4", b"6"):
            size_bytes = 0  # such have none, whatever they say
        self._bytes_left -= size_bytes
        if self._bytes_left < 0:
            raise ArchiveRefused("the archive is too large")
        self._left, self._padding = size_bytes, -size_bytes % _BLOCK
        return Entry(kind, components(name), size_bytes, _number(head[100:108]) & 0o777, target)

    def _describe(self, extra: _Extra, kind: bytes, content: bytes) -> None:
        if kind == b"L":
            extra.name = _text(content)
        elif kind == b"K":
            extra.target = _text(content)
        elif kind == b"x":
            for key, value in _records(content):
                if key == b"path":
                    extra.name = _bounded(value)
                elif key == b"linkpath":
                    extra.target = _bounded(value)
                elif key == b"size":
                    extra.size_bytes = _decimal(value)

    def _meta(self, size_bytes: int) -> bytes:
        if size_bytes > _META_LIMIT_BYTES:
            raise ArchiveRefused("the archive describes an entry at too great length")
        content = self._take(size_bytes)
        self._take(-size_bytes % _BLOCK)
        return content

    def _take(self, size_bytes: int) -> bytes:
        parts = bytearray()
        while len(parts) < size_bytes:
            parts += self._some(size_bytes - len(parts))
        return bytes(parts)

    def _some(self, size_bytes: int) -> bytes:
        part = self._read(size_bytes)
        if not part:
            raise ArchiveRefused("the archive is cut short")
        return part


def components(name: bytes) -> tuple[bytes, ...]:
    """Return the components of *name*.

    Raises:
        ArchiveRefused: It is absolute, or has a `..`.
    """
    if name.startswith(b"/"):
        raise ArchiveRefused(f"the archive has the absolute name {name[:80]!r}")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise ArchiveRefused(f"the archive has the name {name[:80]!r}, which leads out of it")
    return parts


def _text(field: bytes) -> bytes:
    return _bounded(field.partition(b"\0")[0])


def _bounded(text: bytes) -> bytes:
    if len(text) > NAME_LIMIT_BYTES or b"\0" in text:
        raise ArchiveRefused("the archive has a name that no file can have")
    return text


def _number(field: bytes) -> int:
    """Return the octal number in *field*, or the binary one that GNU tar writes for large ones."""
    if field[0] == 0x80:  # noqa: PLR2004 - the mark of a positive binary number
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    if text.strip(b"01234567"):
        raise ArchiveRefused("the archive is damaged: a header holds no number where one must be")
    return int(text or b"0", 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > len(str(2**63)):
        raise ArchiveRefused("the archive has a size that is no number")
    return int(text)


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of each pax record: `LENGTH KEY=VALUE` and a newline."""
    while content:
        length, _, _ = content.partition(b" ")
        size = _decimal(length)
        record = content[:size]
        key, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if size <= len(length) + 1 or len(record) < size or record[-1:] != b"\n" or not equals:
            raise ArchiveRefused("the archive is damaged: a pax record is none")
        yield key, value
        content = content[size:]
