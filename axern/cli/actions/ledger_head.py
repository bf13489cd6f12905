"""What `axern ledger export-head` and `verify-head` do: tamper evidence."""

from __future__ import annotations

import re
import sys

from axern.cli.output import put_fields, put_json
from ledger.errors import InvalidArgument
from ledger.units import MAX_INTEGER, format_rfc3339

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where
    from ledger.head import Head

    Json = dict[str, Any]

_LARGEST_BYTES = 4096
_SHA256 = re.compile("[0-9a-f]{64}", re.ASCII)
_TEXTS = ("node_id", "chain", "content_sha256")
_NUMBERS = ("generation", "schema", "wall_ms")
_EXIT_CODES = {"verified": 0, "chain-only": 1, "not-kept": 1}
_HINT = "a head is what axern ledger export-head -o json writes"


def export_head(where: Where, *, output: str) -> None:
    """Print the head of the ledger."""
    from dataclasses import asdict

    from ledger import head

    found = head.of(where.ledger_dir)
    if output == "json":
        put_json(asdict(found))
        return
    put_fields(
        [
            ("node", found.node_id),
            ("generation", found.generation),
            ("at", format_rfc3339(found.wall_ms)),
            ("chain", found.chain),
            ("content", f"{found.content_sha256} (schema {found.schema})"),
        ]
    )


def verify_head(where: Where, *, path: str, output: str) -> int:
    """Print what became of the head in *path*; return 0, 1 where nobody can tell, 3 otherwise."""
    from ledger import head

    wanted = _read(path)
    found = head.verify(where.ledger_dir, wanted)
    if output == "json":
        put_json(
            {
                "verdict": found.verdict,
                "message": found.message,
                "generation": found.generation,
                "head_generation": wanted.generation,
            }
        )
    else:
        at = format_rfc3339(wanted.wall_ms)
        put_fields(
            [
                ("head", f"generation {wanted.generation}, {at}"),
                ("ledger", f"generation {found.generation}"),
                ("verdict", found.verdict),
                ("because", found.message),
            ]
        )
    return _EXIT_CODES.get(found.verdict, 3)


def _read(path: str) -> Head:
    """Return the head that the file *path* holds; `-` is standard input.

    Raises:
        InvalidArgument: It can't be read, or is no head.
    """
    from axern.api.strict_json import parse_json_object
    from ledger.head import Head

    try:
        if path == "-":
            data = sys.stdin.buffer.read(_LARGEST_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from error
    if len(data) > _LARGEST_BYTES:
        raise InvalidArgument(f"{path}: more than {_LARGEST_BYTES} bytes", hint=_HINT)
    try:
        values = parse_json_object(data)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error.message}", hint=_HINT) from error
    _require_head(path, values)
    return Head(**values)


def _require_head(path: str, values: Json) -> None:
    names = (*_TEXTS, *_NUMBERS)
    for name in sorted({*names, *values}):
        if name not in names:
            raise InvalidArgument(f"{path}: the key {name[:64]!r} is unknown", hint=_HINT)
        value = values.get(name)
        if name in _NUMBERS:
            fits = type(value) is int and 0 <= value <= MAX_INTEGER
        else:
            fits = isinstance(value, str) and bool(name == "node_id" or _SHA256.fullmatch(value))
        if not fits:
            raise InvalidArgument(f"{path}: {name} is missing or malformed", hint=_HINT)
