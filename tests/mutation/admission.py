"""Faults of admission: what is granted that does not fit, and what is refused that does."""

from __future__ import annotations

from tests.mutation.fault import Fault

_FILE = "ledger/admission.py"

FAULTS = (
    Fault(
        _FILE,
        "if age_ms > policy.facts_stale_after_ms:",
        "if age_ms > 2 * policy.facts_stale_after_ms:",
        "Facts may be twice as old as the policy says.",
    ),
    Fault(
        _FILE,
        "for key in demand.requires if",
        "for key in demand.requires[1:] if",
        "The first capability that is asked for need not be there.",
    ),
    Fault(
        _FILE,
        "if room < 1:",
        "if room < 0:",
        "One entry more than the cap fits.",
    ),
    Fault(
        _FILE,
        "(NAMESPACE_ENTRIES, policy.namespace_entry_cap, demand.namespace),",
        "(NAMESPACE_ENTRIES, policy.entry_cap, demand.namespace),",
        "A namespace may have as many entries as the whole node.",
    ),
    Fault(
        _FILE,
        "            if requested > room:\n                found.append(short(NAMESPACE_QUOTA",
        "            if requested >= room:\n                found.append(short(NAMESPACE_QUOTA",
        "A quota can't be used up to its last unit.",
    ),
    Fault(
        _FILE,
        "room = limit - _sum_over_devices(view, committed_account(namespace), dimension)",
        "room = limit",
        "A quota bounds each request, but not their sum.",
    ),
    Fault(
        _FILE,
        "view.account(account).items() if dimension_of(pool) is dimension",
        "view.account(account).items() if pool == dimension.name",
        "A quota of GPU memory counts nothing.",
    ),
    Fault(
        _FILE,
        "if claim is None or not claim.hard:",
        "if claim is None:",
        "A soft claim is a ceiling, too.",
    ),
    Fault(
        _FILE,
        "room: int = limit - getattr(claim.drawdown, dimension.name)",
        "room: int = limit",
        "A hard claim bounds each request, but not their sum.",
    ),
    Fault(
        _FILE,
        "if limit and requested > room:",
        "if requested > room and claim:",
        "What is not claimed has a ceiling of 0.",
    ),
    Fault(
        _FILE,
        "room = free.get(pool(dimension, device), 0) - lost",
        "room = limit",
        "A full node admits whatever an empty one would.",
    ),
    Fault(
        _FILE,
        "    if not claimed:\n        return headroom\n",
        "    if claimed is not None:\n        return headroom\n",
        "A namespace can't use what it has claimed.",
    ),
    Fault(
        _FILE,
        "room = free.get(pool(dimension, device), 0) - lost",
        "room = free.get(pool(dimension, device), 0)",
        "A lane in quarantine counts as room, and the sandbox gets none.",
    ),
    Fault(
        "ledger/claims.py",
        "room = min(view.balance(HEADROOM, pool(dimension, device)) - lost, limit)",
        "room = limit",
        "A claim is made of what others hold.",
    ),
    Fault(
        _FILE,
        "if storage > room:",
        "if storage > limit:",
        "What is promised of the disk and not written yet counts as free.",
    ),
    Fault(
        _FILE,
        "limit = max(0, facts.storage_free_bytes - facts.storage_reserve_bytes)",
        "limit = max(0, facts.storage_free_bytes)",
        "The disk's reserve is given away.",
    ),
    Fault(
        _FILE,
        "room = limit - max(0, reserved - (facts.storage_written_bytes or 0))",
        "room = limit - reserved",
        "What sandboxes have written counts twice.",
    ),
    Fault(
        _FILE,
        "room = limit - facts.sandboxes_memory_bytes",
        "room = limit",
        "Memory that sandboxes really use counts as free.",
    ),
    Fault(
        _FILE,
        "return min(fitting)[1]",
        "return max(fitting)[1]",
        "Small demands are spread over devices, so that large ones find no room.",
    ),
    Fault(
        _FILE,
        "if claim.hard or any(device == own for _, device in fitting):",
        "if any(device == own for _, device in fitting):",
        "Who has a hard claim on a device gets another one.",
    ),
    Fault(
        _FILE,
        "reasons = [] if standing is None else [f",
        "reasons = [] if standing is None or facts else [f",
        "A drained node takes new work.",
    ),
    Fault(
        _FILE,
        "if reasons or shortfalls:",
        "if shortfalls:",
        "A host that lacks a capability admits what needs it.",
    ),
    Fault(
        "ledger/capacity.py",
        "effective_milli = allocatable.cpu_milli * ratio // 1",
        "effective_milli = -(-allocatable.cpu_milli * ratio // 1)",
        "A fraction of a milli CPU is rounded up.",
    ),
    Fault(
        "ledger/drawdown.py",
        "claim.drawdown.plus(drawn_from(claim, after)).minus(drawn_from(claim, before))",
        "claim.drawdown.plus(drawn_from(claim, after))",
        "A claim that was drawn from never gets anything back.",
    ),
    Fault(
        "ledger/drawdown.py",
        "if row is None or row.claim_id != claim.id:",
        "if row is None:",
        "An entry made before the claim draws from it.",
    ),
)
