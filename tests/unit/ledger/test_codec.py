"""How rows, commits and checkpoints are spelled, and that nothing else is read."""

import hashlib
import zlib
from dataclasses import replace

import pytest

from ledger import codec
from ledger.codec import NO_CHAIN, Checkpoint, Malformed, NewerSchema, Position
from ledger.errors import InvariantViolation
from ledger.state import Change, Put, genesis
from ledger.tables import BEATS, RESERVATIONS, Beat
from ledger.testing import (
    ManualClock,
    observing,
    reserving,
    small_facts,
    small_node,
    small_proposal,
)

NOW = ManualClock()()
FACTS = small_facts(NOW, sequence=4)


def some_changes() -> list[Change]:
    """A node, a lease, and the lease's heartbeat."""
    state = genesis(NOW)
    changes = []
    for operation in (observing(small_node()), reserving(small_proposal(1), NOW, FACTS)):
        changes.append(operation(state))
        state.apply(changes[-1])
    changes.append(Change("beat", (Put(BEATS, f"{1:032x}", Beat(17)),), (), "daemon", "naïve \n"))
    return changes


def test_a_line_reads_back_as_what_was_written() -> None:
    changes = some_changes()
    line, chain = codec.encode_commit(9, NOW, changes, NO_CHAIN)
    commit = codec.decode_commit(line, NO_CHAIN)
    assert (commit.generation, commit.clock, commit.chain) == (9, NOW, chain)
    assert commit.changes == tuple(replace(change, result=None) for change in changes)


def test_a_line_is_one_line_with_the_chain_and_the_crc_last() -> None:
    line, chain = codec.encode_commit(9, NOW, some_changes(), NO_CHAIN)
    assert line.count(b"\n") == 1
    assert line.startswith(b'{"generation":9,"boot_id":"boot-1","boottime_ms":1000000,')
    assert f',"chain":"{chain}","crc32":'.encode() in line
    assert (
        b'"postings":[["committed:default","cpu_milli",100],["headroom","cpu_milli",-100]' in line
    )
    assert b'"row":{"monotonic_ms":17}' in line


def test_facts_stand_in_a_line_once() -> None:
    beat = (Put(BEATS, "a", Beat(1)),)
    seen = [FACTS, None, FACTS]
    changes = [Change("beat", beat, facts=facts) for facts in seen]
    line, _ = codec.encode_commit(1, NOW, changes, NO_CHAIN)
    assert line.count(b'"sequence":4') == 1
    assert line.count(b'"facts":4') == 2
    assert [change.facts for change in codec.decode_commit(line, NO_CHAIN).changes] == seen


def test_two_observations_with_one_number_are_a_bug() -> None:
    other = replace(FACTS, storage_free_bytes=1)
    beat = (Put(BEATS, "a", Beat(1)),)
    changes = [Change("one", beat, facts=FACTS), Change("two", beat, facts=other)]
    with pytest.raises(InvariantViolation, match="numbered 4"):
        codec.encode_commit(1, NOW, changes, NO_CHAIN)


def test_a_value_without_a_spelling_is_a_bug() -> None:
    with pytest.raises(InvariantViolation, match="can't be written down"):
        codec.encode_commit(1, NOW, [Change("x", (), (), note="\ud800")], NO_CHAIN)


