"""Rows, commits and checkpoints as JSON: the only place that knows how the ledger is spelled.

Decoding is strict and fails closed: what was decoded is encoded again and must give the same
bytes. So unknown and duplicate keys, other spellings, and values out of type are refused without
a rule for each.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import GenericAlias
from typing import Any, cast

import msgspec

from ledger import tables
from ledger.clock import Now
from ledger.errors import InvariantViolation
from ledger.facts import Facts
from ledger.state import Change, Posting, Put
from ledger.tables import Row

SCHEMA = 6
"""Version of both formats; a change of any row, line or header raises it."""
_TABLES_SINCE = {
    tables.STANDINGS: 2,
    tables.LIMIT_RANGES: 3,
    tables.WAITS: 4,
    tables.PAUSES: 4,
    tables.NETWORKS: 5,
    tables.NESTED: 6,
}
"""The schema that a table came with, where that is not the first."""
NO_CHAIN = "0" * 64
"""What the first line of a ledger is chained to."""

Tables = dict[str, dict[str, Row]]
Balances = dict[tuple[str, str], int]


class Malformed(ValueError):
    """Bytes that are not what this program writes; the message is the rule they break."""


class NewerSchema(Malformed):
    """An intact checkpoint of a schema that this program does not know."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the journal: `offset` bytes into `segment`, behind the line hashed to `chain`."""

    segment: str
    offset: int
    chain: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One journal line: the changes that became durable together as `generation`."""

    generation: int
    clock: Now
    changes: tuple[Change, ...]
    chain: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The whole ledger at one generation; `position` is where the journal goes on from there.

    Rows are kept in the order in which they were made, zero balances are left out. `schema` is the
    one that it is written in; tables which that does not know are empty.
    """

    node_id: str
    generation: int
    clock: Now
    position: Position
    balances: Mapping[tuple[str, str], int]
    tables: Mapping[str, Mapping[str, Row]]
    schema: int = SCHEMA


class _Put(msgspec.Struct):
    table: str
    key: str
    row: msgspec.Raw


class _Operation(msgspec.Struct):
    operation: str
    by: str
    note: str
    facts: int | None
    puts: tuple[_Put, ...]
    postings: tuple[Posting, ...]


class _Line(msgspec.Struct):
    generation: int
    boot_id: str
    boottime_ms: int
    monotonic_ms: int
    wall_ms: int
    facts: tuple[Facts, ...]
    operations: tuple[_Operation, ...]


# A table that is missing where its schema has one is found by spelling the document again.
_Tables: Any = msgspec.defstruct(
    "_Tables",
    [
        (name, GenericAlias(dict, (str, kind)), msgspec.field(default_factory=dict))
        for name, kind in tables.ROW_TYPES.items()
    ],
)


class _Document(msgspec.Struct):
    schema: int
    node_id: str
    generation: int
    clock: Now
    journal: Position
    balances: tuple[Posting, ...]
    tables: _Tables
    sha256: str


_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_document = msgspec.json.Decoder(_Document).decode
_decode_row = {name: msgspec.json.Decoder(kind).decode for name, kind in tables.ROW_TYPES.items()}

_SEAL = re.compile(rb'"chain":"([0-9a-f]{64})","crc32":(0|[1-9][0-9]{0,9})\}\n', re.ASCII)
_CRC = b',"crc32":'
_CHAIN_BYTES = len(b',"chain":""') + 64
_HEAD = re.compile(rb'\{\n"schema":([1-9][0-9]{0,8}),\n', re.ASCII)
_SUM = b'"sha256":"'
_TRAILER = re.compile(rb'"sha256":"([0-9a-f]{64})"\n\}\n', re.ASCII)
_TRAILER_BYTES = len(b'"sha256":""\n}\n') + 64
_ROWS_A_CHUNK = 64


def encode_row(row: Row) -> bytes:
    """Return *row* as one JSON object without line breaks."""
    return _encode(row)


