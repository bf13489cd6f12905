"""Redis as a peer: a guarded reservation in one script, the append-only file flushed each time."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping

from bench.peers import service
from bench.peers.load import BATCH, CPU_MILLI, DOCUMENT, ID, MEMORY_BYTES, STORAGE_BYTES, Target
from bench.peers.tools import program

AMOUNTS = (CPU_MILLI, MEMORY_BYTES, STORAGE_BYTES)
RESERVE = """
local used = redis.call('hmget', 'used', 'cpu', 'memory', 'storage')
for n = 1, 3 do
    if (used[n] or 0) + ARGV[n] > 2^53 then return 0 end
end
redis.call('hincrby', 'used', 'cpu', ARGV[1])
redis.call('hincrby', 'used', 'memory', ARGV[2])
redis.call('hincrby', 'used', 'storage', ARGV[3])
return redis.call('hset', 'reservations', KEYS[1], ARGV[4])
"""
RELEASE = """
redis.call('hincrby', 'used', 'cpu', -ARGV[1])
redis.call('hincrby', 'used', 'memory', -ARGV[2])
redis.call('hincrby', 'used', 'storage', -ARGV[3])
return redis.call('hdel', 'reservations', KEYS[1])
"""


def command(*words: bytes) -> bytes:
    """Return a command as Redis reads it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


@contextlib.contextmanager
def peer(folder: str, environment: Mapping[str, str]) -> Iterator[tuple[Target, Target]]:
    """Run Redis; yield targets for single reservations and for pipelines of 64.

    Raises:
        Missing: It is not installed and can't be.
    """
    path = f"{folder}/redis.sock"
    options = {
        "port": "0",
        "unixsocket": path,
        "dir": folder,
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxclients": "1000",
    }
    argv = [program("redis-server", "redis-server")]
    for name, value in options.items():
        argv += [f"--{name}", value]
    with service.running(argv, path, f"{folder}/redis.log", environment):
        amounts = [str(amount).encode() for amount in AMOUNTS]
        reserve = _script(path, RESERVE, *amounts, DOCUMENT.encode())
        release = _script(path, RELEASE, *amounts)
        yield (
            Target("resp", path, reserve, release),
            Target("resp", path, reserve * BATCH, release * BATCH),
        )


def _script(path: str, text: str, *arguments: bytes) -> bytes:
    """Load the script *text* and return the command that calls it for an id."""
    number = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()
    with service.connect(path) as connection:
        connection.sendall(command(b"SCRIPT", b"LOAD", text.encode()))
        assert number in connection.recv(1000)
    return command(b"EVALSHA", number, b"1", ID, *arguments)
