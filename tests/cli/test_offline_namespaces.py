"""Namespaces, quotas and claims without a daemon: the same objects, and what people see of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from axern.api import namespace_views as views
from axern.cli.table import width_of
from ledger import claims, namespaces
from ledger.admission import AdmissionPolicy
from ledger.claims import ClaimProposal, Host
from ledger.clock import Now
from ledger.limit_range import Edits
from ledger.store import Ledger
from ledger.testing import observing, reserving, small_facts, small_node, small_proposal
from tests.cli.command import Axern, plain_environment
from tests.cli.terminal import shown
from tests.cli.test_offline import read_clocks

CLAIM = "c" * 32
ADMIN = "uid:0"
TEAM = ("--namespace", "team-a")
EDITS: Edits = {"maximum": {"cpu_milli": 2000}, "ratios": {"cpu_milli": "1.5"}}


@pytest.fixture
def now() -> Now:
    return read_clocks()


@pytest.fixture
def ledger(short_root: Path, now: Now) -> Iterator[Ledger]:
    """Yield a ledger with a namespace that is bounded, claimed and in use."""
    (short_root / "state").mkdir()
    host = Host(small_facts(now), now, AdmissionPolicy())
    asked = ClaimProposal(CLAIM, "team-a", {"cpu_milli": 100})
    with Ledger.open(short_root / "state" / "ledger", now, node_id="node-1") as found:
        for operation in (
            observing(small_node()),
            lambda view: namespaces.create(view, "team-a", now, ADMIN),
            lambda view: namespaces.set_quota(view, "team-a", {"cpu_milli": 120}, ADMIN),
            lambda view: namespaces.update(view, "team-a", EDITS, ADMIN),
            lambda view: claims.create(view, asked, host, ADMIN),
            reserving(replace(small_proposal(1), namespace="team-a"), now),
        ):
            found.commit(operation, now)
        yield found


@pytest.fixture
def axern(short_root: Path) -> Axern:
    config = short_root / "axern.toml"
    config.write_text(f'state_dir = "{short_root}/state"\nrun_dir = "{short_root}/run"\n')
    return Axern(("--config", str(config)))


def test_the_objects_are_those_of_the_daemon(axern: Axern, ledger: Ledger, now: Now) -> None:
    for words, key, expected in (
        (("namespace", "list"), "namespaces", views.namespaces(ledger.state)),
        (("quota", "list"), "quotas", views.quotas(ledger.state)),
        (("quota", "get", *TEAM), "quota", views.quota_view(ledger.state, "team-a")),
        (("claim", "list"), "claims", views.claims(ledger.state, now)),
        (("claim", "get", "cccc"), "claim", views.claims(ledger.state, now)[0]),
    ):
        answer = axern.json(*words, "-o", "json")
        assert (answer["source"], answer["generation"]) == ("ledger-file", ledger.generation)
        found, wanted = answer[key], json.loads(json.dumps(expected))
        for row in (found if isinstance(found, list) else [found], wanted):
            for each in row if isinstance(row, list) else [row]:
                each.pop("expires_at", None)  # two readings of the clocks
        assert found == wanted
    row = axern.json("namespace", "get", "team-a", "-o", "json")["namespace"]
    assert (row["maximum"]["cpu_milli"], row["quota"]["cpu_milli"]) == (2000, 120)


def table(axern: Axern, *words: str) -> list[str]:
    done = axern.run(*words)
    assert done.returncode == 0, done
    assert done.stderr.startswith(b"source: ledger-file")
    return [" ".join(line.split()) for line in done.stdout.decode().splitlines()]


def test_people_see_what_is_in_use_of_what(axern: Axern, ledger: Ledger) -> None:
    assert table(axern, "quota", "get", "--namespace", "team-a")[:2] == [
        "DIMENSION USED CEILING AVAILABLE PART",
        "CPU 100m 120m 20m 83%",
    ]
    assert table(axern, "quota", "list", "--pressure") == [
        "NAMESPACE CPU PRESSURE",
        "team-a 100m of 120m (83%) yes",
    ]
    lines = table(axern, "claim", "list")
    assert lines[0] == "ID NAMESPACE MODE CLAIMED DRAWN EXPIRES"
    assert lines[1].startswith("cccccccccccc team-a hard CPU 100m CPU 100m in 2")
    assert "CPU: 100m, 100m drawn" in table(axern, "claim", "get", "cccc")
    assert table(axern, "namespace", "list")[2].startswith("team-a 1 cccccccccccc yes ")
    fields = table(axern, "namespace", "get", "team-a")
    assert "quota: CPU 120m" in fields
    assert "limit to request: CPU 1.5" in fields


@pytest.mark.parametrize("columns", [40, 80, 140])
@pytest.mark.parametrize(
    "words", [("quota", "list"), ("quota", "get"), ("claim", "list"), ("namespace", "list")]
)
def test_tables_fit_the_terminal(
    axern: Axern, ledger: Ledger, words: tuple[str, ...], columns: int
) -> None:
    text, done = shown(axern.argv(*words), columns, plain_environment(TERM="xterm", NO_COLOR="1"))
    assert done.returncode == 0, done.stderr
    if text.split(maxsplit=1)[0].isupper():
        assert max(map(width_of, text.splitlines())) <= columns


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (("namespace", "create", "x"), 6),
        (("quota", "set", "--cpu", "1"), 6),
        (("quota", "set"), 2),
        (("quota", "set", "--cpu", "1e3"), 2),
        (("quota", "get", "--namespace", "nowhere"), 5),
        (("namespace", "update", "team-a", "--max-ratio-cpu", "many"), 2),
        (("claim", "get", "dddd"), 5),
        (("claim", "create", "--cpu", "1", "--ttl", "soon"), 2),
        (("claim", "release", "cccc"), 6),
    ],
)
def test_what_can_not_be_done_has_its_code(
    axern: Axern, ledger: Ledger, words: tuple[str, ...], exit_code: int
) -> None:
    done = axern.run(*words)
    assert done.returncode == exit_code, done
    assert done.stderr