def decode_row(table: str, data: bytes | msgspec.Raw) -> Row:
    """Return the row of *table* that *data* spells; the caller compares it with its encoding.

    Raises:
        Malformed: No such table, or not a row of it.
    """
    decode = _decode_row.get(table)
    if decode is None:
        raise Malformed(f"there is no table {table!r}")
    try:
        return decode(data)
    except (msgspec.MsgspecError, RecursionError) as err:
        raise Malformed(f"not a row of {table}: {err}") from err


def encode_commit(
    generation: int, now: Now, changes: Iterable[Change], previous_chain: str
) -> tuple[bytes, str]:
    """Return (the line with its line break, its chain hash).

    The facts that the changes were decided on stand in the line once each; an operation names
    them by sequence.

    Raises:
        InvariantViolation: A value has no spelling, or two facts share a sequence number.
    """
    body = _body(generation, now, changes)
    chain = hashlib.sha256(previous_chain.encode() + body).hexdigest()
    sealed = b'%b,"chain":"%b"' % (body, chain.encode())
    return b'%b,"crc32":%d}\n' % (sealed, zlib.crc32(sealed)), chain


def _body(generation: int, now: Now, changes: Iterable[Change]) -> bytes:
    """Return a line up to where its chain hash begins."""
    facts: dict[int, Facts] = {}
    operations = []
    for change in changes:
        seen = change.facts
        if seen is not None:
            first = facts.setdefault(seen.sequence, seen)
            if first is not seen and first != seen:
                raise InvariantViolation(f"two observations are numbered {seen.sequence}")
        operations.append(
            _Operation(
                change.operation,
                change.by,
                change.note,
                None if seen is None else seen.sequence,
                cast("tuple[_Put, ...]", change.puts),  # encodes alike: same names, same order
                change.postings,
            )
        )
    line = _Line(
        generation,
        now.boot_id,
        now.boottime_ms,
        now.monotonic_ms,
        now.wall_ms,
        tuple(facts.values()),
        tuple(operations),
    )
    try:
        return _encode(line)[:-1]
    except (TypeError, ValueError, OverflowError) as err:
        raise InvariantViolation(f"a change can't be written down: {err}") from err


def decode_commit(line: bytes, previous_chain: str | None) -> Commit:
    """Return the commit that *line*, with its line break, spells.

    Args:
        line: The bytes.
        previous_chain: The chain hash of the line before, or None where that is not known.
    Raises:
        Malformed: It is not what `encode_commit` makes, or its CRC or chain differs.
    """
    chain = seal_of(line)
    body = line[: line.rindex(_CRC) - _CHAIN_BYTES]
    if previous_chain is not None:
        expected = hashlib.sha256(previous_chain.encode() + body).hexdigest()
        if chain != expected:
            raise Malformed(f"the chain is {chain[:12]}… instead of {expected[:12]}…")
    try:
        wire = _decode_line(body + b"}")
    except (msgspec.MsgspecError, RecursionError) as err:
        raise Malformed(f"not a commit: {err}") from err
    clock = Now(wire.boot_id, wire.monotonic_ms, wire.boottime_ms, wire.wall_ms)
    facts = {seen.sequence: seen for seen in wire.facts}
    changes = tuple(_change(operation, facts) for operation in wire.operations)
    try:
        again = _body(wire.generation, clock, changes)
    except InvariantViolation as err:
        raise Malformed(str(err)) from err
    if again != body:
        raise Malformed("it is not spelled the way this program spells it")
    return Commit(wire.generation, clock, changes, chain)


def seal_of(line: bytes) -> str:
    """Return the chain hash that *line* claims, after checking that it is whole: end and CRC.

    Raises:
        Malformed: It does not end as a line does, or its CRC differs.
    """
    at = line.rfind(_CRC)
    seal = _SEAL.fullmatch(line, at - _CHAIN_BYTES + 1) if at >= _CHAIN_BYTES else None
    if seal is None:
        raise Malformed("it does not end in a chain hash and a CRC")
    crc = zlib.crc32(memoryview(line)[:at])
    if crc != int(seal[2]):
        raise Malformed(f"the CRC is {crc} and should be {int(seal[2])}")
    return seal[1].decode()


