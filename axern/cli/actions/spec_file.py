"""`axern run -f FILE`: a run written down, read as strictly as flags are. See docs/spec-file.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from axern.api import schema
from axern.cli.actions.environment import read_text
from axern.cli.actions.strict_yaml import LIST, MAPPING, SCALAR, SHOWN_LENGTH, Node, parse, refuse
from axern.cli.commands.resources import FLAGS
from ledger.errors import InvalidArgument
from ledger.units import parse_duration_ms

API_VERSION = "axern/v1"
KIND = "Run"

Json = dict[str, Any]
Reader = Callable[["_File", Node, str, str], Any]
"""Reads a node as the body's field; both the path in the file and in the body are passed on."""


@dataclass(frozen=True, slots=True)
class _File:
    """What is read; `places` are the path in the file and the line of each field of the body."""

    source: str
    places: dict[str, tuple[str, int]] = field(default_factory=dict)

    def wrong(self, node: Node, path: str, rule: str, hint: str | None = None) -> InvalidArgument:
        return refuse(self.source, node.line, f"{path}: {rule}", hint)

    def mapping(self, node: Node, path: str) -> dict[str, Node]:
        if node.kind != MAPPING:
            raise self.wrong(node, path, f"it must be a mapping, not a {node.kind}")
        return node.fields


def read_spec(path: str) -> Json:
    """Return the fields of a run's body that the file *path* has; `-` is standard input.

    Raises:
        InvalidArgument: Names file, line and field, and the rule that is broken.
    """
    source = "standard input" if path == "-" else path
    file = _File(source)
    root = parse(read_text(path, "-f"), source)
    top = file.mapping(root, "the whole")
    for name, value in (("api_version", API_VERSION), ("kind", KIND)):
        node = top.get(name)
        if node is None or node.kind != SCALAR or node.text != value:
            rule = f"it must be {value}"
            raise file.wrong(node or root, name, rule, f"it begins with: {name}: {value}")
    body: Json = {}
    _read(file, root, "", _TOP, body)
    _validate(file, body)
    return body


def _read(file: _File, node: Node, path: str, known: dict[str, Any], body: Json) -> None:
    """Read the fields of *node* into *body*; a field of fields in *known* is read the same way."""
    for name, value in file.mapping(node, path).items():
        inner = f"{path}.{name}".lstrip(".")
        wanted = known.get(name)
        if wanted is None:
            shown = f"{path}.{name[:SHOWN_LENGTH]}".lstrip(".")
            raise file.wrong(value, shown, "unknown field", f"known are {', '.join(known)}")
        if isinstance(wanted, dict):
            _read(file, value, inner, wanted, body)
        elif wanted is not _checked:
            body_path, reader = wanted
            file.places[body_path] = (inner, value.line)
            side, _, dimension = body_path.partition(".")
            found = reader(file, value, inner, body_path)
            if dimension:
                body.setdefault(side, {})[dimension] = found
            else:
                body[side] = found


def _validate(file: _File, body: Json) -> None:
    """Hold *body* to what the daemon will hold it to, and tell what is wrong by its place."""
    try:
        schema.parse(schema.RunRequest, {"command": ["-"]} | body)
    except InvalidArgument as error:
        told, _, rule = error.message.partition(": ")
        while told not in file.places and "." in told:
            told = told.rpartition(".")[0]
        path, line = file.places.get(told, (told, 1))
        raise refuse(file.source, line, f"{path}: {rule}", error.hint) from None


def _text(file: _File, node: Node, path: str, _: str) -> str:
    if node.kind != SCALAR:
        raise file.wrong(node, path, f"it must be a text, not a {node.kind}")
    return node.text


def _flag(file: _File, node: Node, path: str, _: str) -> bool:
    if node.kind != SCALAR or not node.is_plain or node.text not in {"true", "false"}:
        raise file.wrong(node, path, "it must be true or false", "without quotes")
    return node.text == "true"


def _duration(file: _File, node: Node, path: str, body_path: str) -> int:
    return _quantity(file, node, path, body_path, parse_duration_ms)


def _quantity(
    file: _File, node: Node, path: str, body_path: str, parser: Callable[[str, str], int]
) -> int:
    try:
        return parser(_text(file, node, path, body_path), path)
    except InvalidArgument as error:
        if error.message.startswith(file.source):
            raise
        raise refuse(file.source, node.line, error.message, error.hint) from None


def _list(file: _File, node: Node, path: str, body_path: str) -> list[str]:
    if node.kind != LIST:
        hint = "for example [sh, -c, 'echo hello']"
        raise file.wrong(node, path, f"it must be a list, not a {node.kind}", hint)
    for number, item in enumerate(node.items):
        file.places[f"{body_path}.{number}"] = (f"{path}[{number}]", item.line)
    return [_text(file, item, f"{path}[{n}]", "") for n, item in enumerate(node.items)]


def _texts(file: _File, node: Node, path: str, body_path: str) -> dict[str, str]:
    fields = file.mapping(node, path)
    for name, value in fields.items():
        key = name[:SHOWN_LENGTH]
        file.places[f"{body_path}.{key}"] = (f"{path}.{key}", value.line)
    return {
        name: _text(file, value, f"{path}.{name[:SHOWN_LENGTH]}", "")
        for name, value in fields.items()
    }


def _resources(side: str) -> dict[str, tuple[str, Reader]]:
    """Return the fields of one side, named as the flags are, with their quantities' parsers."""

    def reader(parser: Callable[[str, str], int]) -> Reader:
        return lambda file, node, path, body_path: _quantity(file, node, path, body_path, parser)

    return {
        flag.dimension.flag.replace("-", "_"): (
            f"{side}.{flag.dimension.name}",
            reader(flag.dimension.parse),
        )
        for flag in FLAGS
        if flag.side == side
    }


_checked = object()
"""For the fields that were looked at first."""
_TOP: dict[str, Any] = {
    "api_version": _checked,
    "kind": _checked,
    "metadata": {
        "namespace": ("namespace", _text),
        "labels": ("labels", _texts),
        "request_id": ("request_id", _text),
    },
    "spec": {
        "command": ("command", _list),
        "env": ("env", _texts),
        "cwd": ("cwd", _text),
        "user": ("user", _text),
        "template": ("template", _text),
        "rootfs": ("rootfs", _text),
        "rootfs_readonly": ("rootfs_readonly", _flag),
        "runtime_class": ("runtime_class", _text),
        "oom_kill_one": ("oom_kill_one", _flag),
        "require": ("require", _list),
        "network": ("network", _text),
        "publish": ("publish", _list),
        "resources": {"requests": _resources("requests"), "limits": _resources("limits")},
        "timeout": ("timeout_ms", _duration),
        "ttl": ("ttl_ms", _duration),
    },
}
"""Each field of the file: the body's field and how it is read, or the fields within."""
