"""Make of a damaged ledger a copy that opens: every commit that verifies from a checkpoint on.

The damaged files are only read. What is kept is a prefix of what was answered: a commit behind the
first one that does not verify can't be kept, since nobody knows what it stands on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ledger import checkpoint as checkpoint_file
from ledger import codec, invariants
from ledger import contents as contents_of
from ledger.archive import ARCHIVE
from ledger.blank import END_BYTES, SEGMENT_BYTES, make_blank
from ledger.clock import Now
from ledger.codec import NO_CHAIN, Checkpoint, Malformed, Position
from ledger.contents import Contents
from ledger.errors import CommitFailed, LedgerCorrupt, LedgerTooNew, NotFound
from ledger.files import DIRECTORY_MODE, FILE_MODE, Folder, translate, write_all
from ledger.journal import segment_name, segments
from ledger.past import REPAIR, Line, Past, Segment, gives_up, lines_of
from ledger.recovery import NODE_ID
from ledger.state import Change
from ledger.tables import RESERVATIONS

Least = Callable[[str], int]

BIRTH = "birth"
"""The start of a journal that is there from its first line on, where no checkpoint verifies."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A commit that is whole by itself and stands behind the damage; `ids` are its entries."""

    generation: int
    place: str
    operations: tuple[str, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a repair keeps.

    `start` names what it begins with; commits up to `kept` are kept, `claimed` is the last one that
    the files speak of, and the copy goes on behind it, so that no number means two commits.
    `why` says what does not verify. `recounted` tells that the accounts contradicted the entries
    and are computed anew from them.
    """

    node_id: str
    why: str
    start: str
    kept: int
    claimed: int
    entries: int
    dropped: tuple[Dropped, ...]
    recounted: bool


@dataclass(frozen=True, slots=True)
class _Start:
    """Where a walk may begin: `chain` is that of `generation`."""

    name: str
    node_id: str
    generation: int
    chain: str
    clock: Now
    contents: Contents


@dataclass(slots=True)
class _Reached:
    """How far a walk from `start` came."""

    start: _Start
    generation: int
    chain: str
    clock: Now
    contents: Contents


def nobody_knows(_node_id: str) -> int:
    """Return the least generation of a node of which nothing is remembered."""
    return 0


def diagnose(folder: Folder, least: Least = nobody_knows) -> str | None:
    """Return why nobody opens the ledger in *folder*, or None where it opens.

    *least* returns what this boot has seen of a node.

    Raises:
        LedgerTooNew: A newer program wrote it: that is no damage.
        NotFound: No ledger has ever been there.
        OSError: It can't be read.
    """
    remains = {checkpoint_file.CHECKPOINT, checkpoint_file.PREVIOUS, NODE_ID, ARCHIVE}
    if not remains.intersection(folder.names()) and not segments(folder):
        raise NotFound(f"there is no ledger in {folder.path}", hint="name the right directory")
    try:
        present = contents_of.read(folder)
    except LedgerCorrupt as err:
        return err.message
    except FileNotFoundError:
        return f"{checkpoint_file.CHECKPOINT} is missing"
    found = invariants.check(present.contents.tables, present.contents.closing())
    if found:
        return found[0].message
    with contextlib.suppress(FileNotFoundError):
        if folder.read(NODE_ID).decode(errors="replace").strip() != present.base.node_id:
            return f"the file {NODE_ID} names another node than {present.base.node_id}"
    now, seen = present.contents.generation, least(present.base.node_id)
    if now < seen:
        return f"it is at generation {now}, but this boot has seen {seen}: an older copy"
    return None


def repair(
    directory: str | os.PathLike[str],
    target: str,
    *,
    now: Now,
    by: str,
    reason: str,
    least: Least = nobody_knows,
    segment_bytes: int = SEGMENT_BYTES,
) -> Plan | None:
    """Write a copy of the ledger in *directory* that opens to *target*; None if it opens itself.

    Args:
        directory: The damaged ledger; nothing of it is changed.
        target: A folder that is not there yet, on the same file system.
        now: The clocks; only the time of day is taken.
        by: Who repairs it, and
        reason: why: both stand in the first line behind the repair.
        least: Returns what this boot has seen of a node; the copy goes on behind that.
        segment_bytes: The size of a journal segment.
    Raises:
        LedgerCorrupt: Nothing verifies to begin with, or the entries contradict each other.
        LedgerTooNew, NotFound, PermissionDenied: As for every reader.
        CommitFailed: The copy can't be written.
    """
    path = os.path.abspath(directory)
    try:
        folder = Folder(path)
        try:
            why = diagnose(folder, least)
            if why is None:
                return None
            with Past(path) as past:
                reached = _farthest(folder, past)
                plan = _plan(past, reached, why, least(reached.start.node_id))
                line = _line(plan, reached, now, by, reason)
                _write(past, reached, plan, line, target, segment_bytes)
                return plan
        finally:
            folder.close()
    except OSError as err:
        raise translate(err, path) from err


def _farthest(folder: Folder, past: Past) -> _Reached:
    """Return the longest way that verifies; of equal ones, that from the newest checkpoint."""
    ways = [_follow(past, start) for start in _checkpoints(folder)]
    if not ways and past.firsts()[:1] == [1]:
        ways = [_follow(past, start) for start in _birth(folder, past)]
    if not ways:
        raise LedgerCorrupt(
            f"no checkpoint in {folder.path} verifies, and its journal does not go back to the "
            "first commit: there is nothing to begin with",
            hint="put the newest backup in its place, then: axern reservations doctor",
        )
    return max(ways, key=lambda way: way.generation)


def _checkpoints(folder: Folder) -> Iterator[_Start]:
    """Yield a start for each checkpoint that verifies and is of this node, the newest first."""
    with contextlib.suppress(FileNotFoundError, LedgerCorrupt):
        yield _start_at(checkpoint_file.CHECKPOINT, checkpoint_file.read(folder))
    with contextlib.suppress(FileNotFoundError, LedgerCorrupt, LedgerTooNew):
        yield _start_at(
            checkpoint_file.PREVIOUS, checkpoint_file.read(folder, checkpoint_file.PREVIOUS)
        )


def _start_at(name: str, base: Checkpoint) -> _Start:
    contents = contents_of.of(base)
    return _Start(name, base.node_id, base.generation, base.position.chain, base.clock, contents)


def _birth(folder: Folder, past: Past) -> Iterator[_Start]:
    """Yield the start before the first commit, whose time is taken for that of the birth."""
    if not folder.exists(NODE_ID):
        return
    node_id = folder.read(NODE_ID).decode(errors="replace").strip()
    for line in _whole_lines(past, 0):
        with contextlib.suppress(Malformed):
            clock = codec.decode_commit(line.data, NO_CHAIN).clock
            contents = contents_of.at_birth(clock.wall_ms)
            yield _Start(BIRTH, node_id, 0, NO_CHAIN, clock, contents)
            return


def _follow(past: Past, start: _Start) -> _Reached:
    """Walk from *start* as far as each line stands on the one before it."""
    reached = _Reached(start, start.generation, start.chain, start.clock, start.contents)
    for line in _whole_lines(past, start.generation):
        if line.generation is None or line.generation <= reached.generation:
            continue
        try:
            commit = codec.decode_commit(line.data, reached.chain)
        except Malformed:
            continue  # not the next one; what is, has the right chain wherever it stands
        wanted = reached.generation + 1
        if commit.generation != wanted and not gives_up(commit, wanted):
            continue
        reached.contents.take(commit)
        reached.generation, reached.chain = commit.generation, commit.chain
        reached.clock = commit.clock
    return reached


def _whole_lines(past: Past, since: int) -> Iterator[Line]:
    """Yield each line whose CRC is right and that is not void."""
    for segment in past.segments(since):
        for line in lines_of(segment):
            generation = line.generation
            if generation is not None and generation < (segment.following or generation + 1):
                yield line


def _plan(past: Past, reached: _Reached, why: str, least_generation: int) -> Plan:
    """Return what is kept of what there is."""
    contents, kept = reached.contents, reached.generation
    recounted = False
    if invariants.check(contents.tables, contents.closing()):
        recounted = True
        contents.balances = invariants.expected_balances(contents.tables)
        left = invariants.check(contents.tables, contents.closing())
        if left:
            raise LedgerCorrupt(
                f"the entries contradict each other {len(left)} times, first: {left[0].message}",
                hint="put the newest backup in its place, then: axern reservations doctor",
            )
    dropped = tuple(_dropped(past, kept))
    claimed = [kept, least_generation, *(each.generation for each in dropped)]
    claimed += [first - 1 for first in past.firsts()]
    return Plan(
        node_id=reached.start.node_id,
        why=why,
        start=reached.start.name,
        kept=kept,
        claimed=max(claimed),
        entries=len(contents.tables[RESERVATIONS]),
        dropped=dropped,
        recounted=recounted,
    )


def _dropped(past: Past, kept: int) -> Iterator[Dropped]:
    told = {kept}
    for line in _whole_lines(past, kept):
        with contextlib.suppress(Malformed):
            commit = codec.decode_commit(line.data, None)
            if commit.generation < kept or commit.generation in told:
                continue
            told.add(commit.generation)
            puts = [put for change in commit.changes for put in change.puts]
            ids = dict.fromkeys(put.key for put in puts if put.table == RESERVATIONS)
            operations = tuple(change.operation for change in commit.changes)
            yield Dropped(commit.generation, line.place, operations, tuple(ids))


def _line(plan: Plan, reached: _Reached, now: Now, by: str, reason: str) -> tuple[bytes, str]:
    """Return the line that says what was done, and its chain hash.

    It has the clocks of the last commit that is kept, so that deadlines are carried over to this
    boot by whoever opens it first.
    """
    note = f"{reason}; commits after {plan.kept} up to {plan.claimed} are given up: {plan.why}"
    change = Change(REPAIR, by=by, note=note)
    clock = replace(reached.clock, wall_ms=now.wall_ms)
    return codec.encode_commit(plan.claimed + 1, clock, [change], reached.chain)


def _write(
    past: Past,
    reached: _Reached,
    plan: Plan,
    line: tuple[bytes, str],
    target: str,
    segment_bytes: int,
) -> None:
    """Write the whole copy durably and read it again; a copy that failed is taken away."""
    try:
        os.mkdir(target, DIRECTORY_MODE)
    except FileExistsError as err:
        raise CommitFailed(f"{target} is there already", hint="try again in a second") from err
    try:
        os.chmod(target, DIRECTORY_MODE)  # whatever the umask is
        folder = Folder(target)
        try:
            _write_archive(folder, past, plan.kept)
            checkpoint_file.write_small(folder, NODE_ID, f"{plan.node_id}\n".encode())
            following = segment_name(plan.claimed + 1)
            _write_segment(folder, following, line[0], segment_bytes)
            position = Position(following, 0, reached.chain)
            rows, balances = reached.contents.tables, reached.contents.closing()
            base = Checkpoint(plan.node_id, plan.claimed, reached.clock, position, balances, rows)
            checkpoint_file.write(folder, base)
            _sync(os.path.dirname(target))
            left = diagnose(folder)
        finally:
            folder.close()
        if left is not None:
            raise LedgerCorrupt(f"the copy in {target} does not open: {left}")
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _write_segment(folder: Folder, name: str, line: bytes, segment_bytes: int) -> None:
    blank = make_blank(folder, max(segment_bytes, len(line) + END_BYTES))
    try:
        write_all(blank.fd, line, 0)
        os.fsync(blank.fd)
    finally:
        os.close(blank.fd)
    folder.rename(blank.name, name)
    folder.sync()


def _write_archive(folder: Folder, past: Past, kept: int) -> None:
    """Put every line up to *kept* into the archive: by link what is there already and is whole."""
    os.mkdir(ARCHIVE, DIRECTORY_MODE, dir_fd=folder.fd)
    os.chmod(ARCHIVE, DIRECTORY_MODE, dir_fd=folder.fd)
    archive = Folder(os.path.join(folder.path, ARCHIVE))
    try:
        for segment in past.segments():
            if segment.first > kept:
                break
            name = os.path.basename(segment.path)
            is_archived = os.path.basename(os.path.dirname(segment.path)) == ARCHIVE
            ends_before = segment.following is not None and segment.following <= kept + 1
            if is_archived and ends_before:
                with contextlib.suppress(OSError):  # another file system, or too many links
                    os.link(segment.path, name, dst_dir_fd=archive.fd, follow_symlinks=False)
                    continue
            _write_lines(archive, name, segment.lines[: _end(segment, kept)])
        archive.sync()
    finally:
        archive.close()
    folder.sync()


def _end(segment: Segment, kept: int) -> int:
    """Return where the last whole line up to generation *kept* ends; flaws before it stay."""
    end = 0
    for line in lines_of(segment):
        generation = line.generation
        if generation is not None and generation <= kept:
            end = line.offset + len(line.data)
    return end


def _write_lines(archive: Folder, name: str, lines: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(name, flags, FILE_MODE, dir_fd=archive.fd)
    try:
        os.fchmod(fd, FILE_MODE)
        write_all(fd, lines, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync(path: str) -> None:
    folder = Folder(path)
    try:
        folder.sync()
    finally:
        folder.close()
