"""Random lives of a queue in a ledger on real files, each commit compared with the plain model.

Many come and wait, run and end, quotas and claims and the host change, daemons die. After each
commit: nobody waits who could be granted, nobody is lost, granted twice or passed by too often.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ledger import (
    check,
    claims,
    codec,
    decisions,
    invariants,
    namespaces,
    queue,
    tickets,
    transitions,
)
from ledger.capacity import node_of
from ledger.claims import ClaimProposal, ClaimUpdate, Host
from ledger.clock import Now
from ledger.facts import Facts
from ledger.reservation import EXTERNAL, RUN
from ledger.resources import Resources
from ledger.staging import Batch, Group
from ledger.state import Change, State
from ledger.store import Ledger
from ledger.tables import Wait
from ledger.tickets import QueuePolicy, Wish
from tests.property import queue_model
from tests.property.machine import MEMORY, abandon
from tests.unit.ledger.samples import POLICY, later, proposal

SPACES = ("default", "team-a", "team-b")
NODE = node_of(Resources(4000, 40, 40, 0, 8), Resources(), "1", (("gpu-0", 8), ("gpu-1", 12)))
SMALLER = node_of(Resources(3000, 30, 40, 0, 6), Resources(), "1", (("gpu-1", 12),))
BOUNDS = QueuePolicy(depth=12, namespace_depth=8, longest_ms=3_600_000)
POLICIES = replace(POLICY, entry_cap=10, namespace_entry_cap=7)
Operation = Callable[[State], Change]

amounts = st.builds(
    Resources,
    st.sampled_from([0, 500, 1000, 1000, 2500]),
    st.sampled_from([0, 4, 10, 10, 28]),
    st.sampled_from([0, 0, 0, 9, 30]),
    st.sampled_from([0, 0, 0, 0, 0, 5, 9]),
    st.just(1),
)
spaces = st.sampled_from(SPACES)
requires = st.sampled_from([(), (), (), ("a",)])
which = st.integers(0, 20)


class QueueMachine(RuleBasedStateMachine):
    """One ledger whose queue grants; `executed` counts the commits, `grants` those from it."""

    executed = grants = 0
    smallest_node = NODE

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="axern-queue-", dir=MEMORY)
        self.path = os.path.join(self.folder.name, "ledger")
        self.now = Now("boot-0", 100_000, 200_000, 1_700_000_000_000)
        self.facts = Facts(1, self.now.monotonic_ms, ("a",))
        self.serial = 0
        self.seen_facts = 0
        self.waiting: set[str] = set()
        self.granted: set[str] = set()
        self.passed: Counter[str] = Counter()
        self.ledger = self._open()
        self.is_open = True
        self.commit(lambda view: transitions.observe_node(view, NODE))
        for name in SPACES[1:]:
            self.commit(partial(namespaces.create, name=name, now=self.now, by="uid:0"))

    def _open(self) -> Ledger:
        ledger = Ledger.open(self.path, self.now, segment_bytes=256 * 1024, lock_timeout_s=0)
        ledger.host_at = self.host
        self.seen_facts = -1
        return ledger

    def host(self, now: Now) -> Host:
        return Host(self.facts, now, POLICIES)

    def teardown(self) -> None:
        try:
            if self.is_open:
                self.ledger.close()
                self._judge_files()
        finally:
            self.folder.cleanup()

    def _judge_files(self) -> None:
        """Decide all that the journal says again, and let the checker look at it."""
        found = check.examine(self.path).findings
        assert [each for each in found if each.severity != "warning"] == []
        outcome = decisions.replay(self.path, POLICIES)
        assert (outcome.difference, outcome.capped) == (None, [])

    def commit(self, *operations: Operation | Group, keep: bool = True) -> Batch:
        """Commit *operations* together; a batch that is not kept comes to nothing."""
        batch = self.ledger.stage(operations, self.now)
        QueueMachine.executed += 1
        changes = codec.decode_commit(batch.line, None).changes if batch.line else ()
        note(f"{[(each.operation, each.puts[0].key) for each in changes]}")
        self.judge(changes)
        if not keep:
            self.passed = self.passed_before
        if keep:
            self.ledger.flush(batch)
            self.ledger.publish(batch)
            self.seen_facts = self.facts.sequence
            self._account(changes)
        return batch

    def judge(self, changes: tuple[Change, ...]) -> None:
        """Compare the changes that the queue made with those that the model makes."""
        self._judge_passing(changes)
        view, host = self.ledger.state.fork(), self.host(self.now)
        journaled = list(changes)
        while journaled:
            change = journaled.pop(0)
            if change.operation in queue_model.OF_QUEUE:  # by new facts alone
                journaled.insert(0, change)
                break
            view.apply(change)
            self._expect(queue_model.follow(view, change, host), journaled)
        self._expect(queue_model.follow(view, None, host), journaled)
        assert journaled == [], f"{journaled}"
        if queue_model.is_open(view, host):
            left = [each for each in queue.waiters(view) if queue_model.fits(view, each, host)]
            assert left == []
        assert all(each.wait.bypasses <= 2 for each in queue.waiters(view))

    def _judge_passing(self, changes: tuple[Change, ...]) -> None:
        view, host = self.ledger.state.fork(), self.host(self.now)
        before = self.passed.copy()
        for change in changes:
            self._count(view, change, host)
            view.apply(change)
        self.passed_before = before

    def _count(self, view: State, change: Change, host: Host) -> None:
        """Count by itself how often the head was passed by, where it is short of something."""
        for key in [put.key for put in change.puts if isinstance(put.row, Wait)]:
            if change.operation == "hold":
                self.passed[key] = 0  # it was let go
        if change.operation not in queue_model.ADMISSIONS or not queue_model.is_open(view, host):
            return
        head = queue_model.head_of(view, host, change.puts[0].key)
        if head is None:
            return
        if queue_model.hurts(view, head, change, host):
            self.passed[head.ticket.id] += 1
        assert self.passed[head.ticket.id] <= 2

    @staticmethod
    def _expect(wanted: object, journaled: list[Change]) -> None:
        for change in wanted:  # type: ignore[attr-defined]
            assert journaled, f"{change.operation} {change.puts[0].key} is missing"
            found = journaled.pop(0)
            same = (found.operation, set(found.puts)) == (change.operation, set(change.puts))
            assert same, f"{found} instead of {change}"

    def _account(self, changes: tuple[Change, ...]) -> None:
        """Follow each who waits: to a grant, once, or to an end."""
        for change in changes:
            key = change.puts[0].key
            if change.operation == "wait":
                assert key not in self.waiting | self.granted
                self.waiting.add(key)
            elif change.operation == "grant":
                assert key in self.waiting
                assert key not in self.granted
                self.waiting.remove(key)
                self.granted.add(key)
                QueueMachine.grants += 1
            elif change.operation == "ticket-end":
                self.waiting.remove(key)

    def _proposal(
        self, space: str, amount: Resources, need: tuple[str, ...], *, lease: bool
    ) -> transitions.Proposal:
        self.serial += 1
        key = f"{self.serial:032x}"
        kind = EXTERNAL if lease else RUN
        return proposal(
            key, amount, namespace=space, kind=kind, requires=need, request_id=key, ttl_ms=900_000
        )

    def waits(
        self, space: str, amount: Resources, priority: int, need: tuple[str, ...], *, lease: bool
    ) -> Operation:
        wanted = self._proposal(space, amount, need, lease=lease)
        wish, now = Wish(600_000, priority), self.now
        return lambda view: tickets.wait(view, wanted, wish, self.host(now), BOUNDS)

    def reserves(self, space: str, amount: Resources, *, lease: bool) -> Operation:
        wanted, now, facts = self._proposal(space, amount, (), lease=lease), self.now, self.facts
        return lambda view: transitions.reserve(view, wanted, facts, now, POLICIES)

    def releases(self, index: int, *, retire: bool) -> Operation:
        """Return the operation that ends an entry, or begins its end."""

        def operation(view: State) -> Change:
            rows = sorted(view.reservations(), key=lambda row: row.id)
            if not rows:
                return Change("nothing")
            row = rows[index % len(rows)]
            if retire and row.phase == "reserved" and row.is_sandbox:
                return transitions.retire(view, row.id, "exit", row.requests.memory_bytes)
            return transitions.release(view, row.id, "gone")

        return operation

    @rule(space=spaces, amount=amounts, priority=st.sampled_from([5, 5, 5, 0, 9]), need=requires)
    def wait(self, space: str, amount: Resources, priority: int, need: tuple[str, ...]) -> None:
        self.commit(self.waits(space, amount, priority, need, lease=False))

    @rule(asked=st.lists(st.tuples(spaces, amounts, st.booleans()), min_size=1, max_size=4))
    def wait_together(self, asked: list[tuple[str, Resources, bool]]) -> None:
        self.commit(
            *(self.waits(space, amount, 5, (), lease=lease) for space, amount, lease in asked)
        )

    @rule(asked=st.lists(st.tuples(spaces, amounts), min_size=1, max_size=4))
    def reserve(self, asked: list[tuple[str, Resources]]) -> None:
        self.commit(*(self.reserves(space, amount, lease=False) for space, amount in asked))

    @rule(ends=st.lists(st.tuples(which, st.booleans()), min_size=1, max_size=3))
    def release(self, ends: list[tuple[int, bool]]) -> None:
        self.commit(*(self.releases(index, retire=retire) for index, retire in ends))

    @rule(index=which)
    def release_one(self, index: int) -> None:
        self.commit(self.releases(index, retire=False))

    @rule(index=which)
    def release_twice(self, index: int) -> None:
        """The first time the disk refuses."""
        self.commit(self.releases(index, retire=False), keep=False)
        self.commit(self.releases(index, retire=False))

    @rule(index=which)
    def release_another(self, index: int) -> None:
        self.commit(self.releases(index, retire=False))

    @rule(space=spaces, amount=amounts)
    def wait_patiently(self, space: str, amount: Resources) -> None:
        self.commit(self.waits(space, amount, 5, (), lease=True))

    @rule(
        index=which,
        space=spaces,
        amount=amounts,
        atomic=st.booleans(),
        keep=st.sampled_from([True, True, False]),
    )
    def many(self, index: int, space: str, amount: Resources, atomic: bool, keep: bool) -> None:
        """Ends and admissions in one commit, some of it all or none, some of it for nothing."""
        group = Group(
            (self.releases(index, retire=False), self.reserves(space, amount, lease=True)), atomic
        )
        end = self.releases(index + 1, retire=False)
        self.commit(end, group, self.reserves(space, amount, lease=False), keep=keep)

    @rule(index=which)
    def give_up(self, index: int) -> None:
        keys = sorted(self.waiting)
        key = keys[index % len(keys)] if keys else "nobody"
        self.commit(lambda view: tickets.give_up(view, key, "it went away", "uid:1000"))

    @rule(
        space=spaces,
        cpu=st.sampled_from([None, None, None, 500, 2000]),
        slots=st.sampled_from([None, None, 1]),
    )
    def set_quota(self, space: str, cpu: int | None, slots: int | None) -> None:
        ceilings = {"cpu_milli": cpu, "sandbox_slots": slots}
        self.commit(lambda view: namespaces.set_quota(view, space, ceilings, "uid:0"))

    @rule(
        space=spaces,
        cpu=st.sampled_from([500, 2000]),
        gpu=st.sampled_from([0, 4]),
        hard=st.booleans(),
    )
    def claim(self, space: str, cpu: int, gpu: int, hard: bool) -> None:
        wanted = {"cpu_milli": cpu, "gpu_memory_bytes": gpu, "memory_bytes": cpu // 100}
        there, host = self.ledger.state.claim_of(space), self.host(self.now)
        asked = ClaimProposal(f"claim-{space}-{self.serial}", space, wanted, hard, None)
        if there is None:
            self.commit(lambda view: claims.create(view, asked, host, "uid:0"))
        elif gpu:
            self.commit(lambda view: claims.release(view, there.id, "uid:0"))
        else:
            update = ClaimUpdate(wanted, hard)
            self.commit(lambda view: claims.update(view, there.id, update, host, "uid:0"))

    @rule(
        able=st.sampled_from([True, True, False]),
        in_use=st.sampled_from([None, 0, 0, 20]),
        free=st.sampled_from([None, None, 50, 20]),
    )
    def observe(self, able: bool, in_use: int | None, free: int | None) -> None:
        self.facts = Facts(
            self.facts.sequence + 1,
            self.now.monotonic_ms,
            ("a",) if able else (),
            storage_free_bytes=free,
            sandboxes_memory_bytes=in_use,
        )
        self.commit(lambda view: transitions.observe_node(view, view.node() or NODE))

    @rule(small=st.sampled_from([False, False, True]))
    def change_the_host(self, small: bool) -> None:
        node = SMALLER if small else NODE
        self.commit(lambda view: transitions.observe_node(view, node))

    @rule(resting=st.sampled_from([False, False, False, True]))
    def rest(self, resting: bool) -> None:
        verb, now = (tickets.pause if resting else tickets.resume), self.now
        self.commit(lambda view: verb(view, "uid:0", now))

    @rule(seconds=st.sampled_from([1, 1, 10, 200]))
    def pass_time(self, seconds: int) -> None:
        self.now = later(self.now, seconds)
        self.observe(able=True, in_use=None, free=None)
        for key in sorted(self.waiting):
            self.commit(partial(tickets.expire, ticket_id=key, now=self.now))

    @precondition(lambda self: self.waiting)
    @rule(crash=st.booleans(), reboot=st.booleans())
    def restart(self, crash: bool, reboot: bool) -> None:
        self.is_open = False
        if crash:
            abandon(self.ledger, self.path)
        else:
            self.ledger.close()
        if reboot:
            boot = f"boot-{self.serial}-{self.executed}"
            self.now = Now(boot, 5_000, 6_000, self.now.wall_ms)
            self.facts = replace(self.facts, observed_monotonic_ms=self.now.monotonic_ms)
        self.ledger = self._open()
        self.is_open = True
        self.observe(able=True, in_use=None, free=None)

    @invariant()
    def rows_and_accounts_agree(self) -> None:
        state = self.ledger.state
        assert invariants.check(state.all_rows(), state.balances()) == []
        assert {each.ticket.id for each in queue.waiters(state)} == self.waiting
        assert state.waiting == len(self.waiting)
