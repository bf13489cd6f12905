"""`axern ledger` on real files, without a daemon: text, JSON, exit codes, and nothing written."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from axern.cli.commands.ledger import OPERATIONS
from ledger.store import Ledger
from ledger.testing import observing, reserving, small_node, small_proposal
from tests.cli.command import Axern, plain_environment
from tests.cli.terminal import shown
from tests.cli.test_offline import read_clocks, traces

GOLDEN = Path(__file__).parent / "golden"
OLD = Path(__file__).parents[1] / "unit" / "ledger" / "golden" / "schema-2"
FIRST = f"{1:032x}"


@pytest.fixture
def axern(short_root: Path) -> Axern:
    config = short_root / "axern.toml"
    config.write_text(
        f'state_dir = "{short_root}/state"\nrun_dir = "{short_root}/run"\n'
        f'cgroup_root = "{short_root.name}"\n'  # another test may use the usual one
    )
    return Axern(("--config", str(config)))


@pytest.fixture
def path(short_root: Path) -> Path:
    """A ledger that has been alive for a while."""
    (short_root / "state").mkdir()
    made = Path(shutil.copytree(OLD, short_root / "state" / "ledger"))
    for each in (made, *made.rglob("*")):  # git keeps no other modes
        each.chmod(0o750 if each.is_dir() else 0o640)
    return made


@pytest.fixture
def empty(short_root: Path) -> Path:
    """A ledger without entries, so that the host agrees with it."""
    (short_root / "state").mkdir()
    made = short_root / "state" / "ledger"
    with Ledger.open(made, read_clocks(), node_id="node-1", segment_bytes=8192) as ledger:
        ledger.commit(observing(small_node()), read_clocks())
    return made


def damage(path: Path, text: bytes = b'"beat"') -> None:
    victim = next(each for each in path.glob("journal-*") if text in each.read_bytes())
    data = bytearray(victim.read_bytes())
    data[data.index(text) + 2] ^= 1
    victim.write_bytes(data)


def answer(axern: Axern, *words: str, code: int = 0) -> Any:
    done = axern.run("ledger", *words, "-o", "json")
    assert done.returncode == code, done
    return json.loads(done.stdout)


def text(axern: Axern, *words: str, code: int = 0) -> str:
    done = axern.run("ledger", *words)
    assert done.returncode == code, done
    return done.stdout.decode()


def test_check_of_a_ledger_in_order(axern: Axern, empty: Path, short_root: Path) -> None:
    before = traces(short_root)
    found = answer(axern, "check")
    assert (found["findings"], found["generation"], found["reservations"]) == ([], 1, 0)
    told = text(axern, "check")
    assert told.startswith("the ledger is in order: generation 1, 0 reservations")
    if os.geteuid() == 0:
        assert found["host"] == "ledger-file"
        assert "the host agrees" in told
    assert traces(short_root) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at the host")
def test_check_compares_with_the_host(axern: Axern, path: Path) -> None:
    found = answer(axern, "check", code=3)
    codes = {each["code"] for each in found["findings"]}
    assert {"orphaned-sandbox", "orphaned-lease"} <= codes
    assert {"code", "severity", "id", "found", "remedy"} == set(found["findings"][0])


def test_check_of_a_damaged_ledger(axern: Axern, path: Path) -> None:
    damage(path)
    found = answer(axern, "check", code=7)
    assert [each["code"] for each in found["findings"]] == ["journal-damaged"]
    assert found["findings"][0]["remedy"] == "axern ledger repair"
    assert (found["generation"], found["host"]) == (None, None)
    assert found["host_message"] == "nobody can tell what it holds"


def test_a_warning_exits_with_1(axern: Axern, empty: Path) -> None:
    (empty / "node-id").unlink()
    assert [each["severity"] for each in answer(axern, "check", code=1)["findings"]] == ["warning"]


def test_log(axern: Axern, path: Path) -> None:
    found = answer(axern, "log")
    assert found["damage"] == []
    assert found["operations"][-1]["operation"] == "drain"
    one = answer(axern, "log", FIRST)["operations"]
    assert [each["operation"] for each in one] == ["reserve", "renew"]
    assert one[0]["requests"]["cpu_milli"] == 250
    kinds = text(axern, "log", "--kind", "release", "--kind", "retire").splitlines()
    assert [line.split()[2] for line in kinds] == ["retire", "retire", "release"]
    assert text(axern, "log", "--since", "1h") == ""
    lines = text(axern, "log", "--namespace", "team-a", "--format", "ndjson").splitlines()
    assert {json.loads(line)["namespace"] for line in lines} == {"team-a"}


def test_log_refuses_what_it_can_not_do(axern: Axern, path: Path) -> None:
    for words in (("-f", "-o", "json"), ("--kind", "nonsense"), ("--since", "x"), ("zz",)):
        assert axern.run("ledger", "log", *words).returncode == 2


def test_log_follows(axern: Axern, empty: Path) -> None:
    now = read_clocks()
    with axern.start("ledger", "log", "-f", "-o", "ndjson") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["operation"] == "observe-node"
        with Ledger.open(empty, now, segment_bytes=8192) as ledger:
            for number in range(9):  # over several segments
                ledger.commit(reserving(small_proposal(number), now), now)
                told = json.loads(process.stdout.readline())
                assert told["id"] == f"{number:032x}"
                if number % 4 == 0:
                    ledger.checkpoint()


@pytest.mark.parametrize("columns", [80, 200])
def test_the_log_looks_like_this(axern: Axern, path: Path, columns: int) -> None:
    golden = GOLDEN / f"ledger-log-{columns}.txt"
    told, _ = shown(axern.argv("ledger", "log"), columns, plain_environment(TERM="xterm"))
    assert all(len(line) <= columns for line in told.splitlines())
    if os.environ.get("AXERN_UPDATE_GOLDEN"):
        golden.write_text(told, encoding="utf-8")
    assert told == golden.read_text(encoding="utf-8")


def test_dump_is_the_present_state(axern: Axern, path: Path) -> None:
    document = json.loads(text(axern, "dump"))
    assert document["generation"] == 23
    assert FIRST in document["tables"]["reservations"]


def test_replay(axern: Axern, path: Path) -> None:
    found = answer(axern, "replay")
    assert (found["since_generation"], found["generation"], found["decisions"]) == (0, 23, 7)
    assert (found["difference"], found["capped"], found["reservations"]) == (None, [], 6)
    assert answer(axern, "replay", "--to", "9")["generation"] == 9
    assert answer(axern, "replay", "--to", "2023-11-14T22:13:28Z")["generation"] == 9
    assert answer(axern, "replay", "--to", "1h")["generation"] == 23
    assert axern.run("ledger", "replay", "--to", "99").returncode == 2
    assert "everything comes out as it was journaled" in text(axern, "replay")


def test_replay_with_lower_caps_warns(axern: Axern, path: Path, short_root: Path) -> None:
    with open(short_root / "axern.toml", "a", encoding="utf-8") as config:
        config.write("namespace_entry_cap = 2\n")
    found = answer(axern, "replay", code=1)
    assert {each["kind"] for each in found["capped"]} == {"decision"}
    assert "only the caps of today's configuration" in text(axern, "replay", code=1)


def test_replay_finds_a_wrong_decision(axern: Axern, empty: Path) -> None:
    from tests.unit.ledger.test_decisions import granting

    with Ledger.open(empty, read_clocks(), segment_bytes=8192) as ledger:
        ledger.commit(granting(1, gpu_device="GPU-1"), read_clocks())
    found = answer(axern, "replay", code=3)
    assert found["difference"]["kind"] in {"rows", "decision"}
    assert "this comes out otherwise" in text(axern, "replay", code=3)


def test_heads(axern: Axern, path: Path, short_root: Path) -> None:
    exported = short_root / "head.json"
    exported.write_text(json.dumps(answer(axern, "export-head")), encoding="utf-8")
    assert answer(axern, "verify-head", str(exported))["verdict"] == "verified"
    assert "verified" in text(axern, "verify-head", str(exported))
    with open(exported, "rb") as stdin:
        piped = axern.run("ledger", "verify-head", "-", stdin=stdin)
    assert piped.returncode == 0
    older = json.loads(exported.read_text(encoding="utf-8")) | {"generation": 99}
    exported.write_text(json.dumps(older), encoding="utf-8")
    assert answer(axern, "verify-head", str(exported), code=3)["verdict"] == "rolled-back"


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"generation": -1}', '{"a": 1, "a": 1}', "x" * 5000]
)
def test_what_is_no_head_is_refused(
    axern: Axern, path: Path, short_root: Path, content: str
) -> None:
    wrong = short_root / "head.json"
    wrong.write_text(content, encoding="utf-8")
    done = axern.run("ledger", "verify-head", str(wrong))
    assert done.returncode == 2
    assert b"hint: a head is what axern ledger export-head" in done.stderr


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may repair")


@root_only
def test_repair_of_what_opens_does_nothing(axern: Axern, path: Path, short_root: Path) -> None:
    before = traces(short_root / "state")
    assert answer(axern, "repair")["plan"] is None
    assert traces(short_root / "state") == before


@root_only
def test_repair_shows_a_plan_and_writes_a_copy(axern: Axern, path: Path) -> None:
    damage(path)
    before = traces(path)
    found = answer(axern, "repair", code=1)
    assert (found["plan"]["kept"], found["plan"]["claimed"], found["applied"]) == (21, 23, False)
    assert [each["generation"] for each in found["plan"]["dropped"]] == [23]
    assert traces(path) == before
    copy = Path(found["copy"])
    assert copy.parent == path.parent
    Ledger.open(copy, read_clocks(), segment_bytes=8192).close()


@root_only
def test_repair_takes_the_ledgers_place_and_keeps_the_damaged_files(
    axern: Axern, path: Path, short_root: Path
) -> None:
    exported = short_root / "head.json"
    exported.write_text(json.dumps(answer(axern, "export-head")), encoding="utf-8")
    damage(path)
    before = {each.name: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    assert axern.run("ledger", "repair", "--apply").returncode == 2
    found = answer(axern, "repair", "--apply", "--reason", "bad sector")
    assert found["applied"]
    kept = Path(found["damaged"])
    after = {each.name: each.read_bytes() for each in kept.rglob("*") if each.is_file()}
    assert {name: data for name, data in after.items() if name in before} == before
    assert sorted(each.name for each in (short_root / "state").iterdir()) == ["ledger", kept.name]
    last = answer(axern, "log")["operations"][-1]
    assert (last["operation"], last["by"], last["generation"]) == ("repair", "uid:0", 24)
    assert last["note"].startswith("bad sector; commits after 21 up to 23 are given up: ")
    assert answer(axern, "verify-head", str(exported), code=3)["verdict"] == "given-up"
    assert answer(axern, "replay")["difference"] is None
    with Ledger.open(path, read_clocks(), create=False) as ledger:
        assert ledger.generation >= 24


@root_only
def test_repair_never_takes_a_ledger_from_its_holder(axern: Axern, path: Path) -> None:
    with Ledger.open(path, read_clocks(), holder="the test"):
        damage(path, b'"drain"')
        done = axern.run("ledger", "repair", "--apply", "--reason", "x")
        assert done.returncode == 1
        assert b"held by the test" in done.stderr


@root_only
def test_a_ledger_that_can_not_be_repaired_is_left_alone(axern: Axern, path: Path) -> None:
    for name in ("ledger.json", "ledger.json.prev"):
        data = bytearray((path / name).read_bytes())
        data[300] ^= 1
        (path / name).write_bytes(data)
    min((path / "archive").iterdir()).unlink()
    done = axern.run("ledger", "repair", "--apply", "--reason", "x")
    assert done.returncode == 7
    assert b"there is nothing to begin with" in done.stderr
    assert [each.name for each in path.parent.iterdir()] == ["ledger"]


def test_each_operation_of_the_journal_has_a_word() -> None:
    """What the code journals can be asked for by --kind."""
    source = "".join(
        each.read_text(encoding="utf-8")
        for each in (Path(__file__).parents[2] / "ledger").glob("*.py")
        if each.name != "testing.py"
    )
    journaled = set(re.findall(r'(?:change|_put|Change)\(\s*(?:view, )?"([a-z-]+)"', source))
    journaled |= set(re.findall(r'_advance\(\s*view,\s*reservation_id,\s*"([a-z-]+)"', source))
    journaled |= set(re.findall(r'_with_quota\([^"]*"([a-z-]+)"', source))
    journaled |= set(re.findall(r'_resized\([^()]*"([a-z-]+)"', source))
    assert journaled - {"genesis", "nothing"} <= set(OPERATIONS)
    assert set(OPERATIONS) - journaled == {"repair"}  # its name stands in ledger.past


def test_no_ledger_is_told_as_such(axern: Axern, short_root: Path) -> None:
    (short_root / "state").mkdir()
    for words in (("check",), ("log",), ("replay",), ("export-head",), ("dump",)):
        done = axern.run("ledger", *words)
        assert (done.returncode, b"there is no ledger" in done.stderr) == (5, True), words


def test_an_interrupted_follow_ends_quietly(axern: Axern, empty: Path) -> None:
    import signal

    with axern.start("ledger", "log", "--follow") as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
