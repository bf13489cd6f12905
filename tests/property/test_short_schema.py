"""What is read in one step is what the strict reader reads, and nothing that it would refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from axern.api import schema, short_schema
from axern.api.batch_schema import BatchRequest
from axern.api.strict_json import parse_json_object
from axern.daemon.parts import digest_of
from ledger.errors import InvalidArgument
from ledger.units import MAX_INTEGER

ID = "0123456789abcdef" * 2
AMOUNTS = ("cpu_milli", "memory_bytes", "ephemeral_storage_bytes", "gpu_memory_bytes")
HEARTBEAT = {"id": ID, "token": "t"}

names = st.text(st.characters(codec="utf-8"), max_size=130)
counts = st.integers(0, MAX_INTEGER) | st.sampled_from([-1, 2**53, 2**64, 1.0, True, "1", None])
durations = st.integers(1, 10**9) | st.sampled_from([0, schema.LONGEST_MS + 1, 1e3, None])
labels = st.sampled_from(["default", "team-a", "-a", "a\n", "A", "", "namespace", None])
request_ids = st.sampled_from(["a", "build-42", "x" * 129, "a\n", "é", "", None])
odd = {"other": st.just(1), "limits": st.sampled_from([{}, {"cpu_milli": 1}])}


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


reserves = some(
    request_id=request_ids,
    namespace=labels,
    requests=some(**dict.fromkeys(AMOUNTS, counts)) | st.none(),
    ttl_ms=durations,
    name=names,
    max_lifetime_ms=durations,
    owner_process=st.sampled_from([None, {"pid": None}]),
    **odd,
)
operations = some(
    reserve=reserves,
    release=some(id=st.sampled_from([ID, "a"]), reason=names | st.none(), request_id=request_ids),
    heartbeat=some(id=st.just(ID), token=names, ttl_ms=durations),
)
batches = some(
    mode=st.sampled_from(["all", "each", "some"]),
    request_id=request_ids,
    operations=st.lists(operations, max_size=3),
)
ordinary = some(
    request_id=st.just("build-42"),
    namespace=st.sampled_from(["default", "team-a"]),
    requests=some(**dict.fromkeys(AMOUNTS, st.integers(0, MAX_INTEGER))),
    ttl_ms=st.integers(1, 10**9),
    name=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=128),
    max_lifetime_ms=st.integers(1, 10**9),
)
KINDS: dict[str, tuple[Any, type[schema.Body]]] = {
    "reserve": (short_schema.reserve, schema.ReserveRequest),
    "batch": (short_schema.batch, BatchRequest),
}


@st.composite
def spelled(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> bytes:
    """Return the JSON of a value as somebody may write it: spaces, escapes, a key twice."""
    value = draw(values)
    ascii_only, separators = draw(st.booleans()), draw(st.sampled_from([(",", ":"), (" , ", ": ")]))
    text = json.dumps(value, ensure_ascii=ascii_only, separators=separators)
    if draw(st.booleans()):
        key = draw(st.sampled_from(["name", "namespace", "ttl_ms", "requests", "mode", "reserve"]))
        twice = draw(st.sampled_from(['"namespace"', "5", "{}", '"all"', "null"]))
        brace = draw(st.sampled_from([at for at, sign in enumerate(text) if sign == "{"]))
        comma = "" if text[brace + 1 :].lstrip().startswith("}") else ","
        text = f'{text[: brace + 1]}"{key}":{twice}{comma}{text[brace + 1 :]}'
    return text.encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn, bodies: st.SearchStrategy[bytes]) -> bytes:
    body = draw(bodies)
    at = draw(st.integers(0, len(body)))
    return body[:at] + draw(st.binary(max_size=3)) + body[at + draw(st.integers(0, 3)) :]


def strictly(kind: str, body: bytes) -> Any:
    """Return what the strict reader makes of *body*, or None if it refuses."""
    try:
        return schema.parse(KINDS[kind][1], parse_json_object(body))
    except InvalidArgument:
        return None


def same_reserve(short: short_schema.Reserve, strict: schema.ReserveRequest) -> bool:
    for name in ("request_id", "namespace", "ttl_ms", "name", "max_lifetime_ms", "owner_process"):
        assert getattr(short, name) == getattr(strict, name), name
    assert digest_of(short.document()) == digest_of(strict.document())
    assert short.spec() == strict.spec()
    return True


def same_batch(short: short_schema.Batch, strict: BatchRequest) -> bool:
    assert (short.mode, short.request_id) == (strict.mode, strict.request_id)
    for mine, theirs in zip(short.operations, strict.operations, strict=True):
        if mine.reserve is not None:
            assert theirs.reserve is not None
            assert same_reserve(mine.reserve, theirs.reserve)
        elif mine.release is not None:
            assert theirs.release is not None
            assert digest_of(mine.release.document()) == digest_of(theirs.release.document())
            assert mine.release.document() == theirs.release.document()
        else:
            assert mine.heartbeat is not None
            assert theirs.heartbeat is not None
            for name in ("id", "token", "ttl_ms"):
                assert getattr(mine.heartbeat, name) == getattr(theirs.heartbeat, name)
    return True


def check(kind: str, body: bytes) -> None:
    """Whatever is read shortly is read strictly, and to the same values."""
    short, strict = KINDS[kind][0](body), strictly(kind, body)
    if short is None:
        return
    assert strict is not None, body
    assert same_reserve(short, strict) if kind == "reserve" else same_batch(short, strict)


@given(spelled(reserves) | damaged(spelled(ordinary)))
@example(b'{"name":"a","name":"b"}')
@example(b'{"name":"x","name":"namespace"}')
@example(b'{"requests":{"cpu_milli":1},"requests":{}}')
@example(b'{"ttl_ms":5,"ttl_ms":6}')
@example(b'{"ttl_ms":1e3}')
@example(b'{"namespace":"a\n"}')
@example(b'{"n\\u0061me":"a"}')
@example(b'{"name":"\xed\xa0\x80"}')
@example(b'{"name":"\\ud800"}')
@example(b"[]")
def test_a_reserve(body: bytes) -> None:
    check("reserve", body)


@given(spelled(batches) | damaged(spelled(batches)))
@example(b'{"mode":"all","operations":[{"release":{"id":"%b"},"release":null}]}' % ID.encode())
@example(b'{"mode":"all","operations":[{}]}')
@example(b'{"mode":"all","mode":"each","operations":[{"release":{"id":"%b"}}]}' % ID.encode())
def test_a_batch(body: bytes) -> None:
    check("batch", body)


@given(ordinary, st.sampled_from([(",", ":"), (", ", ": ")]))
def test_the_ordinary_is_read_shortly(body: dict[str, Any], separators: tuple[str, str]) -> None:
    wire = json.dumps(body, separators=separators, ensure_ascii=False).encode()
    assert short_schema.reserve(wire) is not None
    check("reserve", wire)


@given(st.lists(ordinary, min_size=1, max_size=3), st.sampled_from(["all", "each"]))
def test_an_ordinary_batch_is_read_shortly(bodies: list[dict[str, Any]], mode: str) -> None:
    release = {"id": ID, "reason": "done", "request_id": "r"}
    wanted = [{"reserve": body} for body in bodies]
    wanted += [{"release": release}, {"release": {"id": ID}}, {"heartbeat": HEARTBEAT}]
    for body in ({"mode": mode, "operations": wanted}, {"mode": mode, "operations": wanted[:1]}):
        wire = json.dumps(body | {"request_id": "batch"}, ensure_ascii=False).encode()
        assert short_schema.batch(wire) is not None
        check("batch", wire)


@pytest.mark.parametrize("count", [0, 256, 257])
def test_the_bound_on_operations_is_the_same(count: int) -> None:
    wire = json.dumps({"mode": "all", "operations": [{"heartbeat": HEARTBEAT}] * count}).encode()
    assert (short_schema.batch(wire) is not None) == (strictly("batch", wire) is not None)
    assert (strictly("batch", wire) is not None) == (count == 256)


def test_control_a_decoder_alone_misses_what_stands_twice() -> None:
    body = b'{"name":"a","name":"b"}'
    assert short_schema._decode_reserve(body).name == "b"
    assert strictly("reserve", body) is None
    assert short_schema.reserve(body) is None
