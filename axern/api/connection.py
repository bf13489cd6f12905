"""One client's connection below HTTP: who is at the other end, its place, and what it reads."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import FileIO

from axern.api.due import Due
from axern.api.messages import FilePart, Peer
from axern.api.places import Claim, Limits, Places
from ledger.errors import AxernError, LedgerBusy

IDLE_DEADLINE_S = 30.0
BUSY_AFTER_S = 1.0
"""How long a client without a place waits before it is told `busy`."""
_SO_PEERGROUPS = 59
"""Source: asm-generic/socket.h, the same on x86-64 and arm64."""
_GROUPS_BYTES = 1024
"""The most that Python asks for: 256 groups."""
_UNKEPT_AFTER_S = 1.0
"""How long a part of a file that has no name any more may take: till then it takes up the disk."""


@dataclass(slots=True)
class Tally:
    """Who is served by one server: connections, and streams and waits apart from them.

    `open_limit` bounds all connections together by the descriptors that the process may have, so
    that clients leave some for the daemon's own work.
    """

    connections: Places
    streams: Places
    open_limit: int
    open: set[Connection] = field(default_factory=set)

    @classmethod
    def of(cls, limits: Limits) -> Tally:
        """Return an empty one with *limits*."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(
            Places(limits.connections, limits.connections_per_uid),
            Places(limits.streams, limits.streams_per_uid),
            open_limit=descriptors // 2,
        )


class Connection(asyncio.Protocol):
    """A client with a place, or that waits for one; subclasses know what it says.

    `left` is set when it has gone. `due` ends the connection of who is silent for too long.
    """

    idle_deadline_s = IDLE_DEADLINE_S
    busy_after_s = BUSY_AFTER_S
    limits = Limits()
    tally: Tally

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    peer: Peer
    place: Claim | None = None
    stream: Claim | None = None
    is_streaming = False
    _stalled: asyncio.TimerHandle | None = None
    _waiting: asyncio.TimerHandle | None = None
    _is_reading = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Name the peer, and let it have a place or wait a moment for one."""
        self.loop = asyncio.get_running_loop()
        self.transport = transport
        self.due = Due(self.loop)
        self.left = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.peer = _peer_of(transport.get_extra_info("socket"))
        self.tally.open.add(self)
        if len(self.tally.open) <= self.tally.open_limit:
            self.place = self.tally.connections.ask(self.peer.uid, self._begin)
        if self.place is None:
            self._refuse_as_busy()
        elif not self.place.held:
            self.pause_reading()
            self._waiting = self.loop.call_later(self.busy_after_s, self._refuse_as_busy)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection out."""
        del exc
        self.due.end()
        self._forget_timers()
        self.tally.open.discard(self)
        for claim in (self.place, self.stream):
            if claim is not None:
                claim.leave()
        self.left.set()
        self.writable.set()

    def refuse(self, error: AxernError) -> None:
        """Answer *error* and close; the client has no say any more."""
        raise NotImplementedError

    def end_soon(self) -> None:
        """Close after the answer that is under way, or now."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Take nothing more from the client for now."""
        if self._is_reading and not self.left.is_set():
            self._is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take what the client sends, and hear when it leaves."""
        if not self._is_reading and not self.left.is_set():
            self._is_reading = True
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Expect the client to read its answer soon; a stream may be read as slowly as it likes."""
        self.writable.clear()
        if not self.is_streaming:
            self._stalled = self.loop.call_later(self.idle_deadline_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing: the client reads."""
        self._forget_timers()
        self.writable.set()

    async def send(self, data: bytes) -> None:
        """Send a piece of a stream as soon as the client has read enough of what was before."""
        await self.writable.wait()
        if not self.left.is_set():
            self.transport.write(data)

    def hand_over(self, data: bytes, files: Sequence[FileIO]) -> None:
        """Send *data* with a descriptor of each of *files* beside its first byte, and close them.

        A client that has not read what was sent before loses the connection: descriptors can't
        wait in a buffer. Source: unix(7), SCM_RIGHTS.
        """
        connection = self.transport.get_extra_info("socket")
        try:
            if self.transport.get_write_buffer_size():
                raise BlockingIOError("the client has not read what came before")
            with socket.socket(fileno=os.dup(connection.fileno())) as door:
                sent = socket.send_fds(door, [data], [file.fileno() for file in files])
        except OSError:
            self.transport.abort()
        else:
            self.transport.write(data[sent:])
        finally:
            for file in files:
                file.close()

    async def send_file(self, part: FilePart) -> None:
        """Send *part* as one chunk of a stream; the kernel copies it, we do not.

        Raises:
            OSError: The client has left, or stands still in a file that nobody keeps any more, or
                the file is shorter than was said. The connection is closed.
        """
        self.transport.set_write_buffer_limits(0)
        self.transport.write(b"%x\r\n" % (len(part.head) + part.size_bytes) + part.head)
        try:
            sent = await self._copied(part)
            if sent != part.size_bytes:
                raise OSError(f"only {sent} of {part.size_bytes} bytes were there to send")
        except BaseException:
            self.transport.abort()  # the chunk has no end
            raise
        self.transport.write(b"\r\n")

    async def _copied(self, part: FilePart) -> int:
        """Copy the file's bytes to the client, and return how many there were.

        The transport must not be closed meanwhile, or the loop goes on to watch a descriptor that
        is another client's by then; nothing does, for a stream has no deadline and is not read.
        """
        looking: asyncio.TimerHandle

        def look() -> None:
            nonlocal looking
            if os.fstat(part.file.fileno()).st_nlink == 0:
                limit.reschedule(self.loop.time())
            else:
                looking = self.loop.call_later(_UNKEPT_AFTER_S, look)

        looking = self.loop.call_later(_UNKEPT_AFTER_S, look)
        try:
            async with asyncio.timeout(None) as limit:
                await self.writable.wait()  # sendfile would, too, but can't be cancelled in that
                return await self.loop.sendfile(
                    self.transport, part.file, part.begin, part.size_bytes, fallback=False
                )
        except TimeoutError:
            raise TimeoutError("the client stands still in what is no longer kept") from None
        except RuntimeError as error:  # what asyncio says if not a byte was sent
            raise ConnectionResetError(f"the client has left: {error}") from error
        finally:
            looking.cancel()

    def _begin(self) -> None:
        """Take requests: there is a place, now or after a wait."""
        self._forget_timers()
        self.due.within(self.idle_deadline_s, self.transport.abort)
        self.resume_reading()

    def _refuse_as_busy(self) -> None:
        if self.place is not None:
            self.place.leave()
        self.refuse(
            LedgerBusy("too many connections", hint="close some, or try again", retry_after_s=1)
        )

    def _forget_timers(self) -> None:
        for timer in (self._stalled, self._waiting):
            if timer is not None:
                timer.cancel()
        self._stalled = self._waiting = None


def _peer_of(connection: socket.socket) -> Peer:
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    pid, uid, gid = struct.unpack("iII", credentials)
    return Peer(pid, uid, gid, _groups_of(connection))


def _groups_of(connection: socket.socket) -> tuple[int, ...]:
    """Return the peer's supplementary groups; where there are too many to ask for, none."""
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"{len(groups) // 4}I", groups)