def test_the_chain_depends_on_the_line_before() -> None:
    changes = some_changes()
    line, chain = codec.encode_commit(1, NOW, changes, NO_CHAIN)
    other = "1" * 64
    assert codec.encode_commit(1, NOW, changes, other)[1] != chain
    with pytest.raises(Malformed, match="chain"):
        codec.decode_commit(line, other)
    assert codec.decode_commit(line, None).chain == chain


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"generation":9', b'"generation":09'),
        (b'"generation":9', b'"generation": 9'),
        (b'"generation":9', b'"generation":9,"generation":9'),
        (b'"generation":9', b'"generation":9,"unknown":1'),
        (b'"generation":9', b'"generation":9.0'),
        (b'"row":{"monotonic_ms":17}', b'"row":{"monotonic_ms":17,"monotonic_ms":17}'),
        (b'"row":{"monotonic_ms":17}', b'"row":{"monotonic_ms":NaN}'),
        (b'"row":{"monotonic_ms":17}', b'"row":{}'),
        (b'"table":"beats"', b'"table":"ghosts"'),
        (b'"table":"beats"', b'"table":"nodes"'),
        (b'"facts":4', b'"facts":5'),
        (b'"facts":[{', b'"facts":[null,{'),
        (b'"operations":[', b'"operations":[[],'),
    ],
)
def test_a_sealed_line_in_other_words_is_refused(old: bytes, new: bytes) -> None:
    body = codec._body(9, NOW, some_changes())
    assert old in body
    changed = body.replace(old, new, 1)
    sealed, _ = seal(changed)
    with pytest.raises(Malformed):
        codec.decode_commit(sealed, None)


def seal(body: bytes) -> tuple[bytes, str]:
    """Seal *body* as the codec does, whatever it says."""
    line = body + b',"chain":"' + NO_CHAIN.encode() + b'"'
    return line + b',"crc32":%d}\n' % zlib.crc32(line), NO_CHAIN


@pytest.mark.parametrize("line", [b"", b"\n", b"{}\n", b"\0" * 600, b'{"crc32":0}\n', b"end 1\n"])
def test_what_has_no_seal_is_no_line(line: bytes) -> None:
    with pytest.raises(Malformed, match="does not end in"):
        codec.seal_of(line)


def a_checkpoint() -> Checkpoint:
    state = genesis(NOW)
    for change in some_changes():
        state.apply(change)
    state.generation = 3
    position = Position("journal-0000000000000001.jsonl", 77, NO_CHAIN)
    return Checkpoint("node-a", 3, NOW, position, state.balances(), state.all_rows())


def encoded(checkpoint: Checkpoint) -> bytes:
    return b"".join(codec.encode_checkpoint(checkpoint))


def test_a_checkpoint_reads_back_as_what_was_written() -> None:
    assert codec.decode_checkpoint(encoded(a_checkpoint())) == a_checkpoint()


def test_a_checkpoint_has_one_row_a_line() -> None:
    lines = encoded(a_checkpoint()).decode().splitlines()
    assert lines[:3] == ["{", f'"schema":{codec.SCHEMA},', '"node_id":"node-a",']
    assert '["committed:default","cpu_milli",100],' in lines
    assert sum(line.startswith(f'"{1:032x}":{{') for line in lines) == 2  # the lease and its beat
    assert lines[-1] == "}"


def test_the_pieces_of_a_large_checkpoint_are_small() -> None:
    row = a_checkpoint().tables[RESERVATIONS][f"{1:032x}"]
    rows = {**a_checkpoint().tables, RESERVATIONS: {f"{n:032x}": row for n in range(1_000)}}
    large = replace(a_checkpoint(), tables=rows)
    pieces = list(codec.encode_checkpoint(large))
    assert max(map(len, pieces)) < 100_000
    assert codec.decode_checkpoint(b"".join(pieces)) == large


def test_a_newer_schema_is_told_from_damage() -> None:
    body = encoded(a_checkpoint()).replace(b'"schema":%d' % codec.SCHEMA, b'"schema":12')
    with pytest.raises(Malformed) as damaged:
        codec.decode_checkpoint(body)
    assert not isinstance(damaged.value, NewerSchema)
    body = body[: body.rindex(b'"sha256"')]
    body += b'"sha256":"%b"\n}\n' % hashlib.sha256(body).hexdigest().encode()
    with pytest.raises(NewerSchema, match="schema 12, this program knows up to 6"):
        codec.decode_checkpoint(body)


@pytest.mark.parametrize("data", [b"", b"{}", b"{\n", b'{\n"schema":1,\n', b"\0" * 200])
def test_remains_of_a_checkpoint_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        codec.decode_checkpoint(data)
