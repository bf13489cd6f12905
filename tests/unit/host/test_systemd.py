"""What systemd hands over is taken once, and no child ever finds it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from axern.host import systemd
from ledger.errors import InvalidArgument

PID = 4711
GIVEN = {
    "NOTIFY_SOCKET": "/run/systemd/notify",
    "WATCHDOG_USEC": "60000000",
    "WATCHDOG_PID": str(PID),
}


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(5)
        yield made


def test_all_of_it_is_taken_and_nothing_stays() -> None:
    environment = dict.fromkeys(systemd.HANDED_OVER, "1") | GIVEN | {"PATH": "/bin"}
    environment |= {"LISTEN_PID": "1", "LISTEN_FDS": "2"}
    found = systemd.take(environment, PID)
    assert found == systemd.Handover("/run/systemd/notify", 60.0, ())
    assert environment == {"PATH": "/bin"}


def test_without_systemd_there_is_nothing() -> None:
    assert systemd.take({"PATH": "/bin"}, PID) == systemd.Handover()


@pytest.mark.parametrize(
    ("changed", "watchdog_s"),
    [
        ({"WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "500000"}, 0.5),
    ],
)
def test_a_watchdog_for_another_process_is_none(
    changed: dict[str, str], watchdog_s: float | None
) -> None:
    assert systemd.take(GIVEN | changed, PID).watchdog_s == watchdog_s


@pytest.mark.parametrize(
    "changed",
    [
        {"WATCHDOG_USEC": "soon"},
        {"LISTEN_FDS": "-1"},
        {"LISTEN_FDS": "٣"},
        {"LISTEN_PID": ""},
        {"NOTIFY_SOCKET": "vsock:2:1"},
    ],
)
def test_what_systemd_never_writes_is_refused(changed: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        systemd.take(GIVEN | changed, PID)


def test_promised_sockets_must_be_there() -> None:
    limit = os.sysconf("SC_OPEN_MAX")
    with pytest.raises(InvalidArgument, match="LISTEN_FDS"):
        systemd.take({"LISTEN_PID": str(PID), "LISTEN_FDS": str(limit)}, PID)


def test_lines_are_sent_together(receiver: socket.socket) -> None:
    notifier = systemd.Notifier(receiver.getsockname())
    assert notifier.tell("READY=1", "STATUS=two words")
    assert receiver.recv(4096) == b"READY=1\nSTATUS=two words"


def test_words_of_others_say_nothing_of_their_own(receiver: socket.socket) -> None:
    notifier = systemd.Notifier(receiver.getsockname())
    assert notifier.tell("STATUS=bad key: x\nREADY=1\r\nMAINPID=1", "WATCHDOG=1")
    assert receiver.recv(4096) == b"STATUS=bad key: x READY=1 MAINPID=1\nWATCHDOG=1"


def test_a_socket_without_a_path_is_reached() -> None:
    name = f"axern-test-{os.getpid()}"
    taken = systemd.take({"NOTIFY_SOCKET": f"@{name}"}, PID).notify_socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        assert systemd.Notifier(taken).tell("READY=1")
        assert receiver.recv(100) == b"READY=1"


def test_nobody_to_tell_is_no_error(tmp_path: Path) -> None:
    assert systemd.Notifier(None).tell("READY=1")
    assert not systemd.Notifier(str(tmp_path / "gone")).tell("READY=1")


def test_the_journal_is_known_by_device_and_inode(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        status = os.fstat(log.fileno())
        stream = f"{status.st_dev}:{status.st_ino}"
        assert systemd.writes_to_journal({"JOURNAL_STREAM": stream}, log.fileno())
        assert not systemd.writes_to_journal({"JOURNAL_STREAM": f"{stream}1"}, log.fileno())
        assert not systemd.writes_to_journal({}, log.fileno())


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("0::/system.slice/axernd.service/daemon\n", "/system.slice/axernd.service/daemon"),
        ("4:memory:/a\n0::/b:c\n", "/b:c"),
        ("4:memory:/a\n", "/"),
    ],
)
def test_own_control_group(text: str, own: str) -> None:
    assert systemd.own_from_text(text) == own


def test_outside_a_unit_nothing_is_delegated(tmp_path: Path) -> None:
    assert systemd.delegated_root(str(tmp_path)) is None
