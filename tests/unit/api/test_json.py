"""A body is read strictly: what two readers could understand differently is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.api.strict_json import JSON_DEPTH_LIMIT, parse_json_object
from ledger.errors import InvalidArgument

BAD = {
    "nothing": b"",
    "blanks": b" \r\n",
    "null": b"null",
    "a list": b"[]",
    "a text": b'"a"',
    "a number": b"1",
    "true": b"true",
    "two objects": b"{}{}",
    "something after it": b"{} x",
    "a trailing comma": b'{"a": 1,}',
    "single quotes": b"{'a': 1}",
    "a comment": b'{"a": 1 /* one */}',
    "a bare name": b"{a: 1}",
    "a leading zero": b'{"a": 01}',
    "a plus": b'{"a": +1}',
    "a control character": b'{"a": "\x01"}',
    "a bad escape": b'{"a": "\\x41"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "Latin-1": b'{"a": "\xe9"}',
    "an encoded surrogate": b'{"a": "\xed\xa0\x80"}',
    "an overlong slash": b'{"a": "\xc0\xaf"}',
    "a key twice": b'{"a": 1, "a": 1}',
    "a key twice, once escaped": b'{"a": 1, "\\u0061": 1}',
    "a key twice inside": b'{"a": {"b": 1, "b": 2}}',
    "a key twice in a list": b'{"a": [{"b": 1, "c": 3, "b": 2}]}',
    "a key twice at the bottom": b'{"a":' * 7 + b'{"b": 1, "b": 2}' + b"}" * 7,
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": Infinity}',
    "minus Infinity": b'{"a": [-Infinity]}',
    "a number too large for a float": b'{"a": 1e400}',
    "an integer of 5000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "nine levels": b'{"a":' * 9 + b"1" + b"}" * 9,
    "nine levels of lists": b'{"a":' + b"[" * 8 + b"]" * 8 + b"}",
    "a hundred thousand levels": b"[" * 100_000,
    "a hundred thousand objects": b'{"a":' * 100_000,
    "a lone surrogate": b'{"a": "\\ud800"}',
    "a lone low surrogate": b'{"a": ["\\udc00"]}',
    "surrogates the wrong way round": b'{"a": "\\udc00\\ud800"}',
    "a lone surrogate as a key": b'{"\\uD800": 1}',
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_one_plain_object_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_json_object(BAD[name])
    caught.value.message.encode()  # can be told
    assert len(caught.value.message) < 500


def test_a_long_key_is_not_repeated_in_full() -> None:
    key = b'"' + b"k" * 500_000 + b'"'
    with pytest.raises(InvalidArgument) as caught:
        parse_json_object(b"{" + key + b": 1, " + key + b": 2}")
    assert len(caught.value.message) < 500


def test_eight_levels_are_taken() -> None:
    deepest = b'{"a":' * JSON_DEPTH_LIMIT + b"1" + b"}" * JSON_DEPTH_LIMIT
    assert parse_json_object(deepest) == json.loads(deepest)
    lists = b'{"a":' + b"[" * (JSON_DEPTH_LIMIT - 1) + b"]" * (JSON_DEPTH_LIMIT - 1) + b"}"
    assert parse_json_object(lists) == json.loads(lists)


def test_what_only_looks_odd_is_taken() -> None:
    body = (
        ' { "é\\u00e9": "\\ud83d\\ude00", "": [0, -0.5, 1e3, true, null], "2": 9007199254740993 }'
    )
    assert parse_json_object(body.encode()) == {
        "éé": "😀",
        "": [0, -0.5, 1000.0, True, None],
        "2": 2**53 + 1,
    }


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    leaves.filter(lambda leaf: leaf not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(st.dictionaries(texts, values, max_size=6), st.booleans())
def test_any_object_within_the_limits_comes_through_equal(value: Any, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    if depth(value) <= JSON_DEPTH_LIMIT:
        assert parse_json_object(body) == value
    else:
        with pytest.raises(InvalidArgument):
            parse_json_object(body)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_refused(body: bytes) -> None:
    try:
        found = parse_json_object(body)
    except InvalidArgument:
        return
    assert json.loads(body) == found


@given(st.dictionaries(texts, values, min_size=1, max_size=4), st.data())
def test_any_key_that_stands_twice_is_refused(value: dict[str, Any], data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(sorted(value)))
    body = json.dumps(value)[:-1] + f", {json.dumps(again)}: 1}}"
    with pytest.raises(InvalidArgument):
        parse_json_object(body.encode())