def _change(wire: _Operation, facts: Mapping[int, Facts]) -> Change:
    seen = None if wire.facts is None else facts.get(wire.facts)
    if wire.facts is not None and seen is None:
        raise Malformed(f"the line has no facts numbered {wire.facts}")
    puts = tuple(Put(put.table, put.key, _row_or_none(put)) for put in wire.puts)
    return Change(wire.operation, puts, wire.postings, wire.by, wire.note, seen)


def _row_or_none(put: _Put) -> Row | None:
    return None if bytes(put.row) == b"null" else decode_row(put.table, put.row)


def tables_of(schema: int) -> list[str]:
    """Return the names of the tables that *schema* has, in the order in which they are written."""
    return [name for name in tables.ROW_TYPES if _TABLES_SINCE.get(name, 1) <= schema]


def encode_checkpoint(checkpoint: Checkpoint) -> Iterator[bytes]:
    """Yield *checkpoint* in pieces of a fraction of a millisecond's work.

    One row a line, so that grep and diff work on it. The pieces are small so that a thread that
    encodes them never keeps another one from running for long.
    """
    digest = hashlib.sha256()
    for chunk in _checkpoint_chunks(checkpoint):
        digest.update(chunk)
        yield chunk
    yield b'%b%b"\n}\n' % (_SUM, digest.hexdigest().encode())


def _checkpoint_chunks(checkpoint: Checkpoint) -> Iterator[bytes]:
    balances = b",\n".join(
        _encode((account, pool, amount))
        for (account, pool), amount in sorted(checkpoint.balances.items())
    )
    yield b'{\n"schema":%d,\n"node_id":%b,\n"generation":%d,\n"clock":%b,\n"journal":%b,\n' % (
        checkpoint.schema,
        _encode(checkpoint.node_id),
        checkpoint.generation,
        _encode(checkpoint.clock),
        _encode(checkpoint.position),
    )
    yield b'"balances":[\n%b\n],\n"tables":{\n' % balances
    for index, name in enumerate(tables_of(checkpoint.schema)):
        yield b'%b"%b":{\n' % (b",\n" if index else b"", name.encode())
        rows = iter(checkpoint.tables[name].items())
        lead = b""
        while chunk := list(islice(rows, _ROWS_A_CHUNK)):
            yield lead + b",\n".join([_encode(key) + b":" + _encode(row) for key, row in chunk])
            lead = b",\n"
        yield b"\n}"
    yield b"\n},\n"


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint that *data* spells.

    Raises:
        NewerSchema: It is intact and newer than this program.
        Malformed: Anything else but the bytes that `encode_checkpoint` makes.
    """
    trailer = _TRAILER.fullmatch(data, max(0, len(data) - _TRAILER_BYTES))
    digest = hashlib.sha256(memoryview(data)[: len(data) - _TRAILER_BYTES]).hexdigest()
    if trailer is not None and trailer[1].decode() != digest:
        raise Malformed(f"the sum of the file is {digest[:12]}…, not what its last line says")
    head = _HEAD.match(data)
    if head is None:
        raise Malformed("it does not start with the schema's number")
    if int(head[1]) > SCHEMA:
        raise NewerSchema(f"it has schema {int(head[1])}, this program knows up to {SCHEMA}")
    if trailer is None:
        raise Malformed("it does not end in the sum of the file")
    try:
        wire = _decode_document(data)
    except (msgspec.MsgspecError, RecursionError) as err:
        raise Malformed(f"not a checkpoint: {err}") from err
    checkpoint = Checkpoint(
        wire.node_id,
        wire.generation,
        wire.clock,
        wire.journal,
        {(account, pool): amount for account, pool, amount in wire.balances},
        {name: getattr(wire.tables, name) for name in tables.ROW_TYPES},
        wire.schema,
    )
    _require_same(data, encode_checkpoint(checkpoint))
    return checkpoint


def _require_same(data: bytes, chunks: Iterator[bytes]) -> None:
    offset = 0
    for chunk in chunks:
        if not data.startswith(chunk, offset):
            line = data.count(b"\n", 0, offset) + 1
            raise Malformed(f"line {line} or below: it is not spelled the way this program does")
        offset += len(chunk)
    if offset != len(data):
        raise Malformed("something stands behind its end")
