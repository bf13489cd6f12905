"""Apply what callers ask for to a fork of the state, each on its own or some all together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger import request_ids, transitions
from ledger.errors import AxernError, CommitFailed, GroupRefused, InvariantViolation
from ledger.granting import Granting, Staged
from ledger.request_ids import EndedRequests
from ledger.state import Change, State

if TYPE_CHECKING:
    from ledger.claims import Host

Operation = Callable[[State], Change]

WHILE_SHORT = frozenset(
    {
        *("start", "run", "stop", "retire", "release", "forget-requests"),
        *("observe-node", "rebase", "drain", "undrain", "retire-node"),
        *("claim-release", "namespace-delete", "ticket-end", "queue-pause"),
    }
)
"""What is still done while the disk has no room: what brings entries nearer to their end, each a
bounded number of times, and what the daemon itself can't do without."""


@dataclass(frozen=True, slots=True)
class Group:
    """Operations of one caller, done in one commit; its outcome is the list of theirs.

    Those of an *atomic* group are done all or none: the first that is refused is the outcome of the
    group, as GroupRefused. Else each stands for itself, and its outcome may be the AxernError that
    it raised.
    """

    operations: tuple[Operation, ...]
    atomic: bool


@dataclass(slots=True)
class Batch:
    """Operations that become durable together, or not at all.

    `outcomes` has for each operation, in order, its result or the AxernError that it raised. They
    mean nothing before the batch is published: a refusal may rest on a change that came to nothing.
    `line` is empty if nothing has to be written. One that *gives back* has nothing in it that may
    make the ledger grow, so that it may take the ballast's room. `granted` are the grants of
    requests that have waited.
    """

    outcomes: list[object]
    fork: State
    line: bytes = b""
    chain: str = ""
    only_beats: bool = True
    gives_back: bool = True
    ended: list[str] = field(default_factory=list)
    drops: Mapping[str, int] = field(default_factory=dict)
    granted: list[Change] = field(default_factory=list)


@dataclass(slots=True)
class Queue:
    """Who grants what waits, and on what; None in `host` where nobody knows how the host is."""

    granting: Granting
    host: Host | None


class Stage:
    """Applies operations to the fork of one batch and keeps their changes for the journal's line.

    While *short* is set, what may make the ledger grow is refused with it, and nothing that waits
    is granted. After each operation those who wait have their turn.
    """

    def __init__(
        self, batch: Batch, following: int, short: CommitFailed | None, queue: Queue | None
    ) -> None:
        self.changes: list[Change] = []
        self._batch = batch
        self._following = following
        self._short = short
        self._queue = queue

    def apply(self, operations: Iterable[Operation | Group]) -> None:
        """Apply *operations* in order; one that raises AxernError leaves no trace."""
        fork, outcomes = self._batch.fork, self._batch.outcomes
        for operation in operations:
            try:
                if type(operation) is Group:
                    outcomes.append(self._apply_group(operation))
                else:
                    outcomes.append(self._apply(fork, operation, self._batch.ended))  # type: ignore[arg-type]
            except AxernError as err:
                outcomes.append(err)

    def forget_requests(self, ended: EndedRequests) -> None:
        """Forget what is too much of *ended*, now that there are more."""
        batch = self._batch
        if not batch.ended:
            return
        batch.drops = ended.over(batch.ended)
        if batch.drops:
            keys = ended.oldest(batch.ended, batch.drops, batch.fork)
            self._apply(batch.fork, lambda view: transitions.forget_requests(view, keys), [])

    def look(self) -> None:
        """Grant what waits and fits by what was observed since the last batch."""
        if self._queue is not None:
            self._let_grant(self._queue, None)

    def _apply(self, fork: State, operation: Operation, ended: list[str]) -> object:
        change = operation(fork)
        if not change.puts:
            return change.result
        name, batch = change.operation, self._batch
        if name not in WHILE_SHORT:
            if self._short is not None:
                raise self._short.anew()
            batch.gives_back = False
        if name in request_ids.ENDS:
            ended.extend(request_ids.ended_by(fork, change))
        fork.apply(change)
        fork.generation = self._following
        self.changes.append(change)
        if name != "beat":
            batch.only_beats = False
        if fork.waiting and self._queue is not None:
            self._let_grant(self._queue, change)
        return change.result

    def _let_grant(self, queue: Queue, change: Change | None) -> None:
        """Let those who wait have their turn, after *change* or by new facts."""
        if queue.host is None or self._short is not None:
            queue.granting.forget()  # what is missed now is found by asking everybody
            return
        on = Staged(self._batch.fork, queue.host, self._take)
        try:
            if change is None:
                queue.granting.look(on)
            else:
                queue.granting.after(on, change)
        except AxernError as err:  # it would be taken for a refusal of *change*, which is done
            raise InvariantViolation(f"a grant has failed: {err}") from err

    def _take(self, change: Change) -> None:
        """Let *change*, which the queue makes, be a part of the batch."""
        batch = self._batch
        batch.fork.apply(change)
        batch.fork.generation = self._following
        self.changes.append(change)
        batch.only_beats = batch.gives_back = False
        if change.operation == "grant":
            batch.granted.append(change)

    def _apply_group(self, group: Group) -> list[object]:
        if not group.atomic:
            inner = Stage(Batch([], self._batch.fork), self._following, self._short, self._queue)
            inner.apply(group.operations)
            self._take_over(inner)
            return inner._batch.outcomes
        trial = Stage(Batch([], self._batch.fork.fork()), self._following, self._short, self._queue)
        for index, operation in enumerate(group.operations):
            trial.apply((operation,))
            refused = trial._batch.outcomes[-1]
            if isinstance(refused, AxernError):
                if trial.changes and self._queue is not None:
                    self._queue.granting.forget()
                raise GroupRefused(index, refused)
        if trial.changes:
            self._batch.fork.merge(trial._batch.fork)
        self._take_over(trial)
        return trial._batch.outcomes

    def _take_over(self, inner: Stage) -> None:
        self.changes += inner.changes
        self._batch.ended += inner._batch.ended
        self._batch.only_beats &= inner._batch.only_beats
        self._batch.gives_back &= inner._batch.gives_back
        self._batch.granted += inner._batch.granted
