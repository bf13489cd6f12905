"""Variables from words and files: verbatim, in order, and errors that name file and line."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from axern.cli.actions.environment import FILE_LIMIT_BYTES, environment
from ledger.errors import InvalidArgument


def write(folder: Path, data: bytes, name: str = "env") -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


def test_lines_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "passed on")
    text = (
        b"\xef\xbb\xbfA=1\n\n# no variable\n  B=two words \t\nC='quoted' # kept\r\n"
        b"D=\nE=a=b\n\t#F=1\nMINE\nG=gr\xc3\xbc\xc3\x9fe\nA=2"
    )
    assert environment((), (write(tmp_path, text),)) == {
        "A": "2",
        "B": "two words \t",
        "C": "'quoted' # kept",
        "D": "",
        "E": "a=b",
        "MINE": "passed on",
        "G": "grüße",
    }


def test_what_comes_later_wins_and_words_come_last(tmp_path: Path) -> None:
    first, second = write(tmp_path, b"A=1\nB=1\nC=1", "1"), write(tmp_path, b"B=2\nC=2", "2")
    found = environment(("C=3",), (first, second))
    assert found == {"A": "1", "B": "2", "C": "3"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"A=1\n=x\n", "env, line 2: there is no name"),
        (b"\nNO_SUCH_VARIABLE\n", "env, line 2: NO_SUCH_VARIABLE is not set here"),
        (b"export A=1\n", "env, line 1: 'export A' has a space in it"),
        (b"A =1\n", "env, line 1: 'A ' has a space in it"),
        (b"A=1\nB=\xff\n", "env, line 2: it is not UTF-8"),
        (b"A=" + b"x" * FILE_LIMIT_BYTES, "env is larger than 1MiB"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        environment((), (write(tmp_path, data),))
    assert caught.value.message.startswith("--env-file: ")
    assert message in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidArgument, match=r"--env-file: .*(No such file|Is a directory)"):
            environment((), (str(path),))


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"A=1\n")))
    assert environment((), ("-",)) == {"A": "1"}
