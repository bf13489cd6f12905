"""Decide everything again: each decision of the journal, from its facts and what was there before.

The decider is `ledger.admission.evaluate`, called by `transitions.reserve` as it was then. What a
decision rests on stands in the journal, but for the caps of the configuration.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from ledger import checkpoint as checkpoint_file
from ledger import contents as contents_of
from ledger import queue_decisions, transitions
from ledger.admission import AdmissionPolicy
from ledger.claims import Host
from ledger.clock import Now
from ledger.difference import (
    CHECKPOINT,
    DECISION,
    PHASE,
    POSTINGS,
    Difference,
    apart,
    difference,
    rows_that_differ,
)
from ledger.errors import AxernError, InvalidArgument, LedgerCorrupt, LedgerTooNew
from ledger.files import Folder, check_hint, translate
from ledger.past import TORN, Flaw, Line, Past, gives_up, walk
from ledger.postings import postings_for
from ledger.reservation import LANES, RELEASED, TRANSITIONS, Reservation
from ledger.spec import ResolvedSpec
from ledger.state import Posting, Put, State
from ledger.tables import (
    NESTED,
    NETWORKS,
    REQUESTS,
    RESERVATIONS,
    Nested,
    Network,
    RequestRecord,
    request_key,
)
from ledger.units import MAX_INTEGER

if TYPE_CHECKING:
    from ledger.codec import Checkpoint, Commit
    from ledger.state import Change

_NO_CAPS = AdmissionPolicy(MAX_INTEGER, MAX_INTEGER, MAX_INTEGER)
_MOST_CAPPED = 20


@dataclass(slots=True)
class Outcome:
    """What was decided again; `difference` is the first that came out otherwise.

    `since` is the generation whose rows it began with, `state` that of `generation`. `capped` are
    grants that only the caps of today's configuration would refuse, the first ones.
    """

    since: int
    state: State
    operations: int = 0
    decisions: int = 0
    capped: list[Difference] = field(default_factory=list)
    difference: Difference | None = None


def replay(
    directory: str | os.PathLike[str],
    policy: AdmissionPolicy,
    *,
    to_generation: int | None = None,
    to_wall_ms: int | None = None,
) -> Outcome:
    """Decide everything again, up to a generation or a time; stop at the first difference.

    It begins as far back as the files go without a gap: at birth, or with a checkpoint's rows.

    Args:
        directory: The ledger's folder; a daemon may be writing to it.
        policy: The caps, which stand in no line of the journal.
        to_generation: The last commit; None is all.
        to_wall_ms: Commits after this time, in milliseconds since the epoch, are left out.
    Raises:
        InvalidArgument: The files do not go back that far, or not up to there.
        LedgerCorrupt: A line behind the last checkpoint does not verify.
        OSError, LedgerTooNew: As for every reader.
    """
    path = os.path.abspath(directory)
    try:
        folder = Folder(path)
        try:
            base = checkpoint_file.read(folder)
            with Past(path) as past:
                last = MAX_INTEGER if to_generation is None else to_generation
                until_ms = MAX_INTEGER if to_wall_ms is None else to_wall_ms
                outcome = _Replay(folder, past, base, policy).run(last, until_ms)
        finally:
            folder.close()
    except OSError as err:
        raise translate(err, path) from err
    reached = outcome.state.generation
    if outcome.difference is None and to_generation not in (None, reached):
        if reached < base.generation:
            raise _not_kept(base.generation)
        raise InvalidArgument(
            f"the ledger ends at generation {reached}, before {to_generation}",
            hint="without a generation, everything is decided again",
        )
    return outcome


def _not_kept(generation: int) -> InvalidArgument:
    return InvalidArgument(
        f"what is left of the journal allows to begin at generation {generation} at the earliest",
        hint="name a later one; see what is missing with: axern ledger check",
    )


class _Replay:
    """One walk through the journal, with the state at each moment."""

    def __init__(
        self, folder: Folder, past: Past, base: Checkpoint, policy: AdmissionPolicy
    ) -> None:
        self._folder = folder
        self._past = past
        self._policy = policy
        self._starts = sorted(_checkpoints(folder, base), key=lambda each: each.generation)
        self._base = base
        self._outcome: Outcome | None = None

    def run(self, last: int, until_ms: int) -> Outcome:
        """Return the outcome."""
        if self._past.firsts()[:1] == [1]:
            self._outcome = Outcome(0, _newborn())
        for each in walk(self._past):
            if isinstance(each, Flaw):
                self._lose(each)
                continue
            line, commit = each
            if commit.generation > last or commit.clock.wall_ms > until_ms:
                break
            self._meet_checkpoints(commit.generation - 1)
            outcome = self._outcome
            if outcome is None or commit.generation <= outcome.state.generation:
                continue
            wanted = outcome.state.generation + 1
            if commit.generation != wanted and not gives_up(commit, wanted):
                self._outcome = None  # lines in between are not kept any more
                continue
            outcome.difference = outcome.difference or self._decide(line, commit, outcome)
            if outcome.difference is not None:
                return outcome
        within = (each.generation for each in self._starts if each.clock.wall_ms <= until_ms)
        self._meet_checkpoints(min(last, max(within, default=0)))
        if self._outcome is None:
            oldest = self._starts[0] if self._starts else self._base
            raise _not_kept(oldest.generation)
        return self._outcome

    def _lose(self, flaw: Flaw) -> None:
        """Give up what was known, unless nothing after *flaw* is known either."""
        if flaw.kind == TORN:
            return
        if flaw.generation > self._base.generation:
            raise LedgerCorrupt(f"{flaw.place}: {flaw.rule}", hint=check_hint(self._folder.path))
        self._outcome = None

    def _meet_checkpoints(self, reached: int) -> None:
        """Compare with each checkpoint up to *reached*, or begin with its rows."""
        while self._starts and self._starts[0].generation <= reached:
            checkpoint = self._starts.pop(0)
            outcome = self._outcome
            found = _against(outcome.state, checkpoint) if outcome else None
            if outcome is not None and outcome.state.generation == checkpoint.generation:
                outcome.difference = outcome.difference or found
            elif outcome is None or found is not None:  # lines in between are not kept any more
                rows, clock = checkpoint.tables, checkpoint.clock
                state = State.load(clock, checkpoint.generation, rows, checkpoint.balances)
                self._outcome = Outcome(checkpoint.generation, state)
            else:  # a repair leapt to this number
                outcome.state.generation = checkpoint.generation

    def _decide(self, line: Line, commit: Commit, outcome: Outcome) -> Difference | None:
        """Decide the operations of *commit* again, and apply them."""
        state = outcome.state
        for change in commit.changes:
            outcome.operations += 1
            for found in self._operation(state, change, commit, outcome):
                return replace(found, generation=commit.generation, place=line.place)
            state.apply(change)
        state.generation, state.clock = commit.generation, commit.clock
        return None

    def _operation(
        self, state: State, change: Change, commit: Commit, outcome: Outcome
    ) -> Iterator[Difference]:
        yield from _phases(state, change)
        if change.operation in queue_decisions.OPERATIONS:
            yield from self._of_queue(state, change, commit, outcome)
        else:
            yield from self._grants(state, change, commit, outcome)
        wanted, have = _sums(postings_for(state, change.puts)), _sums(change.postings)
        if wanted != have:
            key = min(key for key in wanted.keys() | have.keys() if wanted[key] != have[key])
            yield difference(
                POSTINGS, change, " ".join(key), f"{have[key]}", f"{wanted[key]} by its rows"
            )

    def _of_queue(
        self, state: State, change: Change, commit: Commit, outcome: Outcome
    ) -> Iterator[Difference]:
        """Do what *change* does to the queue again."""
        outcome.decisions += 1
        now, key = commit.clock, change.puts[0].key
        made = queue_decisions.again(state, change, Host(change.facts, now, self._policy))
        if isinstance(made, str):
            found = difference(DECISION, change, key, "done", made)
            made = queue_decisions.again(state, change, Host(change.facts, now, _NO_CAPS))
            if isinstance(made, str):
                yield found
                return
            if len(outcome.capped) < _MOST_CAPPED:
                outcome.capped.append(replace(found, generation=commit.generation))
        row = next((put.row for put in change.puts if isinstance(put.row, Reservation)), None)
        if row is not None and isinstance(made.result, Reservation):
            decided = _with_lane(made, made.result, row, state, change)
            if isinstance(decided, AxernError):
                yield difference(DECISION, change, key, "granted", decided.message)
                return
            made = decided
        yield from rows_that_differ(change, made.puts)

    def _grants(
        self, state: State, change: Change, commit: Commit, outcome: Outcome
    ) -> Iterator[Difference]:
        """Decide each reservation that *change* makes again, in order."""
        fork, puts = state.fork(), {(put.table, put.key): put.row for put in change.puts}
        made: list[Put] = []
        for put in change.puts:
            row = put.row
            if not isinstance(row, Reservation) or state.find_reservation(put.key) is not None:
                continue
            outcome.decisions += 1
            decided = _reserve(fork, row, puts, change, commit, self._policy)
            if isinstance(decided, AxernError):
                words = f"refused: {decided.message} [{decided.code}]"
                found = difference(DECISION, change, row.id, "granted", words)
                decided = _reserve(fork, row, puts, change, commit, _NO_CAPS)
                if isinstance(decided, AxernError):
                    yield found
                    return
                if len(outcome.capped) < _MOST_CAPPED:
                    outcome.capped.append(replace(found, generation=commit.generation))
            fork.apply(decided)
            made += decided.puts
        if made:
            yield from rows_that_differ(change, made)


def _reserve(
    view: State,
    row: Reservation,
    puts: Mapping[tuple[str, str], object],
    change: Change,
    commit: Commit,
    policy: AdmissionPolicy,
) -> Change | AxernError:
    """Return the change that grants *row* again, or the error that refuses it."""
    place = puts.get((NESTED, row.id))
    record = puts.get((REQUESTS, request_key(row.owner.uid, row.request_id or "")))
    network = puts.get((NETWORKS, row.id))
    proposal = transitions.Proposal(
        id=row.id,
        namespace=row.namespace,
        owner=row.owner,
        spec=row.spec,
        resolved=ResolvedSpec(row.requests, row.limits),
        digest=record.digest if isinstance(record, RequestRecord) else "",
        enforced=row.enforced,
        runtime=row.runtime,
        requires=row.requires,
        request_id=row.request_id,
        owner_process=row.owner_process,
        ttl_ms=_since(row.created_boottime_ms, row.expires_boottime_ms),
        max_lifetime_ms=_since(row.created_boottime_ms, row.expires_limit_boottime_ms),
        token_sha256=row.token_sha256,
        network=network if isinstance(network, Network) else None,
        parent_id=place.parent_id if isinstance(place, Nested) else None,
    )
    late_ms = commit.clock.boottime_ms - row.created_boottime_ms
    now = Now(
        commit.clock.boot_id,
        commit.clock.monotonic_ms - late_ms,
        row.created_boottime_ms,
        row.created_wall_ms,
    )
    try:
        made = transitions.reserve(view, proposal, change.facts, now, policy)
    except AxernError as error:
        return error
    granted = cast("Reservation", made.result)
    if not made.puts:
        words = f"its request id was granted to {granted.id} already"
        return InvalidArgument(words)
    return _with_lane(made, granted, row, view, change)


def _with_lane(
    made: Change, granted: Reservation, row: Reservation, view: State, change: Change
) -> Change | AxernError:
    """Let *made* have the lane of *row*: any that was free would do, which one is no decision."""
    if row.lane is None or granted.lane is None:
        return made
    quarantined = change.facts.quarantined_lanes if change.facts else ()
    holder = view.lane_holder(row.lane)
    if holder is not None or row.lane in quarantined or not 0 <= row.lane < LANES:
        return InvalidArgument(f"lane {row.lane} was not free: {holder or 'in quarantine'}")
    moved = replace(granted, lane=row.lane)
    puts = tuple(Put(put.table, put.key, moved) if put.row is granted else put for put in made.puts)
    return replace(made, puts=puts, result=moved)


def _phases(state: State, change: Change) -> Iterator[Difference]:
    for put in change.puts:
        before = state.find_reservation(put.key) if put.table == RESERVATIONS else None
        if before is None:
            continue
        after = put.row.phase if isinstance(put.row, Reservation) else RELEASED
        if after != before.phase and after not in TRANSITIONS[before.phase]:
            allowed = ", ".join(sorted(TRANSITIONS[before.phase]))
            words = f"{before.phase} may become {allowed}"
            yield difference(PHASE, change, put.key, f"{before.phase} became {after}", words)


def _against(state: State, checkpoint: Checkpoint) -> Difference | None:
    """Return where *checkpoint* is not what the journal before it makes."""
    name = f"generation {checkpoint.generation}"
    for table, rows in checkpoint.tables.items():
        counted = dict(state.rows(table))
        for key in sorted(counted.keys() | rows.keys()):
            mine, theirs = counted.get(key), rows.get(key)
            if contents_of.comparable(mine) != contents_of.comparable(theirs):
                return Difference(
                    CHECKPOINT,
                    checkpoint.generation,
                    f"the checkpoint of {name}",
                    CHECKPOINT,
                    f"{table} {key}",
                    *apart(theirs, mine),
                )
    return None


def _checkpoints(folder: Folder, base: Checkpoint) -> Iterator[Checkpoint]:
    with contextlib.suppress(FileNotFoundError, LedgerCorrupt, LedgerTooNew):
        yield checkpoint_file.read(folder, checkpoint_file.PREVIOUS)
    yield base


def _newborn() -> State:
    return State.load(Now("", 0, 0, 0), 0, contents_of.at_birth().tables, {})


def _sums(postings: tuple[Posting, ...]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for account, pool, amount in postings:
        found[account, pool] += amount
    return Counter({key: amount for key, amount in found.items() if amount})


def _since(start_ms: int, end_ms: int | None) -> int | None:
    return None if end_ms is None else end_ms - start_ms
