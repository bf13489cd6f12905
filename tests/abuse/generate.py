"""Requests nobody would send: made from the API's own document and bent, or bytes bent blindly.

Each is a pure function of a seed and a number, so that a failure is replayed by naming them.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = Any
KIB = 1024

TEXTS = (
    "", "a", "default", "0", "-1", "true", "null", "a\nb", "\x00", "\x1b[2J\x07", "\u202egnp",
    "../../etc/none", "/none", "//none", "/proc/self/environ", "%00", "%s%n", "{0}", "${x}",
    "\U0001f600" * 20, "é", "e\u0301", "\ufeff", "a" * 63, "a" * 64, "a" * 129, "A-b", "-a", "1e9",
    "ffff", "0" * 32, "f" * 33, "00000000-0000-0000-0000-000000000000", "runc", "busybox",
)  # fmt: skip
NAMES = ("a", "b1", "/none")
NUMBERS = (
    0, 1, -1, 2, 2**31, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**53), 10**400,
)  # fmt: skip
ODD: tuple[Json, ...] = (
    None, True, False, 0.5, -0.0, 1e308, [], {}, [[]], {"": {}}, [None], {"a": 1},
)  # fmt: skip
RAW_VALUES = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"01", b"+1", b"'a'", b"9" * 5000,
    b'"\\ud800"', b'"\xff"', b"[" * 60 + b"]" * 60, b"[" * 100_000, b'{"a":' * 9 + b"1" + b"}" * 9,
    b"/**/1", b"tru", b'"' + b"x" * 140_000 + b'"', b'{"k":1,"k":2}', b"\x00", b"")  # fmt: skip
METHODS = ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "get", "BREW")
QUERIES = (
    "", "", "", "?", "?namespace=default", "?status=running", "?follow=false", "?from=0",
    "?from=-1", "?from=99999999999999999999", "?from=1&from=2", "?grace_ms=0", "?grace_ms=x",
    "?a=b", "?namespace=%00", "?namespace=%zz", "?" + "&" * 500, "?" + "a=b&" * 50,
    "?phase=reserved&namespace=%F0%9F%98%80", "?limit=1", "?limit=x", "?cursor=x", "?x" * 50,
)  # fmt: skip
HEADERS = (
    b"host: a", b"host: b", b"content-type: text/xml", b"expect: 100-continue", b"expect: x",
    b"connection: close", b"connection: keep-alive, x", b"accept-encoding: gzip", b"x: \xff\xfe",
    b"cookie: a=b", b"content-length: 0", b"content-length: 5", b"transfer-encoding: chunked",
    b"upgrade: h2c", b"last-event-id: 5", b"last-event-id: x", b"x-http-method-override: DELETE",
    b"range: bytes=0-", b"x-forwarded-for: 0", b"authorization: Basic cm9vdDo=", b"te: trailers",
    b": no name", b"no value", b"x\x00: y", b" folded", b"x: " + b"y" * 9 * KIB, b"z: z\r",
)  # fmt: skip
BYTES = (b"\x00", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b":", b"\xff", b"\x80", b"%", b"GET ",
    b"HTTP/1.1", b"HTTP/0.9", b"HTTP/2.0", b"0\r\n\r\n", b"{", b"\x16\x03\x01")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wire:
    """What one connection sends, in parts; `honest` says that it is well-formed HTTP."""

    parts: tuple[bytes, ...]
    honest: bool


CLOSING = ("/v2/node/drain", "/v2/node/retire")
"""What root may ask for, and what would spare the daemon all that comes after."""

ENDLESS = "/v2/events"
"""What goes on for ever unless it is told not to follow."""


class Generator:
    """Draws from the OpenAPI document *document*; *ids* names entries that may exist."""

    def __init__(self, document: Json, ids: Callable[[], list[str]]) -> None:
        self._schemas = document["components"]["schemas"]
        self._ids = ids
        self._operations = [
            (method.upper(), path, _body_schema(operation))
            for path, operations in document["paths"].items()
            if path not in CLOSING
            for method, operation in operations.items()
        ]

    def draw(self, seed: int, number: int) -> Wire:
        """Return request *number* of *seed*: three of four from the schema, the rest raw."""
        rng = random.Random(f"{seed}/{number}")
        if number % 4:
            return Wire((self.request(rng),), honest=True)
        wire = b"".join(self.request(rng) for _ in range(rng.choice((1, 1, 1, 3, 20))))
        return Wire(_cut(rng, _bent(rng, wire)), honest=False)

    def request(self, rng: random.Random) -> bytes:
        """Return well-formed HTTP that asks for something, mostly wrong."""
        method, path, schema = rng.choice(self._operations)
        body = b"" if schema is None else self._body(rng, schema)
        if rng.random() < 0.1:
            method = rng.choice(METHODS)
        if rng.random() < 0.05:
            body = rng.choice(RAW_VALUES)
        query = rng.choice(QUERIES) if rng.random() < 0.4 else ""
        if path == ENDLESS:
            query = f"?follow=false&{query.removeprefix('?')}"
        target = self._target(rng, path) + query
        lines = [f"{method} {target} HTTP/1.1".encode(), b"connection: close"]
        if body:
            lines.append(b"content-length: %d" % len(body))
        if rng.random() < 0.1:
            lines.append(b"x-y: " + bytes(rng.choices(range(0x20, 0x7F), k=rng.randrange(200))))
        return b"\r\n".join((*lines, b"", body))

    def _target(self, rng: random.Random, path: str) -> str:
        known = self._ids()
        filled = []
        for part in path.split("/"):
            if not part.startswith("{"):
                filled.append(part)
            elif known and rng.random() < 0.7:
                name = rng.choice(known)
                filled.append(name[: rng.choice((3, 4, 8, 32, 32, 32))])
            else:
                filled.append(_quoted(rng.choice(TEXTS)))
        if rng.random() < 0.05:
            filled.insert(rng.randrange(len(filled)), rng.choice(("", "..", ".", "%2e%2e", "v1")))
        return "/".join(filled) or "/"

    def _body(self, rng: random.Random, schema: Json) -> bytes:
        value = self._value(rng, schema)
        if rng.random() < 0.7:
            for _ in range(rng.choice((1, 1, 1, 2, 5))):
                value = self._mutated(rng, value)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        if rng.random() < 0.1 and text.startswith(b"{") and len(text) > 2:
            raw = rng.choice(RAW_VALUES)
            text = b'{"ttl_ms":' + raw + b"," + text[1:]
        return text

    def _value(self, rng: random.Random, schema: Json) -> Json:
        """Return a value that *schema* allows, small where it may be."""
        if "$ref" in schema:
            return self._value(rng, self._schemas[schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return self._value(rng, rng.choice(schema["anyOf"]))
        if "enum" in schema or "const" in schema:
            return rng.choice(schema.get("enum", [schema.get("const")]))
        kind = schema.get("type")
        if kind == "object":
            required = schema.get("required", ())
            return {
                name: self._value(rng, inner)
                for name, inner in schema.get("properties", {}).items()
                if name in required or rng.random() < 0.3
            }
        if kind == "array":
            least = max(1, schema.get("minItems", 0))
            return [self._value(rng, schema["items"]) for _ in range(least)]
        if kind == "integer":
            return rng.choice((schema.get("minimum", 0), rng.randrange(1, 100_000)))
        return {"boolean": rng.random() < 0.5, "null": None}.get(kind, rng.choice(NAMES))

    def _mutated(self, rng: random.Random, value: Json) -> Json:
        """Return *value* with one place, found at random, bent."""
        if isinstance(value, dict) and value and rng.random() < 0.7:
            name = rng.choice(list(value))
            act = rng.randrange(5)
            if act == 0:
                return {key: inner for key, inner in value.items() if key != name}
            if act == 1:
                return {**value, rng.choice(TEXTS): rng.choice((*NUMBERS, *TEXTS))}
            return {**value, name: self._mutated(rng, value[name])}
        if isinstance(value, list) and value and rng.random() < 0.7:
            if rng.random() < 0.3 and len(repr(value)) < KIB:
                return (value * rng.choice((2, 256, 257, 2000)))[:2000]
            place = rng.randrange(len(value))
            return [*value[:place], self._mutated(rng, value[place]), *value[place + 1 :]]
        long = rng.choice(("a", "é", "/a")) * rng.choice((64, 129, 4096, 131_072))
        return rng.choice((*NUMBERS, *TEXTS, *ODD, long))


def _body_schema(operation: Json) -> Json:
    content = operation.get("requestBody", {}).get("content", {})
    return next((kind["schema"] for kind in content.values()), None)


def _quoted(text: str) -> str:
    """Return *text* as it may stand in a request's target."""
    return "".join(
        char if char.isascii() and char.isprintable() and char not in ' ?#"<>' else _percent(char)
        for char in text
    )


