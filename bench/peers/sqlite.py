"""SQLite as a peer: guarded counters on the node's row and an insert, one process a client."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping

from bench.common import figures
from bench.peers.load import CPU_MILLI, DOCUMENT, MEMORY_BYTES, STORAGE_BYTES

CREATE = """
create table node(cpu int, memory int, storage int, slots int,
    used_cpu int, used_memory int, used_storage int, used_slots int);
create table reservation(id text primary key, namespace text, cpu int, memory int, storage int,
    document text);
insert into node values(1e15, 1e15, 1e15, 1e15, 0, 0, 0, 0);
"""
CHARGE = """
update node set used_cpu = used_cpu + ?1, used_memory = used_memory + ?2,
    used_storage = used_storage + ?3, used_slots = used_slots + 1
where used_cpu + ?1 <= cpu and used_memory + ?2 <= memory and used_storage + ?3 <= storage
    and used_slots + 1 <= slots
"""
UNCHARGE = """
update node set used_cpu = used_cpu - ?1, used_memory = used_memory - ?2,
    used_storage = used_storage - ?3, used_slots = used_slots - 1
"""
INSERT = "insert into reservation values(?, 'default', ?, ?, ?, ?)"
AMOUNTS = (CPU_MILLI, MEMORY_BYTES, STORAGE_BYTES)


def connect(path: str) -> sqlite3.Connection:
    """Open the database in its tuned form."""
    database = sqlite3.connect(path, isolation_level=None, timeout=60)
    database.execute("pragma journal_mode=wal")
    database.execute("pragma synchronous=full")
    return database


class SqlitePeer:
    """A database with as many reservations as it is filled with; callers are processes."""

    def __init__(self, path: str, environment: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._environment = environment or {}
        self._filled = 0
        database = connect(path)
        database.executescript(CREATE)
        database.close()

    def fill(self, count: int) -> None:
        """Make *count* reservations that stay."""
        database = connect(self._path)
        database.execute("begin")
        for number in range(self._filled, self._filled + count):
            database.execute(CHARGE, AMOUNTS)
            database.execute(INSERT, (f"rsv-{number}", *AMOUNTS, DOCUMENT))
        database.execute("commit")
        database.close()
        self._filled += count

    def turn(self, callers: int, seconds: float) -> Mapping[str, float]:
        """Let *callers* processes reserve and release in closed loops."""
        clients = [self._start(number, seconds) for number in range(callers)]
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == b"ready\n"
        started = time.perf_counter()
        for client in clients:
            assert client.stdin is not None
            client.stdin.close()
        latencies: list[float] = []
        for client in clients:
            assert client.stdout is not None
            latencies += json.loads(client.stdout.read())
        wall_s = time.perf_counter() - started
        for client in clients:
            assert client.wait() == 0
            assert client.stdout is not None
            client.stdout.close()
        return figures(latencies, 2 * len(latencies), wall_s)

    def _start(self, number: int, seconds: float) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "bench.peers.sqlite", self._path, str(number), str(seconds)]
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._environment},
        )


def client(path: str, number: str, seconds: float) -> list[float]:
    """Reserve and release in a closed loop; return what each reserve took, in seconds."""
    database = connect(path)
    latencies: list[float] = []
    print("ready", flush=True)
    sys.stdin.read()
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        key = f"rsv-{number}-{len(latencies):028x}"
        database.execute("begin immediate")
        assert database.execute(CHARGE, AMOUNTS).rowcount == 1
        database.execute(INSERT, (key, *AMOUNTS, DOCUMENT))
        database.execute("commit")
        latencies.append(time.perf_counter() - started)
        database.execute("begin immediate")
        assert database.execute("delete from reservation where id = ?", (key,)).rowcount == 1
        database.execute(UNCHARGE, AMOUNTS)
        database.execute("commit")
    database.close()
    return latencies


if __name__ == "__main__":
    print(json.dumps(client(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
