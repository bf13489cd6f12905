"""The floor: write and flush alone, into space that was written before; what no ledger can beat."""

import os
import time
from collections.abc import Mapping

from bench.common import figures

LINE_BYTES = 1024
SIZE_BYTES = 1 << 22


def turn(path: str, seconds: float) -> Mapping[str, float]:
    """Write and flush lines into the file *path*, which is filled first."""
    offset = 0
    latencies: list[float] = []
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.pwrite(descriptor, bytes(SIZE_BYTES), 0)
    os.fsync(descriptor)
    started = time.perf_counter()
    while (now := time.perf_counter()) < started + seconds:
        os.pwrite(descriptor, b"x" * LINE_BYTES, offset)
        os.fdatasync(descriptor)
        latencies.append(time.perf_counter() - now)
        offset = (offset + LINE_BYTES) % SIZE_BYTES
    wall_s = time.perf_counter() - started
    os.close(descriptor)
    return figures(latencies, len(latencies), wall_s)
