"""What is made by chance is never given out twice, whoever asks."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

from axern.api import chance


def test_each_has_its_form() -> None:
    assert re.fullmatch(r"[0-9a-f]{32}", chance.identity())
    assert re.fullmatch(r"[0-9a-f]{16}", chance.request_id())
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", chance.token())
    assert len(chance.piece()) == chance.PIECE_BYTES


def test_threads_get_different_ones() -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: [chance.identity() for _ in range(2000)], range(8)))
    assert len({each for part in found for each in part}) == 16_000


def test_a_fork_shares_nothing() -> None:
    chance.piece()
    assert chance._pool
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"".join(chance.piece() for _ in range(16)))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as theirs:
        data = theirs.read()
    os.waitpid(child, 0)
    pieces = {data[at : at + 16] for at in range(0, len(data), 16)}
    assert len(pieces) == 16
    assert not pieces & {chance.piece() for _ in range(512)}
