"""Whatever a file or a flag holds: a value or one of our errors, and in time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from axern import config
from axern.api.strict_json import parse_json_object
from axern.cli.actions.environment import environment
from axern.cli.actions.request import labels
from axern.cli.actions.target import checked_id
from axern.runtime import record
from ledger import units
from ledger.errors import AxernError, InvalidArgument

DEEP = "[" * 100_000
ODD = st.sampled_from(
    ("", "=", "a=", "9" * 5000, "1e9", "0x1", "١", "½", "-1", "1_0", DEEP, "\x00")
)
NUMBERS = st.from_regex(r"[+-]?[0-9]{0,20}\.?[0-9]{0,20}[a-zA-Z%]{0,3}", fullmatch=True)
PARSERS: tuple[Callable[[str], Any], ...] = (
    units.parse_cpu_milli,
    units.parse_bytes,
    units.parse_ratio,
    units.parse_duration_ms,
    checked_id,
    lambda text: labels([text]),
    lambda text: environment([text]),
)
quickly = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(st.one_of(st.text(max_size=60), ODD, NUMBERS), st.sampled_from(PARSERS))
def test_a_flag_is_read_or_refused(text: str, parse: Callable[[str], Any]) -> None:
    with contextlib.suppress(InvalidArgument):
        parse(text)


@given(st.binary(max_size=200))
@example(DEEP.encode())
@example(b'{"a":' * 5_000)
@example(b'{"a":' + b"9" * 5_000 + b"}")
def test_json_is_an_object_or_refused(body: bytes) -> None:
    with contextlib.suppress(InvalidArgument):
        parse_json_object(body)


@quickly
@given(st.one_of(st.binary(max_size=100), st.text(max_size=100).map(str.encode)))
@example(b"a = " + DEEP.encode())
@example(b"tick = 5\n\x00")
@example(b"entry_cap = " + b"9" * 5_000)
@example(b'tick = "' + b"9" * 5_000 + b's"')
@example(b"state_dir = 5")
def test_a_configuration_is_read_or_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "axern.toml"
    path.write_bytes(text)
    path.chmod(0o600)
    for read in (config.load, config.locate):
        with contextlib.suppress(InvalidArgument):
            read(str(path))


SPEC = b'{"status":"failed","exit_code":1,"cli_exit_code":1,"finished_wall_ms":5}'


@quickly
@given(st.integers(0, len(SPEC)), st.binary(max_size=20), st.integers(0, 9))
@example(0, DEEP.encode(), 0)
@example(0, b'{"a":' * 5_000, 0)
@example(12, b"\xff\xfe", 0)
def test_a_damaged_record_is_none(tmp_path: Path, place: int, noise: bytes, lost: int) -> None:
    path = tmp_path / "exit.json"
    path.write_bytes(SPEC[:place] + noise + SPEC[place + lost :])
    found = record.decode(str(path), record.RunExit)
    assert found is None or found.finished_wall_ms >= 0 or noise


@pytest.mark.parametrize("kind", ["folder", "link", "fifo"])
def test_what_is_no_file_is_no_record(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "exit.json"
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with contextlib.suppress(OSError):
        assert record.decode(str(path), record.RunExit) is None


def test_a_variable_is_never_repeated_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "env"
    for words, text in ((["=hunter2"], ""), ([], "=hunter2\n"), ([], "my hunter2\n")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(AxernError) as caught:
            environment(words, [str(path)])
        assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"
