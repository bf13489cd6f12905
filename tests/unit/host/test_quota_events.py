"""What the kernel's messages about quotas say, also cut short."""

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.host.quota_events import Heard, QuotaEvents, hits_from

PROJECT = 0x70000007


def attribute(kind: int, value: bytes) -> bytes:
    return (struct.pack("=HH", 4 + len(value), kind) + value).ljust((7 + len(value)) & ~3, b"\0")


def message(quota_type: int = 2, warning: int = 4, kind: int = 0x20) -> bytes:
    body = struct.pack("=BBH", 1, 1, 0) + b"".join(
        (
            attribute(1, quota_type.to_bytes(4, "little")),
            attribute(2, PROJECT.to_bytes(8, "little")),
            attribute(3, warning.to_bytes(4, "little")),
            attribute(4, (7).to_bytes(4, "little")),
            attribute(5, (1).to_bytes(4, "little")),
            attribute(6, bytes(8)),
        )
    )
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_hard_limits_of_projects_are_told() -> None:
    both = message() + message(warning=1)
    assert list(hits_from(both)) == [(7, 1, PROJECT)] * 2


@pytest.mark.parametrize("other", [message(quota_type=0), message(warning=6), message(kind=2)])
def test_other_messages_are_passed_over(other: bytes) -> None:
    assert list(hits_from(other + message())) == [(7, 1, PROJECT)]


@given(st.integers(0, len(message())), st.binary(max_size=64))
def test_no_bytes_raise(cut: int, noise: bytes) -> None:
    for data in (message()[:cut] + noise, noise + message()):
        assert all(len(hit) == 3 for hit in hits_from(data))


class Queue:
    """A socket that holds what the test put there; an error is what the kernel answers."""

    def __init__(self, *held: bytes | OSError) -> None:
        self.held = list(held)

    def recv(self, _: int) -> bytes:
        if not self.held:
            raise BlockingIOError
        if isinstance(first := self.held.pop(0), OSError):
            raise first
        return first


def hear(queue: Queue, folder: Path) -> Heard:
    events = QuotaEvents.__new__(QuotaEvents)
    events._socket = queue  # type: ignore[assignment]
    return events.hear(str(folder))


def here(folder: Path, project: int) -> bytes:
    device = os.stat(folder).st_dev
    parts = (2, project, 4, os.major(device), os.minor(device))
    body = struct.pack("=BBH", 1, 1, 0) + b"".join(
        attribute(kind, value.to_bytes(8, "little")) for kind, value in enumerate(parts, 1)
    )
    return struct.pack("=IHHII", 16 + len(body), 0x20, 0, 0, 0) + body


def test_all_that_the_socket_holds_is_heard_at_once(tmp_path: Path) -> None:
    """What stayed there would be told of the next sandbox with the same project."""
    noisy = [here(tmp_path, PROJECT)] * 276
    queue = Queue(*noisy, here(tmp_path, PROJECT + 1), message())
    assert hear(queue, tmp_path) == Heard(frozenset({PROJECT, PROJECT + 1}), lost=False)
    assert queue.held == []


def test_that_something_was_lost_is_told(tmp_path: Path) -> None:
    full = OSError(errno.ENOBUFS, "No buffer space available")
    queue = Queue(full, here(tmp_path, PROJECT))
    assert hear(queue, tmp_path) == Heard(frozenset({PROJECT}), lost=True)
