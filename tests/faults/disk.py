"""A disk that loses power: records what a process asks for, and makes what may be left of it.

Until a file is flushed, each of its sectors is on the disk or not. Until a directory is flushed,
any number of its newest changes may be missing, in order, as a journaling file system has it.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.steps import Hook

SECTOR = 512


@dataclass(frozen=True)
class Event:
    """One thing that was asked of the disk, or one word told to the outside."""

    kind: str
    where: str = ""
    name: str = ""
    inode: int = 0
    offset: int = 0
    data: bytes = b""


class Recorder:
    """Hears every change below *root* through `hook`, does it, and keeps it in `events`."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self.events: list[Event] = []

    def tell(self, word: str) -> None:
        self.events.append(Event("told", name=word))

    def hook(self) -> Hook:
        def record(name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            # What is named is looked up before the call, which may take the name away.
            before = self._named(name, args, kwargs)
            result = call(*args, **kwargs)
            event = before or self._described(name, args, result)
            if event is not None:
                self.events.append(event)
            return result

        return record

    def _named(self, name: str, args: Any, kwargs: Any) -> Event | None:
        if name == "unlink":
            return Event(name, self._folder(kwargs.get("dir_fd")), args[0])
        if name in ("rename", "link"):
            source = kwargs["src_dir_fd"]
            inode = os.stat(args[0], dir_fd=source, follow_symlinks=False).st_ino
            target = self._folder(kwargs["dst_dir_fd"])
            return Event(name, target, f"{args[0]}\n{args[1]}", inode)
        return None

    def _described(self, name: str, args: Any, result: Any) -> Event | None:
        if name == "mkdir":
            return None  # folders are made durable before anything in them counts
        if name == "open":
            path = os.readlink(f"/proc/self/fd/{result}")
            where, base = os.path.split(path)
            return Event("create", where, base, os.fstat(result).st_ino)
        inode = os.fstat(args[0]).st_ino
        if name == "pwrite":
            return Event("write", inode=inode, offset=args[2], data=bytes(args[1])[:result])
        if name == "ftruncate":
            return Event("truncate", inode=inode, offset=args[1])
        path = os.readlink(f"/proc/self/fd/{args[0]}")
        if os.path.isdir(path):
            return Event("flush-folder", path)
        return Event("flush", inode=inode)

    def _folder(self, fd: int | None) -> str:
        return self.root if fd is None else os.readlink(f"/proc/self/fd/{fd}")


@dataclass
class _File:
    content: bytearray = field(default_factory=bytearray)
    pending: list[Event] = field(default_factory=list)


class Disk:
    """What is durable, and what is only asked for, after the first events of a recording."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._pending: list[Event] = []

    def take(self, event: Event) -> None:
        """Let the disk hear *event*."""
        if event.kind in ("create", "rename", "link", "unlink"):
            self._pending.append(event)
            if event.kind == "create":
                self._files[event.inode] = _File()  # a number that was free is used again
        elif event.kind in ("write", "truncate"):
            self._files[event.inode].pending.append(event)
        elif event.kind == "flush":
            file = self._files[event.inode]
            for change in file.pending:
                _apply(file.content, change)
            file.pending.clear()
        elif event.kind == "flush-folder":
            here = [change for change in self._pending if change.where == event.where]
            self._pending = [change for change in self._pending if change.where != event.where]
            for change in here:
                _rename(self._names, change)

    def left(self, chance: random.Random) -> dict[str, bytes]:
        """Return path and content of each file that a power cut now may leave."""
        names = dict(self._names)
        for change in self._pending[: chance.randint(0, len(self._pending))]:
            _rename(names, change)
        luck = chance.choice((0.0, 0.5, 1.0))
        result = {}
        for (where, name), inode in names.items():
            file = copy.deepcopy(self._files[inode])
            for change in file.pending:
                for piece in _sectors(change):
                    if chance.random() < luck:
                        _apply(file.content, piece)
            result[os.path.join(where, name)] = bytes(file.content)
        return result


def _rename(names: dict[tuple[str, str], int], change: Event) -> None:
    old, _, new = change.name.partition("\n")
    if change.kind == "unlink":
        names.pop((change.where, old), None)
        return
    if change.kind == "rename":
        names.pop((change.where, old), None)
    names[change.where, new or old] = change.inode


def _sectors(change: Event) -> list[Event]:
    if change.kind == "truncate":
        return [change]
    pieces = []
    start, end = change.offset, change.offset + len(change.data)
    while start < end:
        stop = min(end, start - start % SECTOR + SECTOR)
        data = change.data[start - change.offset : stop - change.offset]
        pieces.append(Event("write", inode=change.inode, offset=start, data=data))
        start = stop
    return pieces


def _apply(content: bytearray, change: Event) -> None:
    if change.kind == "truncate":
        del content[change.offset :]
        return
    end = change.offset + len(change.data)
    content.extend(bytes(max(0, end - len(content))))
    content[change.offset : end] = change.data


def write_out(files: dict[str, bytes], root: str, target: str) -> None:
    """Write *files*, recorded below *root*, below *target*."""
    for path, content in files.items():
        if os.path.commonpath([root, path]) != root:
            continue
        place = Path(target, os.path.relpath(path, root))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
