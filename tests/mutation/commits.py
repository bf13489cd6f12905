"""Faults of commits: what is answered before, after or instead of what was done."""

from __future__ import annotations

from tests.mutation.fault import Fault

_COMMITTER = "ledger/committer.py"
_UPKEEP = "ledger/upkeep.py"
_STAGING = "ledger/staging.py"
_STORE = "ledger/store.py"

FAULTS = (
    Fault(
        _COMMITTER,
        "if self._closing or self._waiting + size > self._queue_limit:",
        "if self._closing:",
        "The queue has no bound.",
    ),
    Fault(
        _COMMITTER,
        "if self._closing or self._waiting + size > self._queue_limit:",
        "if self._waiting + size > self._queue_limit:",
        "A committer that is being closed takes more work.",
    ),
    Fault(
        _COMMITTER,
        "        self._waiting += size\n",
        "",
        "What waits is not counted, so that the queue has no bound.",
    ),
    Fault(
        _COMMITTER,
        "        if failure is not None and self._may_reseal():\n",
        "        if failure is not None and self._closing:\n",
        "What was told to be not done may be there after a crash.",
    ),
    Fault(
        _COMMITTER,
        "        if failure is None:\n            self._ledger.publish(batch)\n",
        "        if batch.line or failure is None:\n            self._ledger.publish(batch)\n",
        "What is not durable is shown to readers.",
    ),
    Fault(
        _COMMITTER,
        "return self._ledger.failed and self._loop.time() >= self._reseal_after_s",
        "return self._ledger.failed",
        "A disk that refuses is asked again by every caller.",
    ),
    Fault(
        _COMMITTER,
        "min(2 * self._reseal_pause_s, RESEAL_LONGEST_PAUSE_S)",
        "min(self._reseal_pause_s, RESEAL_LONGEST_PAUSE_S)",
        "A disk that refuses for hours is asked ten times a second.",
    ),
    Fault(
        _COMMITTER,
        "            self._upkeep.urgent = self._upkeep.is_owed = True\n",
        "            self._upkeep.is_owed = True\n",
        "No checkpoint is written after a disk has failed and come back.",
    ),
    Fault(
        _COMMITTER,
        "        await self._resting.wait()\n",
        "",
        "Closing does not wait for what was submitted.",
    ),
    Fault(
        _COMMITTER,
        "        self._bug = bug\n",
        "        self._bug = None\n",
        "A state that can't be trusted after a bug is committed to.",
    ),
    Fault(
        _COMMITTER,
        "            self._stop(callers, err)\n            return\n",
        "            return\n",
        "Whoever was in a batch with a bug waits for ever.",
    ),
    Fault(
        _COMMITTER,
        "if not batch.line or self._mean_flush_s < self._slow_flush_s:",
        "if not batch.line or self._mean_flush_s >= 0:",
        "Flushes of a slow disk hold up everything else of the daemon.",
    ),
    Fault(
        _UPKEEP,
        "self._closed or self._ledger.failed:\n            return\n        due",
        "self._closed:\n            return\n        due",
        "A checkpoint is begun on a journal that has failed.",
    ),
    Fault(
        _UPKEEP,
        "                self._changed_at_s = self._changed_at_s or changed_at_s\n",
        "",
        "A checkpoint that failed is not tried again until something changes.",
    ),
    Fault(
        _UPKEEP,
        "        self._look_after(self._retry_after_s)\n",
        "",
        "An idle ledger whose checkpoint failed does not get well by itself.",
    ),
    Fault(
        _UPKEEP,
        "            self._look_after(self._room_after_s)\n",
        "",
        "An idle ledger does not notice that there is room again.",
    ),
    Fault(
        _UPKEEP,
        "max(self._idle_s, COST_FACTOR * cost_s)",
        "max(self._idle_s, cost_s)",
        "A large ledger that is never quite idle does nothing but write checkpoints.",
    ),
    Fault(
        _STAGING,
        "            if self._short is not None:\n",
        "            if self._short is not None and not name:\n",
        "On a full disk new work is taken, and uses up what is left.",
    ),
    Fault(
        _STAGING,
        "            batch.gives_back = False\n",
        "            pass\n",
        "New work takes the room that is kept for giving back.",
    ),
    Fault(
        _STAGING,
        "        self._batch.gives_back &= inner._batch.gives_back\n",
        "",
        "A group of new work takes the room that is kept for giving back.",
    ),
    Fault(
        _STAGING,
        "trial = Stage(Batch([], self._batch.fork.fork()),",
        "trial = Stage(Batch([], self._batch.fork),",
        "An atomic group that is refused leaves a part of itself.",
    ),
    Fault(
        _STAGING,
        "            if isinstance(refused, AxernError):\n",
        "            if isinstance(refused, CommitFailed):\n",
        "An atomic group is done in part.",
    ),
    Fault(
        _STAGING,
        "        self._batch.ended += inner._batch.ended\n",
        "",
        "Request records of what a group ends are not bounded.",
    ),
    Fault(
        _STAGING,
        "        self._batch.only_beats &= inner._batch.only_beats\n",
        "",
        "What a group did is not followed by a checkpoint.",
    ),
    Fault(
        _STAGING,
        '"observe-node", "rebase", "drain"',
        '"observe-node", "drain"',
        "On a full disk a ledger can't be opened after a reboot.",
    ),
    Fault(
        _STORE,
        "            fork.clock = now\n",
        "",
        "Time stands still in the journal, and deadlines after a reboot with it.",
    ),
    Fault(
        _STORE,
        "may_take_ballast=batch.gives_back)",
        "may_take_ballast=True)",
        "Every batch may take the room that is kept for giving back.",
    ),
    Fault(
        _STORE,
        "        self._written += len(batch.line)\n",
        "",
        "The journal grows without a checkpoint.",
    ),
    Fault(
        _STORE,
        "bound = max(CHECKPOINT_BYTES, self._checkpoint_size)",
        "bound = CHECKPOINT_BYTES",
        "A large ledger is written again and again for little news.",
    ),
    Fault(
        _STORE,
        "                self._ended.settle(batch.ended, batch.drops)\n",
        "                pass\n",
        "Request records of ended entries are not bounded.",
    ),
    Fault(
        _STORE,
        "checkpoint_file.of(self._state.copy(), self.node_id, position)",
        "checkpoint_file.of(self._state, self.node_id, position)",
        "A checkpoint that is written beside commits mixes two generations.",
    ),
    Fault(
        _STORE,
        "                if order < self._newest:\n                    return\n",
        "",
        "A late checkpoint replaces a newer one, whose segments are archived.",
    ),
    Fault(
        _STORE,
        "                self._newest = order\n",
        "",
        "No checkpoint is ever known to be late.",
    ),
    Fault(
        _STORE,
        "        if rotate:\n            self._journal.rotate()\n",
        "",
        "No segment ever ends by a checkpoint, so that little is archived.",
    ),
)
