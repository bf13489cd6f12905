"""What the tables of namespaces, quotas, claims, refusals and events look like, as in test_golden.

The daemon's answers are made by its own views, from a ledger that has whatever is hard to show.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from axern.api import namespace_views as views
from axern.cli.table import width_of
from ledger import claims, namespaces, transitions
from ledger.admission import AdmissionPolicy
from ledger.claims import ClaimProposal, Host
from ledger.clock import Now
from ledger.state import State
from ledger.testing import GIB, observing, reserving, small_facts, small_node, small_proposal
from ledger.units import format_rfc3339
from tests.cli.command import Axern, plain_environment
from tests.cli.fake import FakeDaemon, Json
from tests.cli.terminal import shown
from tests.cli.test_explain import REFUSED
from tests.cli.test_golden import GOLDEN, HOSTILE, WIDE

LONG = "a-name-of-a-team-that-is-as-long-as-a-name-may-be-and-that-is-63"
COMMANDS = {
    ("namespace", "list"): 0,
    ("quota", "list"): 0,
    ("quota", "get", "--namespace", "team-a"): 0,
    ("quota", "events", "--namespace", "team-a"): 0,
    ("claim", "list"): 0,
    ("explain",): 4,
    ("events",): 0,
}
DAY_MS = 86_400_000


def ledger() -> tuple[State, Now]:
    """Return a state with three namespaces, quotas under pressure, and two claims."""
    now = Now("boot", 10 * DAY_MS, 10 * DAY_MS, time.time_ns() // 1_000_000)
    state = State(now)
    host = Host(small_facts(now), now, AdmissionPolicy())
    old = replace(now, wall_ms=now.wall_ms - 3 * DAY_MS - 60_000)

    def claim(number: int, namespace: str, cpu_milli: int, *, hard: bool) -> None:
        ttl_ms = 6 * DAY_MS + 12 * 3_600_000 + 1_800_000 if hard else None
        amounts = {"cpu_milli": cpu_milli, "memory_bytes": GIB}
        asked = ClaimProposal(f"{number:032x}"[::-1], namespace, amounts, hard=hard, ttl_ms=ttl_ms)
        state.apply(claims.create(state, asked, host, "uid:0"))

    state.apply(observing(small_node(64_000, 256 * GIB))(state))
    for name in ("team-a", LONG[:63]):
        state.apply(namespaces.create(state, name, old, "uid:0"))
    ceilings = {"cpu_milli": 1_000, "memory_bytes": 4 * GIB, "sandbox_slots": 0}
    state.apply(namespaces.set_quota(state, "team-a", {**ceilings, "sandbox_slots": 20}, "uid:0"))
    state.apply(namespaces.set_quota(state, LONG[:63], ceilings, "uid:0"))
    for number in range(1, 10):
        asked = replace(small_proposal(number), namespace="team-a")
        state.apply(reserving(asked, now)(state))
    claim(1, "team-a", 1_000, hard=True)
    claim(2, LONG[:63], 500, hard=False)
    state.apply(transitions.stop(state, small_proposal(1).id, "asked", "uid:1000"))
    return state, now


def happened(number: str, kind: str, operation: str, **fields: object) -> Json:
    return {
        "sequence": number, "at": "2026-01-02T03:04:05.678Z", "kind": kind, "operation": operation,
        "namespace": "team-a", "table": None, "id": None, "phase": None, "by": "uid:1000",
        "owner_uid": 1000, "first_at": "2026-01-02T03:04:05.678Z", "count": 1, "message": "",
        "detail": {},
    } | fields  # fmt: skip


EVENTS = [
    happened("1.1", "node", "observe-node", namespace=None, table="nodes", by="daemon"),
    happened("4711.2", "grant", "reserve", id="4f1c" * 8, message="CPU 500m, memory 4GiB"),
    happened(
        "4711~88", "refusal", "admission-rejected", count=16,
        detail={"code": "namespace_quota_exceeded"},
        message="namespace quota exceeded: namespace-quota CPU: requested 500m, committed 1 of 1",
    ),
    happened("4712.1", "reclaim", "stop", id="9" * 32, by="daemon", message=HOSTILE),
    happened("123456789012.1", "operator", "namespace-create", by="uid:4294967294", namespace=WIDE),
    happened("123456789013.4096", "release", "release", by=None, message="", table="reservations"),
]  # fmt: skip


@pytest.fixture
def full(fake: FakeDaemon) -> FakeDaemon:
    state, now = ledger()
    more = {"generation": 41, "source": "daemon"}
    refused = [
        {
            "sequence": number, "type": kind, "namespace": "team-a", "uid": 1000 + number,
            "code": "namespace_quota_exceeded", "reason": "insufficient-cpu-memory",
            "count": 10**number, "created_at": format_rfc3339(now.wall_ms - number * DAY_MS),
            "last_at": format_rfc3339(now.wall_ms - number * DAY_MS - 60_000),
            "message": EVENTS[2]["message"] if number else HOSTILE,
        }
        for number, kind in enumerate(("admission-rejected", *["claim-exceeded"] * 2))
    ]  # fmt: skip
    fake.canned = {
        "/v2/namespaces": {"namespaces": views.namespaces(state)} | more,
        "/v2/quotas": {"quotas": views.quotas(state)} | more,
        "/v2/quotas/team-a": {"quota": views.quota_view(state, "team-a")} | more,
        "/v2/quotas/team-a/events": {"events": refused},
        "/v2/claims": {"claims": views.claims(state, now)} | more,
    }
    fake.decision = REFUSED
    fake.events = EVENTS
    return fake


def on_terminal(axern: Axern, words: tuple[str, ...], columns: int) -> str:
    environment = plain_environment(TERM="xterm", NO_COLOR="1")
    text, done = shown(axern.argv(*words), columns, environment)
    assert done.returncode == COMMANDS[words], done.stderr
    return text


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_tables_look_as_they_did(
    axern: Axern, full: FakeDaemon, words: tuple[str, ...], columns: int
) -> None:
    text = on_terminal(axern, words, columns)
    path = GOLDEN / f"{'-'.join(words[:2])}-{columns}.txt"
    if os.environ.get("AXERN_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert max(map(width_of, text.splitlines())) <= columns


@pytest.mark.parametrize("words", [w for w in COMMANDS if w != ("explain",)], ids=" ".join)
def test_no_width_breaks_a_line(axern: Axern, full: FakeDaemon, words: tuple[str, ...]) -> None:
    for columns in (20, 40, 60, 100, 140):
        text = on_terminal(axern, words, columns)
        assert "\x1b" not in text
        assert "\u202e" not in text
        word = text.split(maxsplit=1)[0]
        is_table = word.isalpha() and word.isupper()
        assert not is_table or max(map(width_of, text.splitlines())) <= columns


def test_who_follows_goes_on_where_the_stream_broke(axern: Axern, full: FakeDaemon) -> None:
    full.events = [{"kind": "begin", "sequence": "0"}, *EVENTS[:2]]
    full.cut_streams = [700]
    with axern.start("events", "-f", "-o", "ndjson") as process:
        assert process.stdout is not None
        assert b'"1.1"' in process.stdout.readline()
        assert process.stdout.readline() != b""
        process.terminate()
    targets = [target for method, target, _ in full.requests if target.startswith("/v2/events")]
    assert targets[0] == "/v2/events?follow=true"
    assert set(targets[1:]) <= {
        "/v2/events?since=1.1&follow=true",
        "/v2/events?since=4711.2&follow=true",
    }
    assert len(targets) > 1