def _percent(char: str) -> str:
    return "".join(f"%{byte:02x}" for byte in char.encode())


def _bent(rng: random.Random, wire: bytes) -> bytes:
    """Return *wire* with a few bytes, lines or halves changed."""
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        place = rng.randrange(len(wire) + 1)
        act = rng.randrange(7)
        if act == 0:
            wire = wire[:place]
        elif act == 1:
            wire = wire[:place] + rng.choice(BYTES) + wire[place:]
        elif act == 2:
            wire = wire[:place] + bytes([rng.randrange(256)]) + wire[place + 1 :]
        elif act == 3:
            wire = wire[:place] + wire[place + rng.randrange(1, 40) :]
        elif act == 4:
            head, line, rest = wire.partition(b"\r\n")
            wire = head + line + rng.choice(HEADERS) + line + rest
        elif act == 5:
            wire = wire[:place] + wire[max(0, place - 60) : place] * rng.choice((1, 2, 300))
            wire = wire[: 2 * KIB * KIB]
        else:
            wire += rng.randbytes(rng.randrange(200))
    return wire


def _cut(rng: random.Random, wire: bytes) -> tuple[bytes, ...]:
    inner = (rng.randrange(len(wire) + 1) for _ in range(rng.randrange(5)))
    places = sorted({0, len(wire), *inner})
    return tuple(wire[a:b] for a, b in itertools.pairwise(places))
