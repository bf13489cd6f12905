"""What tables look like, character for character, on a terminal of 80 and of 200 columns.

To accept a change, run it with AXERN_UPDATE_GOLDEN=1 and read the difference.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from axern.cli.table import width_of
from tests.cli.command import Axern, plain_environment
from tests.cli.fake import DIMENSIONS, FakeDaemon, Json, Run
from tests.cli.terminal import shown

GOLDEN = Path(__file__).parent / "golden"
MEBIBYTE = 1024**2
HOSTILE = "ESC \x1b[31m, bell \x07, \u202eright to left\u202c, line\nend"
WIDE = "データ処理 ジョブ e\u0301"
COMMANDS = (
    ("reservations",),
    ("run", "list"),
    ("node", "capacity"),
    ("node", "status"),
    ("template", "list"),
)


def ago(**span: int) -> str:
    return (datetime.now(UTC) - timedelta(**span)).isoformat()


def charged(memory_mib: int) -> Json:
    amounts = {"cpu_milli": 500, "memory_bytes": memory_mib * MEBIBYTE, "sandbox_slots": 1}
    return dict.fromkeys(DIMENSIONS, 0) | amounts


def reservation(number: int, namespace: str, name: str, phase: str, expires_at: str | None) -> Json:
    return {
        "id": f"{number:032x}"[::-1],
        "namespace": namespace,
        "owner": {"kind": "external", "uid": 1000 + number, "name": name},
        "phase": phase,
        "liveness": "stale" if number == 2 else "active",
        "charged": charged(512 * number) | {"ephemeral_storage_bytes": 256 * MEBIBYTE},
        "expires_at": expires_at,
    }


def run(number: int, status: str, command: list[str], exit_code: int | None) -> Run:
    return Run(
        {
            "id": f"{number:032x}"[::-1],
            "namespace": "default" if number % 2 else "team-a",
            "status": status,
            "exit_code": exit_code,
            "command": command,
            "created_at": ago(hours=3 * number),
            "finished_at": None,
        }
    )


@pytest.fixture
def full(fake: FakeDaemon) -> FakeDaemon:
    """A daemon whose answers have whatever is hard to show."""
    fake.reservations = [
        reservation(1, "default", "", "running", None),
        reservation(2, "team-a", HOSTILE, "reserved", ago(minutes=-15, seconds=-30)),
        reservation(3, "a" * 20, WIDE, "retiring", ago(days=1)),
    ]
    runs = [
        run(
            1,
            "running",
            ["python3", "-c", "print('x' * 100)", "--flag", "and", "many", "more"],
            None,
        ),
        run(2, "failed", ["sh", "-c", HOSTILE], 137),
        run(3, "succeeded", ["echo", WIDE], 0),
    ]
    fake.runs = {entry.view["id"]: entry for entry in runs}
    return fake


def on_terminal(axern: Axern, words: tuple[str, ...], columns: int, **variables: str) -> str:
    environment = plain_environment(**{"TERM": "xterm"} | variables)
    text, done = shown(axern.argv(*words), columns, environment)
    assert done.returncode == 0, done.stderr
    return text


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_tables_look_as_they_did(
    axern: Axern, full: FakeDaemon, words: tuple[str, ...], columns: int
) -> None:
    text = on_terminal(axern, words, columns, NO_COLOR="1")
    path = GOLDEN / f"{'-'.join(words)}-{columns}.txt"
    if os.environ.get("AXERN_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert max(map(width_of, text.splitlines())) <= columns


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_width_breaks_a_line(axern: Axern, full: FakeDaemon, words: tuple[str, ...]) -> None:
    """Below the width of one table a row is a block; only a value alone may be longer then."""
    for columns in (20, 40, 60, 100, 140):
        text = on_terminal(axern, words, columns, NO_COLOR="1")
        assert "\x1b" not in text
        assert "\u202e" not in text
        is_table = text.split(maxsplit=1)[0].isupper()
        assert not is_table or max(map(width_of, text.splitlines())) <= columns


def test_colours_are_for_terminals_that_want_them(axern: Axern, full: FakeDaemon) -> None:
    words = ("run", "list")
    coloured = on_terminal(axern, words, 80)
    assert "\x1b[31mfailed\x1b[0m" in coloured
    plain = on_terminal(axern, words, 80, NO_COLOR="1")
    assert coloured.replace("\x1b[0m", "").count("\x1b") > 0
    assert "\x1b" not in plain
    assert "\x1b" not in on_terminal(axern, words, 80, TERM="dumb")
    assert b"\x1b" not in axern.run(*words).stdout


def test_a_pipe_gets_every_column(axern: Axern, full: FakeDaemon) -> None:
    header = axern.run("reservations").stdout.decode().splitlines()[0].split()
    assert header == "ID NAMESPACE OWNER PHASE LIVENESS CPU MEMORY STORAGE SLOTS EXPIRES".split()


def test_a_thousand_rows(axern: Axern, fake: FakeDaemon) -> None:
    fake.reservations = [
        reservation(number, f"team-{number % 7}", "", "running", None) for number in range(1, 1001)
    ]
    lines = on_terminal(axern, ("reservations",), 80, NO_COLOR="1").splitlines()
    assert len(lines) == 1001
    assert len(axern.run("reservations", "-o", "ndjson").stdout.splitlines()) == 1000
