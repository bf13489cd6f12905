"""The ledger on disk: one writer under a lock, group commit, and checkpoints beside commits.

A commit has three steps, so that a caller may flush in a thread: `stage` applies operations to a
fork of the state, `flush` makes the fork's line durable, `publish` lets readers see it. Nothing is
seen before it is durable. Steps of two batches never mix, and checkpoints begin between batches.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ledger import checkpoint as checkpoint_file
from ledger import codec, lock, remembered
from ledger.archive import archive
from ledger.blank import SEGMENT_BYTES
from ledger.clock import Now
from ledger.codec import Checkpoint
from ledger.errors import (
    DISK_RETRY_AFTER_S,
    AxernError,
    CommitFailed,
    InvariantViolation,
)
from ledger.files import DIRECTORY_MODE, Folder, require_local, translate
from ledger.granting import Granting
from ledger.journal import Journal, first_generation
from ledger.rebase import rebase
from ledger.recovery import Loaded, load
from ledger.remembered import Remembered
from ledger.request_ids import EndedRequests
from ledger.staging import Batch, Group, Operation, Queue, Stage
from ledger.state import State

if TYPE_CHECKING:
    from ledger.claims import Host

CHECKPOINT_BYTES = 32 * 1024**2
"""How far the journal grows before a checkpoint: a fraction of a second to replay."""


class Ledger:
    """The one writer of a ledger; made by `open`, closed by `close` or at the end of `with`.

    `host_at` tells on what those who wait are decided; while it is None, they wait.
    """

    host_at: Callable[[Now], Host] | None = None

    def __init__(self, folder: Folder, held: lock.Lock, loaded: Loaded, segment_bytes: int) -> None:
        self.node_id = loaded.node_id
        self.checkpoint_generation = loaded.checkpoint_generation
        self._folder = folder
        self._lock = held
        self._state = loaded.state
        self._journal = Journal(folder, loaded.position, loaded.state.generation, segment_bytes)
        self._written = loaded.replayed_bytes
        self._checkpointed = 0
        self._checkpoint_size = loaded.checkpoint_bytes
        self._finishing = threading.Lock()
        self._newest = (loaded.checkpoint_generation, 0)
        self._ended = EndedRequests.of(loaded.state)
        self._granting = Granting()
        self._remembered: Remembered | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        now: Now,
        *,
        node_id: str | None = None,
        create: bool = True,
        lock_timeout_s: float = 5.0,
        holder: str = "axernd",
        segment_bytes: int = SEGMENT_BYTES,
        least_generation: int = 0,
        remember_in: str | None = None,
    ) -> Ledger:
        """Take the lock, read what is there, and return the ledger ready for commits.

        Args:
            directory: Where it lies; made if *create* says so and its parent exists.
            now: The clocks; after a reboot every deadline is carried over to them.
            node_id: Given to a new ledger; an existing one must have it. None takes what is there.
            create: Whether a ledger is born where none has ever been.
            lock_timeout_s: How long to wait for another holder, 0 or more seconds.
            holder: What this process is doing, for the message to whoever has to wait.
            segment_bytes: The size of a journal segment.
            least_generation: What this boot has seen already; an older ledger was put back.
            remember_in: A folder lost at a reboot, where that is remembered beside *node_id*.
        Raises:
            LedgerBusy: Another process holds it; the message names it.
            LedgerCorrupt: Something is damaged or missing. Nothing is repaired, nothing dropped.
            LedgerTooNew: A newer program wrote it.
            NotFound: There is none, and *create* is false.
            FileSystemRefused: The directory lies where locks or flushes can't be trusted.
            PermissionDenied: This user may not.
            CommitFailed: It can't be written to.
        """
        path = os.path.abspath(directory)
        try:
            _make_directory(path, create=create)
            require_local(path)
            folder = Folder(path)
        except OSError as err:
            raise translate(err, path) from err
        with contextlib.ExitStack() as undo:
            undo.callback(folder.close)
            try:
                held = lock.take(folder, lock_timeout_s, holder, now, undo)
                folder.sweep()
                least = _Least(least_generation, remember_in, now.boot_id)
                loaded = load(
                    folder, now, node_id, least, create=create, segment_bytes=segment_bytes
                )
                ledger = cls(folder, held, loaded, segment_bytes)
                undo.callback(ledger._let_go)
                ledger._remember(remember_in, now)
                if ledger.state.clock.boot_id != now.boot_id:
                    ledger.commit(lambda view: rebase(view, now), now)
            except OSError as err:
                raise translate(err, path) from err
            undo.pop_all()
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def state(self) -> State:
        """Return the published state: all of it is durable. It changes with each `publish`."""
        return self._state

    @property
    def generation(self) -> int:
        """Return the number of the last published commit."""
        return self._state.generation

    @property
    def failed(self) -> bool:
        """Tell whether a flush has failed, so that commits are refused until `reseal`."""
        return self._journal.failed is not None

    @property
    def wants_checkpoint(self) -> bool:
        """Tell whether the journal has outgrown its bound."""
        bound = max(CHECKPOINT_BYTES, self._checkpoint_size)
        return self._written - self._checkpointed > bound

    @property
    def is_short(self) -> bool:
        """Tell whether the disk has no room, so that only what gives resources back is done."""
        return self._journal.short is not None

    @property
    def has_spare(self) -> bool:
        """Tell whether the next segment was made in advance."""
        return self._journal.has_spare

    @property
    def wants_room(self) -> bool:
        """Tell whether it is time for `prepare_segment`."""
        return self._journal.wants_room

    def commit(self, operation: Operation, now: Now) -> object:
        """Perform *operation* durably and return its result.

        Raises:
            AxernError: What it raised; nothing is changed.
            CommitFailed: It is not durable, and not done.
        """
        if self.is_short:
            with contextlib.suppress(CommitFailed):
                self.prepare_segment()
        batch = self.stage([operation], now)
        self.flush(batch)
        self.publish(batch)
        outcome = batch.outcomes[0]
        if isinstance(outcome, AxernError):
            raise outcome
        return outcome

    def stage(self, operations: Iterable[Operation | Group], now: Now) -> Batch:
        """Apply *operations* in order to a fork; one that raises AxernError leaves no trace."""
        fork = self._state.fork()
        following = fork.generation + 1
        batch = Batch([], fork)
        if self._granting.is_staged:  # with a batch that came to nothing
            self._granting.forget()
        host = self.host_at(now) if self.host_at is not None else None
        stage = Stage(batch, following, self._short(), Queue(self._granting, host))
        stage.apply(operations)
        if fork.waiting:
            stage.look()
        stage.forget_requests(self._ended)
        if stage.changes:
            fork.clock = now
            batch.line, batch.chain = codec.encode_commit(
                following, now, stage.changes, self._journal.position.chain
            )
        return batch

    def flush(self, batch: Batch) -> None:
        """Make *batch* durable: one write and one flush, none if there is nothing to write.

        Raises:
            CommitFailed: It is not; no operation of it is done.
        """
        if not batch.line:
            return
        if batch.fork.generation != self._journal.generation + 1:
            raise InvariantViolation("two batches were staged on one state")
        self._journal.append(batch.line, batch.chain, may_take_ballast=batch.gives_back)
        self._written += len(batch.line)

    def publish(self, batch: Batch) -> None:
        """Let readers see *batch*, which was flushed."""
        self._granting.is_staged = False
        if batch.line:
            if self._journal.generation != batch.fork.generation:
                raise InvariantViolation("a batch is published that was not flushed")
            self._state.merge(batch.fork)
            if batch.ended:
                self._ended.settle(batch.ended, batch.drops)
            self._note_generation()

    def prepare_segment(self) -> None:
        """Make the next segment in advance, and the ballast; may run in a thread beside commits.

        Raises:
            CommitFailed: There is no room; the next rotation tries again.
        """
        try:
            self._journal.prepare()
        except OSError as err:
            raise CommitFailed(f"no segment can be made in advance: {err.strerror}") from err

    def checkpoint(self, *, rotate: bool = True) -> None:
        """Write a checkpoint of the present state; with *rotate* the journal starts a new segment.

        Raises:
            CommitFailed: It is not durable; the ledger is as complete as before.
        """
        self.finish_checkpoint(self.begin_checkpoint(rotate=rotate))

    def begin_checkpoint(self, *, rotate: bool) -> tuple[Checkpoint, int]:
        """Take what `finish_checkpoint` writes; between batches, in the thread of commits.

        Raises:
            CommitFailed: No new segment could be made.
        """
        if self._journal.generation != self._state.generation:
            raise InvariantViolation("a checkpoint begins in the middle of a batch")
        if rotate:
            self._journal.rotate()
        position = self._journal.position
        return checkpoint_file.of(self._state.copy(), self.node_id, position), self._written

    def finish_checkpoint(self, begun: tuple[Checkpoint, int]) -> None:
        """Write a checkpoint that was begun, and archive what it makes superfluous.

        May run in a thread beside commits. One that comes late, after a newer one, is dropped: the
        newer one may have archived the segment that it needs.

        Raises:
            CommitFailed: It is not durable; the ledger is as complete as before.
        """
        snapshot, written = begun
        order = (snapshot.generation, first_generation(snapshot.position.segment) or 0)
        try:
            with self._finishing:
                if order < self._newest:
                    return
                self._newest = order
                self._checkpoint_size = checkpoint_file.write(self._folder, snapshot)
                self.checkpoint_generation, self._checkpointed = snapshot.generation, written
                archive(self._folder, snapshot.position, snapshot.clock.wall_ms)
        except OSError as err:
            raise CommitFailed(
                f"no checkpoint could be written: {err.strerror}",
                hint="look at the disk of the ledger: df, dmesg",
            ) from err

    def reseal(self) -> None:
        """Go on after a failed flush, in a new segment; what was in flight is void from then on.

        Between batches; checkpoints and `prepare_segment` may run beside it. A checkpoint should
        follow: the lines before are on a medium that has just failed.

        Raises:
            CommitFailed: The disk still refuses; the ledger stays `failed`.
        """
        self._journal.reseal()

    def close(self, *, checkpoint: bool = True) -> None:
        """Stop cleanly: a last checkpoint, so that `ledger.json` alone is complete; then unlock.

        Closing it again does nothing.

        Raises:
            CommitFailed: That checkpoint failed; all the same the ledger is closed and complete.
        """
        if self._closed:
            return
        self._closed = True
        try:
            dead = self.failed
            if checkpoint and dead:
                self.reseal()
            if checkpoint and (dead or self.checkpoint_generation != self.generation):
                self.checkpoint(rotate=False)
        finally:
            self._let_go()
            with contextlib.suppress(OSError):
                self._folder.unlink(lock.HOLDER)
            self._lock.release()
            self._folder.close()

    def _let_go(self) -> None:
        if self._remembered is not None:
            with contextlib.suppress(OSError):  # what was noted is noted
                self._remembered.close()
        with contextlib.suppress(OSError):  # what can't be removed is swept by the next opener
            self._journal.close()

    def _short(self) -> CommitFailed | None:
        error = self._journal.short
        if error is None:
            return None
        return CommitFailed(
            f"the disk of the ledger has no room ({error.strerror}): only what gives resources "
            "back is done",
            hint=f"make room on the file system of {self._folder.path}; the rest follows by itself",
            retry_after_s=DISK_RETRY_AFTER_S,
        )

    def _remember(self, folder: str | None, now: Now) -> None:
        """Note each generation in *folder* from now on; where that can't be, the rest still can."""
        if folder is None:
            return
        with contextlib.suppress(OSError):
            self._remembered = Remembered(folder, self.node_id, now.boot_id)
            self._note_generation()

    def _note_generation(self) -> None:
        if self._remembered is not None:
            try:
                self._remembered.note(self._state.generation)
            except OSError:
                return  # the one before is remembered


class _Least:
    """What this boot has seen of a node already."""

    def __init__(self, known: int, folder: str | None, boot_id: str) -> None:
        self._known = known
        self._folder = folder
        self._boot_id = boot_id

    def __call__(self, node_id: str | None) -> int:
        """Return the least generation that the ledger of *node_id* must have."""
        if self._folder is None or node_id is None:
            return self._known
        return max(self._known, remembered.least(self._folder, node_id, self._boot_id))


def _make_directory(path: str, *, create: bool) -> None:
    if not create or os.path.isdir(path):
        return
    os.mkdir(path, DIRECTORY_MODE)
    os.chmod(path, DIRECTORY_MODE)  # whatever the umask is
    parent = Folder(os.path.dirname(path))
    try:
        parent.sync()
    finally:
        parent.close()
