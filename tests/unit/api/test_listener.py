"""A socket that was handed over is taken only if it is the configured one, and nobody else's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from axern.api import listener
from ledger.errors import InvalidArgument


@pytest.fixture
def made(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as given:
        given.bind(str(tmp_path / "api"))
        os.chmod(tmp_path / "api", 0o660)
        yield given


def _taken(given: socket.socket, path: str) -> listener.Listener:
    return listener.take_over(os.dup(given.fileno()), path)


def test_it_is_taken_with_who_waits_in_its_queue(made: socket.socket, tmp_path: Path) -> None:
    made.listen()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(tmp_path / "api"))
        with _taken(made, str(tmp_path / "api")) as taken:
            assert not taken.get_inheritable()
            assert taken.gettimeout() == 0
            connection, _ = taken.accept()
            connection.close()


def test_one_that_nobody_listens_on_is_refused(made: socket.socket, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="listened on"):
        _taken(made, str(tmp_path / "api"))


def test_one_that_is_elsewhere_is_refused(made: socket.socket, tmp_path: Path) -> None:
    made.listen()
    with pytest.raises(InvalidArgument, match="not /run/axern/axernd"):
        _taken(made, "/run/axern/axernd.sock")


def test_one_that_anybody_may_use_is_refused(made: socket.socket, tmp_path: Path) -> None:
    made.listen()
    os.chmod(tmp_path / "api", 0o666)  # noqa: S103 - what must be refused
    with pytest.raises(InvalidArgument, match="mode 0666"):
        _taken(made, str(tmp_path / "api"))


def test_what_is_no_socket_is_refused(tmp_path: Path) -> None:
    with (
        open(tmp_path / "file", "wb") as file,
        pytest.raises(InvalidArgument, match="non-socket"),
    ):
        listener.take_over(file.fileno(), str(tmp_path / "file"))


def test_another_kind_of_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as given:
        given.listen()
        with pytest.raises(InvalidArgument, match="unix socket"):
            _taken(given, str(tmp_path / "api"))
