"""Every row, commit and checkpoint survives its spelling, and has only one."""

import string
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import codec
from ledger.clock import Now
from ledger.codec import NO_CHAIN, Checkpoint, Malformed, Position
from ledger.facts import Facts
from ledger.state import Change, Put
from ledger.tables import ROW_TYPES, Row

NUMBERS = st.integers(min_value=0, max_value=2**53 - 1)
TEXTS = st.text(max_size=20)
HASHES = st.text(alphabet=string.hexdigits.lower()[:16], min_size=64, max_size=64)
SCALARS: dict[object, st.SearchStrategy[Any]] = {int: NUMBERS, str: TEXTS, bool: st.booleans()}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for any value of the annotation *kind*."""
    if kind in SCALARS:
        return SCALARS[kind]
    if kind is type(None):
        return st.none()
    inner: tuple[Any, ...] = getattr(kind, "__args__", ())
    if getattr(kind, "__origin__", None) is tuple:
        if inner[-1] is Ellipsis:
            return st.lists(values(inner[0]), max_size=3).map(tuple)
        return st.tuples(*map(values, inner))
    if inner:
        return st.one_of(*map(values, inner))
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in fields(kind)})


ROWS = {name: values(kind) for name, kind in ROW_TYPES.items()}
CLOCKS = values(Now)
POSTINGS = st.tuples(TEXTS, TEXTS, st.integers(-(2**53), 2**53))
PUTS = st.sampled_from(sorted(ROWS)).flatmap(
    lambda name: st.builds(Put, st.just(name), TEXTS, st.none() | ROWS[name])
)
CHANGES = st.builds(
    Change,
    TEXTS,
    st.lists(PUTS, max_size=3).map(tuple),
    st.lists(POSTINGS, max_size=3).map(tuple),
    TEXTS,
    TEXTS,
    st.none() | values(Facts),
)
COMMITS = st.lists(
    CHANGES,
    max_size=3,
    unique_by=lambda change: change.facts.sequence if change.facts else object(),
)


@pytest.mark.parametrize("table", sorted(ROW_TYPES))
@given(data=st.data())
def test_a_row_survives(table: str, data: st.DataObject) -> None:
    row: Row = data.draw(ROWS[table])
    spelled = codec.encode_row(row)
    assert b"\n" not in spelled
    assert b"\0" not in spelled
    assert codec.decode_row(table, spelled) == row
    assert codec.encode_row(codec.decode_row(table, spelled)) == spelled


@given(generation=NUMBERS, clock=CLOCKS, changes=COMMITS, chain=HASHES)
def test_a_commit_survives(generation: int, clock: Now, changes: list[Change], chain: str) -> None:
    line, own = codec.encode_commit(generation, clock, changes, chain)
    commit = codec.decode_commit(line, chain)
    assert (commit.generation, commit.clock, commit.chain) == (generation, clock, own)
    assert commit.changes == tuple(changes)


@given(changes=COMMITS, clock=CLOCKS, data=st.data())
def test_a_changed_byte_never_goes_unnoticed(
    changes: list[Change], clock: Now, data: st.DataObject
) -> None:
    line, _ = codec.encode_commit(7, clock, changes, NO_CHAIN)
    place = data.draw(st.integers(0, len(line) - 1))
    harm = data.draw(st.integers(1, 255))
    changed = line[:place] + bytes([line[place] ^ harm]) + line[place + 1 :]
    with pytest.raises(Malformed):
        codec.decode_commit(changed, None)


CHECKPOINTS = st.builds(
    Checkpoint,
    TEXTS,
    NUMBERS,
    CLOCKS,
    st.builds(Position, TEXTS, NUMBERS, HASHES),
    st.dictionaries(st.tuples(TEXTS, TEXTS), st.integers(-(2**53), 2**53), max_size=4),
    st.fixed_dictionaries(
        {name: st.dictionaries(TEXTS, rows, max_size=2) for name, rows in ROWS.items()}
    ),
)


@given(checkpoint=CHECKPOINTS)
def test_a_checkpoint_survives(checkpoint: Checkpoint) -> None:
    spelled = b"".join(codec.encode_checkpoint(checkpoint))
    again = codec.decode_checkpoint(spelled)
    assert again == checkpoint
    assert b"".join(codec.encode_checkpoint(again)) == spelled
    for name, rows in checkpoint.tables.items():
        assert list(again.tables[name]) == list(rows)  # the order in which they were made
