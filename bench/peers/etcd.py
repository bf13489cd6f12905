"""etcd as a peer: a transaction that compares the counter's revision, and one without a guard."""

import base64
import contextlib
import json
import struct
from collections.abc import Iterator

from bench.peers import service
from bench.peers.load import DOCUMENT, ID, Target
from bench.peers.tools import program

COUNTER = b"/used"
KEY = b"/reservation/" + ID
REVISION, COUNT = b"#" * 10, b"=" * 20
"""Filled in by the load generator: the counter's revision, and the value that follows its last."""
_VARINT, _TEXT = 0, 2
_MOD = 2
_CREATE = 1


def varint(number: int) -> bytes:
    """Return *number* as protobuf writes it."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def text(field: int, value: bytes) -> bytes:
    """Return a field with a length: a string or a nested message."""
    return varint(field << 3 | _TEXT) + varint(len(value)) + value


def number(field: int, value: bytes) -> bytes:
    """Return a field with a varint that is encoded already."""
    return varint(field << 3 | _VARINT) + value


def put(key: bytes, value: bytes) -> bytes:
    """Return a RequestOp that writes."""
    return text(2, text(1, key) + text(2, value))


def guarded(change: bytes) -> bytes:
    """Return a TxnRequest: if the counter is as we know it, count and *change*, else read it."""
    compare = number(2, varint(_MOD)) + text(3, COUNTER) + number(6, REVISION)
    read = text(1, text(1, COUNTER))
    return text(1, compare) + text(2, put(COUNTER, COUNT)) + text(2, change) + text(3, read)


def unguarded(change: bytes, *, create: bool) -> bytes:
    """Return a TxnRequest without a counter; one that creates requires that the key is new."""
    compare = number(2, varint(_CREATE)) + text(3, KEY) + number(5, varint(0))
    return (text(1, compare) if create else b"") + text(2, change)


RESERVE = put(KEY, DOCUMENT.encode())
RELEASE = text(3, text(1, KEY))


def frame(kind: int, flags: int, body: bytes, stream: int = 0) -> bytes:
    """Return a frame of HTTP/2."""
    return (
        struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
    )


def call(message: bytes) -> bytes:
    """Return a call of etcd's KV.Txn: HEADERS, each field literal, and DATA with the message."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/etcdserverpb.KV/Txn",
        b":authority": b"etcd",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    head = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in fields.items()
    )
    data = b"\0" + struct.pack(">I", len(message)) + message
    return frame(1, 4, head) + frame(0, 1, data)


GREETING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(4, 0, b"")
    + frame(8, 0, struct.pack(">I", 2**31 - 2**16))  # so much may come without more words
)


@contextlib.contextmanager
def peer(folder: str) -> Iterator[tuple[Target, Target]]:
    """Run etcd; yield targets with the guard, and without it: its bare log, an upper bound.

    Raises:
        Missing: It is not installed and can't be.
    """
    # It wants a host and a port of a unix socket too, and takes both for a name in its folder.
    clients, peers = "unix://etcd:1", "unix://etcd:2"
    path = f"{folder}/etcd:1"
    options = {
        "data-dir": f"{folder}/etcd",
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "auto-compaction-mode": "revision",
        "auto-compaction-retention": "10000",
        "quota-backend-bytes": str(4 * 1024**3),
    }
    argv = [program("etcd", "etcd-server"), *(f"--{k}={v}" for k, v in options.items())]
    with service.running(argv, path, f"{folder}/etcd.log", {}, folder=folder):
        _set_counter(path)
        yield (
            Target("etcd", path, call(guarded(RESERVE)), call(guarded(RELEASE)), GREETING),
            Target(
                "etcd",
                path,
                call(unguarded(RESERVE, create=True)),
                call(unguarded(RELEASE, create=False)),
                GREETING,
            ),
        )


def _set_counter(path: str) -> None:
    """Write the counter, through the gateway that speaks JSON."""
    pair = {"key": base64.b64encode(COUNTER), "value": base64.b64encode(b"%020d" % 0)}
    body = json.dumps({name: value.decode() for name, value in pair.items()}).encode()
    head = b"POST /v3/kv/put HTTP/1.1\r\nHost: etcd\r\nContent-Length: %d\r\n\r\n" % len(body)
    with service.connect(path) as connection:
        connection.settimeout(30)
        connection.sendall(head + body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200"), "etcd has no gateway"
