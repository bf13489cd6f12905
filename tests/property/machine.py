"""The ledger on real files against a dict: every operation, every kind of stop, after each a look.

What was acknowledged must be there, what was refused must have changed nothing, what was never
flushed must be gone, and rows and accounts must agree.
"""

import errno
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NoReturn
from unittest import mock

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ledger import invariants, reader
from ledger.clock import Now
from ledger.errors import AdmissionRefused, AxernError, CommitFailed, GroupRefused
from ledger.resources import OptionalResources
from ledger.staging import Batch, Group, Operation
from ledger.store import Ledger
from tests.property.model import (
    SPACES,
    Advance,
    BeatOp,
    Forget,
    Hold,
    Model,
    Observe,
    Op,
    Outcome,
    Renew,
    Reserve,
    Stand,
    seen,
)
from tests.property.model_namespaces import Bound, ChangeClaim, EndClaim, MakeClaim, Quota, Space

# Where a flush costs nothing: this is about what is written, not about disks.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
SEGMENT_BYTES = 16 * 1024
SECTOR_BYTES = 512


def any_of(ops: Sequence[Op]) -> st.SearchStrategy[Op]:
    """Draw one of *ops*; `sampled_from` does the same and spells out the whole list in reports."""
    return st.integers(0, len(ops) - 1).map(lambda index: ops[index])


WHICH = range(10)
SMALL = list(product((0, 1, 300, 900), (0, 4, 9), (1,)))
LARGE = [(0, 0, 0), *product((800, 4000, 6000), (15, 40, 90), (3, 6, 10))]
LIFETIMES = ((None, None), (700, None), (700, 5000), (5000, 700), (None, 5000), (0, 0))
REQUESTS = (*[(None, "")] * 9, *product(("q1", "q2", "q3"), "ab"))
QUOTAS = (
    *[OptionalResources()] * 4,
    OptionalResources(1000),
    OptionalResources(memory_bytes=12, sandbox_slots=2),
    OptionalResources(0, 0, sandbox_slots=0),
)
# The way forward is likelier than the ways out, or nothing would ever run.
TARGETS = (
    *["starting"] * 3,
    *["running"] * 3,
    *("stopping", "retiring", "retiring", "released", "released"),
)

# Every operation there is, made beforehand: drawing is most of what a step costs, and this way it
# is one draw.
RESERVING = [
    Reserve(0, "", space, amounts, lease, *lifetime, *request)
    for space, amounts, lease, lifetime, request in product(
        SPACES, SMALL, (False, True), LIFETIMES, REQUESTS
    )
]
ADVANCING = [
    Advance(which, "", target, memory) for memory, target, which in product((0, 12), TARGETS, WHICH)
]
LEASING = [
    *(Renew(which, "", ttl_ms) for ttl_ms, which in product((0, 700, 5000), WHICH)),
    *map(BeatOp, WHICH),
]
ADMINISTERING = [
    *(Observe(amounts=amounts) for amounts in LARGE),
    *(Quota(0, "", space, quota) for space, quota in product(SPACES, QUOTAS)),
    *(Hold(amounts=amounts) for amounts in (None, *SMALL)),
    *(Forget(request_id=name) for name in ("q1", "q2", "q3")),
    *(Stand(reason=reason) for reason in ("a", "b", *[""] * 6)),
    Stand(state="retired", reason="c"),
]
HOLDINGS = list(product((0, 300, 2000), (0, 4, 20), (0, 2)))
CLAIMING = [
    *(MakeClaim(0, "", *row) for row in product(SPACES[1:], HOLDINGS, (False, True), (None, 700))),
    *(
        ChangeClaim(0, "", *row)
        for row in product(SPACES[1:], HOLDINGS, (None, False, True), (None, 700))
    ),
    *[EndClaim(0, "", *row) for row in product(SPACES[1:], (False, True))] * 8,
    *[Space(0, "", *row) for row in product(SPACES, (False, True, True))] * 3,
    *(Bound(0, "", *row) for row in product(SPACES, (None, 100, 200))),
]
reserving = any_of(RESERVING)
advancing = any_of(ADVANCING)
leasing = any_of(LEASING)
administering = any_of(ADMINISTERING)
claiming = any_of(CLAIMING)
# Each kind about as often; 23 divides none of the products above, so every field still varies.
anything = any_of([*RESERVING[::23], *ADVANCING, *LEASING * 4, *ADMINISTERING * 2, *CLAIMING])
few = st.lists(anything, min_size=1, max_size=3)


def abandon(ledger: Ledger, path: str) -> None:
    """Close what the ledger has open below *path* and do nothing else, as the kernel does."""
    ledger._lock.release()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(path):
                os.close(int(name))
        except FileNotFoundError:
            continue


