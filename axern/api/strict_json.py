"""Read JSON that leaves no doubt: one object, each key once, no NaN, not deep, only UTF-8."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from ledger.errors import InvalidArgument

JSON_DEPTH_LIMIT = 8
SHOWN_LENGTH = 64
"""How much of a client's own text an error repeats."""


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in *body*, read strictly; raises InvalidArgument for anything else."""
    try:
        value = _DECODER.decode(body.decode("utf-8"))
        if b"\\u" in body:
            _refuse_lone_surrogates(value)
    except RecursionError:
        raise InvalidArgument(f"the body nests deeper than {JSON_DEPTH_LIMIT}") from None
    except ValueError as error:
        raise InvalidArgument(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument("the body must be a JSON object")
    if _depth(value) > JSON_DEPTH_LIMIT:
        raise InvalidArgument(f"the body nests deeper than {JSON_DEPTH_LIMIT}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {key[:SHOWN_LENGTH]!r} stands twice")
    return unique


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:SHOWN_LENGTH]} is larger than any number")
    return number


def _refuse_lone_surrogates(value: object) -> None:
    r"""Refuse what an escape such as `\ud800` alone makes: no UTF-8 could ever hold it."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair") from None


def _depth(value: object) -> int:
    deepest = 0
    level = [value]
    while level and deepest <= JSON_DEPTH_LIMIT:
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            else:
                continue
        deepest += any(isinstance(item, (dict, list)) for item in level)
        level = inner
    return deepest


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
)
