"""Faults of the state and of its transitions: accounts, counts and rows that do not agree."""

from __future__ import annotations

from tests.mutation.fault import Fault

_STATE = "ledger/state.py"
_POSTINGS = "ledger/postings.py"
_MOVES = "ledger/transitions.py"

FAULTS = (
    Fault(
        _STATE,
        "            self._count(before, -1)\n",
        "            pass\n",
        "The count of entries only ever grows.",
    ),
    Fault(
        _STATE,
        "                self._deadlines.note(key)\n",
        "                pass\n",
        "A deadline that came with a commit is not known.",
    ),
    Fault(
        _STATE,
        "        self._counts.update(fork._counts)\n",
        "",
        "The caps on entries do not see what was committed.",
    ),
    Fault(
        _STATE,
        "        self._lanes.update(fork._lanes)\n",
        "",
        "A lane that was given in an earlier commit is given again.",
    ),
    Fault(
        _STATE,
        "        self._exposure = fork._exposure\n",
        "",
        "The sums of limits do not see what was committed.",
    ),
    Fault(
        _STATE,
        "self._lanes[reservation.lane] = reservation.id if count > 0 else None",
        "self._lanes[reservation.lane] = reservation.id",
        "A lane is never free again.",
    ),
    Fault(
        _POSTINGS,
        "account = RETIRING_ACCOUNT if row.phase == RETIRING else committed_account(row.namespace)",
        "account = committed_account(row.namespace)",
        "A retiring entry still counts against the quota.",
    ),
    Fault(
        _POSTINGS,
        "by_pool(row.charged, row.gpu_device)",
        "by_pool(row.requests, row.gpu_device)",
        "Memory that a retiring entry uses beyond its request is not charged.",
    ),
    Fault(
        _POSTINGS,
        "rest = row.amount.minus(row.drawdown)",
        "rest = row.amount",
        "What is drawn from a claim is charged twice.",
    ),
    Fault(
        _POSTINGS,
        "sums[rest] = sums.get(rest, 0) - sign * amount",
        "sums[rest] = -sign * amount",
        "Headroom keeps only the last of several postings.",
    ),
    Fault(
        _POSTINGS,
        "(HEADROOM, pool, -sign * amount))",
        "(HEADROOM, pool, -amount))",
        "A release takes from headroom once more instead of giving back.",
    ),
    Fault(
        _POSTINGS,
        "    promised |= {gpu_pool(device): size for device, size in row.gpu_allocatable}\n",
        "",
        "Memory of GPUs is never promised.",
    ),
    Fault(
        _STATE,
        "pools = self._balances[account] = dict(self.account(account))",
        "pools = self._balances[account] = {}",
        "A commit forgets what the other pools of an account held.",
    ),
    Fault(
        _STATE,
        "pools = self._balances[account] = dict(self.account(account))",
        "pools = self._balances[account] = self.account(account)  # type: ignore[assignment]",
        "A batch that is dropped has moved balances all the same.",
    ),
    Fault(
        _STATE,
        "return {key: amount for key, amount in merged.items() if amount}",
        "return merged",
        "Balances of 0 are told and written down.",
    ),
    Fault(
        _STATE,
        "for key, row in self._base.rows(table) if key not in own)",
        "for key, row in self._base.rows(table))",
        "A row that a batch has changed is seen twice, old and new.",
    ),
    Fault(
        _STATE,
        "            state._count(reservation, 1)\n",
        "",
        "After an opening no entry counts and every lane is free.",
    ),
    Fault(
        _STATE,
        "other._tables = {name: dict(rows) for name, rows in self._tables.items()}",
        "other._tables = dict(self._tables)",
        "A checkpoint changes while it is written.",
    ),
    Fault(
        _STATE,
        "            if put.row is None and self._base is None:\n                own.pop",
        "            if put.row is None:\n                own.pop",
        "What a batch removes is still there for the rest of it.",
    ),
    Fault(
        _STATE,
        "        self.last_lane = fork.last_lane\n",
        "",
        "A lane that was just freed is the next one to be given.",
    ),
    Fault(
        _MOVES,
        '    if granted is not None:\n        return Change("reserve", result=granted)\n',
        "",
        "A retry holds twice.",
    ),
    Fault(
        _MOVES,
        "if record.digest != digest:",
        "if not digest:",
        "A request id that was used for something else is answered with that.",
    ),
    Fault(
        _MOVES,
        "    if row is None:\n        raise StateConflict(",
        '    if row is None and key == "":\n        raise StateConflict(',
        "A retry of what was granted and has ended is granted anew.",
    ),
    Fault(
        _MOVES,
        "lane=free_lane(view, facts) if proposal.runtime else None",
        "lane=free_lane(view) if proposal.runtime else None",
        "A lane in quarantine is given to a sandbox.",
    ),
    Fault(
        _MOVES,
        "if view.lane_holder(lane) is None and lane not in quarantined:",
        "if lane not in quarantined:",
        "Two sandboxes share a lane once all have been given.",
    ),
    Fault(
        _MOVES,
        "_after(now.boottime_ms, _first_ttl_ms(proposal))",
        "_after(now.boottime_ms, proposal.ttl_ms)",
        "The first deadline lies behind the longest lifetime, or there is none.",
    ),
    Fault(
        _MOVES,
        "deadline = min(deadline, reservation.expires_limit_boottime_ms)",
        "deadline = max(deadline, reservation.expires_limit_boottime_ms)",
        "A renewal goes to the longest lifetime at once, and past it.",
    ),
    Fault(
        _MOVES,
        "expires_boottime_ms is None or deadline <= reservation.expires_boottime_ms:",
        "expires_boottime_ms is None:",
        "A renewal moves a deadline back.",
    ),
    Fault(
        _MOVES,
        "memory_bytes=max(charged.memory_bytes, memory_bytes)",
        "memory_bytes=memory_bytes",
        "An entry that retires gives memory back before it is proved gone.",
    ),
    Fault(
        _MOVES,
        "reason=reservation.reason or reason,",
        "reason=reason,",
        "Why an entry was stopped is overwritten by how it ended.",
    ),
    Fault(
        _MOVES,
        "    require_transition(reservation, RELEASED)\n",
        "",
        "What runs is uncharged.",
    ),
    Fault(
        _MOVES,
        "        *drawdown_put(view, reservation, None),\n",
        "",
        "A released entry is drawn from its claim for ever.",
    ),
    Fault(
        _MOVES,
        "for table in (tables.BEATS, tables.NETWORKS)",
        "for table in (tables.NETWORKS,)",
        "The heartbeat of an entry outlives it.",
    ),
    Fault(
        "ledger/rebase.py",
        "shift_ms = now.boottime_ms - view.clock.boottime_ms",
        "shift_ms = 0",
        "A deadline of the boot before is taken for one of this boot.",
    ),
    Fault(
        "ledger/rebase.py",
        "    puts.extend(Put(tables.BEATS, key, None) for key, _ in view.rows(tables.BEATS))\n",
        "",
        "Heartbeats of the boot before count in this one.",
    ),
    Fault(
        _MOVES,
        "        if view.row(tables.RESERVATIONS, key) is not None\n",
        "        if key\n",
        "A late heartbeat is written for an entry that is gone.",
    ),
    Fault(
        _MOVES,
        '        require_transition(reservation, str(fields["phase"]))\n',
        "        pass\n",
        "An entry may go from any phase to any other.",
    ),
    Fault(
        _MOVES,
        "if reservation.phase in (STOPPING, RETIRING):",
        "if reservation.phase == STOPPING:",
        "To stop what is retiring is an error instead of nothing.",
    ),
    Fault(
        _MOVES,
        "if view.reservation(reservation_id).phase == STOPPING:",
        "if view.reservation(reservation_id).phase == RETIRING:",
        "One that was asked to stop during its launch is not found again.",
    ),
    Fault(
        _MOVES,
        "if view.node() == node:",
        "if view.node() is not None:",
        "A host that grows or shrinks stays what it was first seen as.",
    ),
    Fault(
        "ledger/reservation.py",
        "STARTING: frozenset({RUNNING, STOPPING, RETIRING}),",
        "STARTING: frozenset({RUNNING, STOPPING, RETIRING, RELEASED}),",
        "What may exist in the kernel is released without a burial.",
    ),
)
