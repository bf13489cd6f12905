"""The ledger on disk: one writer under a lock, group commit, and checkpoints beside commits.

A commit has three steps, so that a caller may flush in a thread: `stage` applies operations to a
fork of the state, `flush` makes the fork's line durable, `publish` lets readers see it. Nothing is
seen before it is durable. Steps of two batches never mix, and checkpoints begin between batches.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import filelock

from ledger import checkpoint as checkpoint_file
from ledger import codec
from ledger.clock import Now
from ledger.codec import Checkpoint
from ledger.errors import (
    AxernError,
    CommitFailed,
    InvariantViolation,
    LedgerBusy,
    LedgerCorrupt,
)
from ledger.files import DIRECTORY_MODE, FILE_MODE, Folder, check_hint, require_local, translate
from ledger.journal import SEGMENT_BYTES, Journal, archive, first_generation
from ledger.recovery import Loaded, load
from ledger.state import Change, State
from ledger.transitions import rebase

LOCK = "ledger.lock"
HOLDER = "ledger.holder"
CHECKPOINT_BYTES = 32 * 1024**2
"""How far the journal grows before a checkpoint: a fraction of a second to replay."""

Operation = Callable[[State], Change]


@dataclass(slots=True)
class Batch:
    """Operations that become durable together, or not at all.

    `outcomes` has for each operation, in order, its result or the AxernError that it raised. They
    mean nothing before the batch is published: a refusal may rest on a change that came to nothing.
    `line` is empty if nothing has to be written.
    """

    outcomes: list[object]
    fork: State
    line: bytes = b""
    chain: str = ""
    only_beats: bool = True


class Ledger:
    """The one writer of a ledger; made by `open`, closed by `close` or at the end of `with`."""

    def __init__(
        self, folder: Folder, lock: filelock.BaseFileLock, loaded: Loaded, segment_bytes: int
    ) -> None:
        self.node_id = loaded.node_id
        self.checkpoint_generation = loaded.checkpoint_generation
        self._folder = folder
        self._lock = lock
        self._state = loaded.state
        self._journal = Journal(folder, loaded.position, loaded.state.generation, segment_bytes)
        self._written = loaded.replayed_bytes
        self._checkpointed = 0
        self._checkpoint_size = loaded.checkpoint_bytes
        self._finishing = threading.Lock()
        self._newest = (loaded.checkpoint_generation, 0)
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
                lock = _take_lock(folder, lock_timeout_s, holder, now, undo)
                folder.sweep()
                loaded = load(folder, now, node_id, create=create, segment_bytes=segment_bytes)
                if loaded.state.generation < least_generation:
                    raise LedgerCorrupt(
                        f"the ledger in {path} is at generation {loaded.state.generation}, but "
                        f"this boot has seen {least_generation}: an older copy was put back",
                        hint=check_hint(path),
                    )
                ledger = cls(folder, lock, loaded, segment_bytes)
                undo.callback(ledger._journal.close)
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
    def has_spare(self) -> bool:
        """Tell whether the next segment was made in advance."""
        return self._journal.has_spare

    @property
    def wants_spare(self) -> bool:
        """Tell whether it is time for `prepare_segment`."""
        return self._journal.is_half_full and not self._journal.has_spare

    def commit(self, operation: Operation, now: Now) -> object:
        """Perform *operation* durably and return its result.

        Raises:
            AxernError: What it raised; nothing is changed.
            CommitFailed: It is not durable, and not done.
        """
        batch = self.stage([operation], now)
        self.flush(batch)
        self.publish(batch)
        outcome = batch.outcomes[0]
        if isinstance(outcome, AxernError):
            raise outcome
        return outcome

    def stage(self, operations: Iterable[Operation], now: Now) -> Batch:
        """Apply *operations* in order to a fork; one that raises AxernError leaves no trace."""
        fork = self._state.fork()
        following = fork.generation + 1
        batch = Batch([], fork)
        changes = []
        for operation in operations:
            try:
                change = operation(fork)
            except AxernError as err:
                batch.outcomes.append(err)
                continue
            if change.puts:
                fork.apply(change)
                fork.generation = following
                changes.append(change)
                batch.only_beats &= change.operation == "beat"
            batch.outcomes.append(change.result)
        if changes:
            fork.clock = now
            batch.line, batch.chain = codec.encode_commit(
                following, now, changes, self._journal.position.chain
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
        self._journal.append(batch.line, batch.chain)
        self._written += len(batch.line)

    def publish(self, batch: Batch) -> None:
        """Let readers see *batch*, which was flushed."""
        if batch.line:
            if self._journal.generation != batch.fork.generation:
                raise InvariantViolation("a batch is published that was not flushed")
            self._state.merge(batch.fork)

    def prepare_segment(self) -> None:
        """Make the next segment in advance; may run in a thread beside commits.

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
            self._journal.close()
            self._folder.unlink(HOLDER)
            self._lock.release()
            self._folder.close()


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


def _take_lock(
    folder: Folder, timeout_s: float, holder: str, now: Now, undo: contextlib.ExitStack
) -> filelock.BaseFileLock:
    """Return the lock, held until *undo*; whoever waits for it in vain is told who has it."""
    lock = filelock.FileLock(
        os.path.join(folder.path, LOCK),
        timeout=timeout_s,
        mode=FILE_MODE,
        thread_local=False,
        blocking=True,
        is_singleton=False,
        poll_interval=0.05,
        lifetime=None,
        fallback_to_soft=False,
        preserve_lock_file=True,
    )
    try:
        lock.acquire()
    except filelock.Timeout as err:
        raise LedgerBusy(
            f"the ledger in {folder.path} is held by {_read_holder(folder)}",
            hint="wait until it ends, or stop it; the lock goes with it",
        ) from err
    undo.callback(lock.release)
    os.close(folder.open(LOCK))  # refuses what is no plain file; the lock is not this descriptor's
    since = datetime.fromtimestamp(now.wall_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    note = json.dumps({"pid": os.getpid(), "holder": holder, "since": since}) + "\n"
    checkpoint_file.write_small(folder, HOLDER, note.encode())
    return lock


def _read_holder(folder: Folder) -> str:
    try:
        note = json.loads(folder.read(HOLDER))
        return f"{note['holder']} (pid {note['pid']}, since {note['since']})"
    except (OSError, LedgerCorrupt, ValueError, KeyError, TypeError):
        return "a process that did not say who it is"