def refuse(_descriptor: int) -> NoReturn:
    """Stand in for a flush on a broken disk."""
    raise OSError(errno.EIO, "planted")


def outcome_of(outcome: object) -> str:
    """Return the code of an error, and an empty text for a result."""
    if isinstance(outcome, AdmissionRefused):
        return "refused"
    return outcome.code if isinstance(outcome, AxernError) else ""


class LedgerMachine(RuleBasedStateMachine):
    """One ledger and its model; `executed` counts the rules of all examples."""

    executed = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="axern-machine-", dir=MEMORY)
        self.path = os.path.join(self.folder.name, "ledger")
        self.now = Now("boot-0", 1000, 1000, 1000)
        self.boots = 0
        self.read_at = 0
        self.age = 0  # steps since it was opened: opening is dear, so there are a few between
        self.model = Model(self.now)
        self.ledger = self._open()
        self.is_open = True
        self.perform([Observe(amounts=(4000, 40, 6))])
        self.perform([Space(namespace=name) for name in SPACES[1:]])

    def teardown(self) -> None:
        if self.is_open:
            self.ledger.close()
        self.folder.cleanup()

    def _open(self) -> Ledger:
        return Ledger.open(
            self.path,
            self.now,
            segment_bytes=SEGMENT_BYTES,
            lock_timeout_s=0,
            least_generation=self.model.generation,
        )

    def expect(self, model: Model, ops: Sequence[Op]) -> tuple[list[Operation], list[Outcome]]:
        """Do *ops* to *model*; return what to hand to the ledger, and what it must answer."""
        operations, outcomes = self._expected(model, ops)
        if any(changed for _, changed in outcomes):
            model.generation += 1
            model.clock = self.now
        return operations, outcomes

    def _expected(self, model: Model, ops: Sequence[Op]) -> tuple[list[Operation], list[Outcome]]:
        operations: list[Operation] = []
        outcomes: list[Outcome] = []
        for op in ops:
            bound = op.bind(model)
            note(f"{bound}")
            outcomes.append(bound.expect(model, self.now))
            operations.append(partial(bound.change, now=self.now))
        return operations, outcomes

    def perform(self, ops: Sequence[Op]) -> None:
        """Commit *ops* together and compare each answer."""
        operations, outcomes = self.expect(self.model, ops)
        batch = self.ledger.stage(operations, self.now)
        self.ledger.flush(batch)
        self.ledger.publish(batch)
        self.compare(batch, outcomes)

    def compare(self, batch: Batch, outcomes: list[Outcome]) -> None:
        assert [outcome_of(outcome) for outcome in batch.outcomes] == [code for code, _ in outcomes]
        assert bool(batch.line) == any(changed for _, changed in outcomes)

    @rule(op=reserving)
    def reserve(self, op: Op) -> None:
        self.perform([op])

    @rule(ops=st.lists(reserving, min_size=1, max_size=3))
    def reserve_together(self, ops: list[Op]) -> None:
        self.perform(ops)

    @precondition(lambda self: self.model.entries)
    @rule(op=advancing)
    def advance(self, op: Op) -> None:
        self.perform([op])

    @precondition(lambda self: self.model.entries)
    @rule(op=advancing)
    def advance_again(self, op: Op) -> None:
        self.perform([op])

    @precondition(lambda self: self.model.entries)
    @rule(op=leasing)
    def lease(self, op: Op) -> None:
        self.perform([op])

    @rule(op=administering)
    def administer(self, op: Op) -> None:
        self.perform([op])

    @rule(op=claiming)
    def claim(self, op: Op) -> None:
        self.perform([op])

    @rule(ops=st.lists(anything, max_size=5))
    def commit_together(self, ops: list[Op]) -> None:
        self.perform(ops)

    @rule(ops=few, others=few, atomic=st.booleans())
    def commit_a_group(self, ops: list[Op], others: list[Op], atomic: bool) -> None:
        """One caller's operations between those of others: all or none, or each for itself."""
        model = self.model.copy()
        before, first = self._expected(model, others[:1])
        trial = model.copy()
        inner, expected = self._expected(trial, ops)
        refused = [code for code, _ in expected if code]
        kept = model if atomic and refused else trial
        kept.serial = trial.serial
        after, last = self._expected(kept, others[1:])
        batch = self.ledger.stage([*before, Group(tuple(inner), atomic), *after], self.now)
        group = batch.outcomes[len(before)]
        if atomic and refused:
            assert isinstance(group, GroupRefused)
            assert outcome_of(group.error) == refused[0]
        else:
            assert isinstance(group, list)
            assert [outcome_of(outcome) for outcome in group] == [code for code, _ in expected]
        outcomes = [*first, *([] if kept is model else expected), *last]
        if any(changed for _, changed in outcomes):
            kept.generation, kept.clock = self.model.generation + 1, self.now
        assert bool(batch.line) == any(changed for _, changed in outcomes)
        self.ledger.flush(batch)
        self.ledger.publish(batch)
        self.model = kept

    @rule(ops=few)
    def drop_a_batch(self, ops: list[Op]) -> None:
        operations, _ = self.expect(self.model.copy(), ops)
        self.ledger.stage(operations, self.now)

    @rule(milliseconds=st.integers(1, 5000))
    def wait(self, milliseconds: int) -> None:
        now = self.now
        self.now = replace(
            now,
            monotonic_ms=now.monotonic_ms + milliseconds,
            boottime_ms=now.boottime_ms + 2 * milliseconds,
            wall_ms=now.wall_ms - milliseconds,
        )

    @rule(op=anything, rotate=st.booleans(), spare=st.booleans())
    def checkpoint(self, op: Op, rotate: bool, spare: bool) -> None:
        """Write one in the background, while a commit goes on."""
        if spare:
            self.ledger.prepare_segment()
        begun = self.ledger.begin_checkpoint(rotate=rotate)
        self.perform([op])
        self.ledger.finish_checkpoint(begun)
        assert self.ledger.checkpoint_generation <= self.model.generation

    @rule(op=anything, rotate=st.booleans(), late=st.booleans())
    def fail_a_flush(self, op: Op, rotate: bool, late: bool) -> None:
        """What was in flight is not done, and after a reseal the ledger goes on.

        A *late* checkpoint began before and ends after the one that follows the reseal.
        """
        begun = self.ledger.begin_checkpoint(rotate=rotate) if late else None
        operations, outcomes = self.expect(self.model.copy(), [op])
        batch = self.ledger.stage(operations, self.now)
        try:
            with mock.patch.object(os, "fdatasync", new=refuse):
                self.ledger.flush(batch)
        except CommitFailed:
            assert outcomes[0][1]
        else:
            assert not outcomes[0][1]
        if self.ledger.failed:
            self.ledger.reseal()
        if begun is not None:
            self.ledger.checkpoint(rotate=False)
            self.ledger.finish_checkpoint(begun)

    @precondition(lambda self: self.age > 4)
    @rule(reboot=st.booleans(), clean=st.booleans(), times=st.sampled_from([1, 1, 1, 2]))
    def restart(self, reboot: bool, clean: bool, times: int) -> None:
        for _ in range(times):
            self.is_open = False
            if clean:
                self.ledger.close()
            else:
                abandon(self.ledger, self.path)
            self.reopen(reboot=reboot)

    @precondition(lambda self: self.age > 4)
    @rule(
        ops=st.lists(anything, min_size=1, max_size=3),
        at=st.integers(0, 2**16),
        how=st.integers(0, 7),
    )
    def die_while_writing(self, ops: list[Op], at: int, how: int) -> None:
        """Some of the last line reached the disk, in whole sectors: all, a part, or all but one."""
        model = self.model.copy()
        operations, outcomes = self.expect(model, ops)
        batch = self.ledger.stage(operations, self.now)
        self.compare(batch, outcomes)
        line, offset = batch.line, self.ledger._journal.position.offset
        sector = (offset + at % max(1, len(line))) // SECTOR_BYTES * SECTOR_BYTES - offset
        start, end = max(0, sector), min(len(line), sector + SECTOR_BYTES)
        torn = line[:start]
        if how == 0:
            torn = line
        elif how <= 3:
            torn = line[:start] + bytes(end - start) + line[end:]
        if offset + len(line) < self.ledger._journal._room:
            os.pwrite(self.ledger._journal._fd, torn, offset)
            if torn == line:
                self.model = model
        self.is_open = False
        abandon(self.ledger, self.path)
        self.reopen(reboot=bool(at % 2))

    def reopen(self, *, reboot: bool) -> None:
        if reboot:
            self.boots += 1
            self.now = Now(f"boot-{self.boots}", 50, 60, self.now.wall_ms)
        self.ledger = self._open()
        self.is_open, self.age = True, 0
        if self.model.clock.boot_id != self.now.boot_id:
            self.model.reboot(self.now)

    @precondition(lambda self: self.read_at != self.model.generation)
    @rule()
    def read_beside_the_writer(self) -> None:
        self.read_at = self.model.generation
        snapshot = reader.read(self.path)
        assert snapshot.generation == self.model.generation
        assert snapshot.state.all_rows() == self.ledger.state.all_rows()
        assert snapshot.state.balances() == self.ledger.state.balances()

    @invariant()
    def the_ledger_is_what_the_model_says(self) -> None:
        LedgerMachine.executed += 1
        self.age += 1
        state = self.ledger.state
        assert seen(state) == replace(self.model, serial=0)
        assert invariants.check(state.all_rows(), state.balances()) == []
