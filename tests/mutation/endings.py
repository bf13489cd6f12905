"""Faults of endings: who may release what, when time is over, and what is remembered of it."""

from __future__ import annotations

from tests.mutation.fault import Fault

_RELEASE = "ledger/release.py"
_RIGHTS = "ledger/rights.py"
_RECLAIM = "ledger/reclaim.py"
_REQUESTS = "ledger/request_ids.py"
_LEASES = "ledger/batch.py"
_DEADLINES = "ledger/deadlines.py"
_LIVENESS = "ledger/reservation.py"

FAULTS = (
    Fault(
        _RELEASE,
        "    rights.require(rights.RELEASE, asked.caller, thing)\n",
        "",
        "Anybody may release anything.",
    ),
    Fault(
        _RIGHTS,
        "return NAMESPACE_OWNER in verb.whose and namespace in caller.namespaces",
        "return NAMESPACE_OWNER in verb.whose and bool(caller.namespaces)",
        "Who owns one namespace owns all.",
    ),
    Fault(
        _RIGHTS,
        "        return token_fits\n",
        "        return token_fits or caller.is_admin\n",
        "An admin renews a lease whose token they do not have.",
    ),
    Fault(
        _RIGHTS,
        "    if not has_right(verb, caller):\n        return False\n",
        "",
        "What is one's own needs no right, whatever it is.",
    ),
    Fault(
        _RELEASE,
        "row.phase in (STARTING, RUNNING, STOPPING)",
        "row.phase in (RUNNING, STOPPING)",
        "What is being launched counts as dead.",
    ),
    Fault(
        _RELEASE,
        "    if not asked.force:\n",
        "    if not asked.force and asked.uid:\n",
        "Root stops what runs without having said so.",
    ),
    Fault(
        _RELEASE,
        "if not runs or is_note(row.reason):",
        "if not runs:",
        "A forced release that was begun does not go on.",
    ),
    Fault(
        _RELEASE,
        "    if not row.is_sandbox:\n        return UNCHARGE\n",
        "    if not row.is_sandbox or row.phase == RESERVED:\n        return UNCHARGE\n",
        "A sandbox that was not started yet is uncharged without a look.",
    ),
    Fault(
        _RELEASE,
        "            if self.force:\n",
        "            if self.force and self.uid:\n",
        "Root stops what runs and gives no reason.",
    ),
    Fault(
        _RELEASE,
        "    if not reason.isprintable():\n",
        "    if not reason:\n",
        "A reason may forge lines of a log or of a table.",
    ),
    Fault(
        _RELEASE,
        "if needed == STOP and row.phase == STOPPING:",
        "if needed == STOP and row.phase == RESERVED:",
        "Who insists on the end of what is stopping already leaves no word.",
    ),
    Fault(
        _RELEASE,
        "if needed == STOP or row.phase == RESERVED:",
        "if needed == STOP:",
        "A sandbox is started while it is being released.",
    ),
    Fault(
        _RECLAIM,
        "by_silence = standing == STALE or reservation.expires_boottime_ms is None",
        "by_silence = standing == STALE",
        "One that never beat is stopped without a look at its owner.",
    ),
    Fault(
        _RECLAIM,
        "if standing == ACTIVE or (by_silence and in_grace):",
        "if standing == ACTIVE:",
        "Owners are silent because the daemon was away.",
    ),
    Fault(
        _RECLAIM,
        "if standing == EXPIRED and not reservation.is_sandbox:",
        "if standing == EXPIRED:",
        "A sandbox is uncharged by its deadline while it runs.",
    ),
    Fault(
        _RECLAIM,
        "elif reservation.phase != RETIRING:",
        "else:",
        "What is retiring is stopped again and again.",
    ),
    Fault(
        _RECLAIM,
        ".created_boottime_ms <= oldest_ms",
        ".created_boottime_ms >= oldest_ms",
        "Fresh request records are forgotten and old ones kept.",
    ),
    Fault(
        _RECLAIM,
        "        *_claim_actions(state, now),\n",
        "",
        "A claim never ends.",
    ),
    Fault(
        _LIVENESS,
        "now.boottime_ms >= deadline:",
        "now.boottime_ms > deadline:",
        "An entry lives a millisecond longer than its time.",
    ),
    Fault(
        _LIVENESS,
        "age_ms >= policy.legacy_window_ms and deadline is None else",
        "age_ms >= policy.legacy_window_ms else",
        "An entry with a deadline ends before it, since it never beat.",
    ),
    Fault(
        _LIVENESS,
        "if now.monotonic_ms - beat_monotonic_ms >=",
        "if now.boottime_ms - beat_monotonic_ms >=",
        "The time of a suspend counts as silence.",
    ),
    Fault(
        _REQUESTS,
        "        if put.table == tables.RESERVATIONS and put.row is None:\n",
        "        if put.table == tables.RESERVATIONS:\n",
        "The request record of what is only being stopped may be forgotten.",
    ),
    Fault(
        _REQUESTS,
        "if row is not None and not _is_live(view, row)]",
        "if row is not None]",
        "The request id of an entry that lives is forgotten, so that a retry holds twice.",
    ),
    Fault(
        _REQUESTS,
        '                if not _is_live(state, cast("RequestRecord", row))\n',
        "",
        "After a restart the records of live entries are counted as ended.",
    ),
    Fault(
        _REQUESTS,
        "- sum(drops.values()) - self._in_all",
        "- sum(drops.values()) - 2 * self._in_all",
        "Twice as many request records are kept as there may be.",
    ),
    Fault(
        _REQUESTS,
        "                queue.popleft()\n",
        "                queue.pop()\n",
        "The newest request records are taken for the oldest.",
    ),
    Fault(
        _REQUESTS,
        "            self._count -= count\n",
        "",
        "Ever more request records are forgotten, the longer a ledger lives.",
    ),
    Fault(
        _LEASES,
        "fits = reservation.token_sha256 == token_sha256",
        "fits = bool(token_sha256)",
        "Any token renews any lease.",
    ),
    Fault(
        _LEASES,
        "if change.puts or proposal.token_sha256 is None:",
        "if change.puts is not None:",
        "A client that never saw its token gets one that is worth nothing.",
    ),
    Fault(
        _LEASES,
        "    if before is not None:\n",
        '    if before == "":\n',
        "A retried release meets an entry that is gone, and fails.",
    ),
    Fault(
        _LEASES,
        "return replace(change, puts=(*change.puts, noted))",
        "return change",
        "A release under a request id is not remembered.",
    ),
    Fault(
        _DEADLINES,
        "if _deadline_ms(self.rows.get(key)) != deadline_ms:",
        "if self.rows.get(key) is None:",
        "A deadline that was renewed is told as it was before.",
    ),
    Fault(
        _DEADLINES,
        "elif any(key in rows for rows in above):",
        "elif not above and key in above:",
        "A deadline that a batch has taken away is told from below.",
    ),
    Fault(
        _DEADLINES,
        "    for entry in hidden:\n            heappush(self._heap, entry)\n",
        "    hidden.clear()\n",
        "A deadline that a batch hid is forgotten when the batch is dropped.",
    ),
    Fault(
        _DEADLINES,
        "        heappush(self._heap, (deadline_ms, key))\n        if",
        "        if",
        "A new deadline is not known.",
    ),
)
