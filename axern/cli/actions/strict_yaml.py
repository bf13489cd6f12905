"""YAML read strictly: every scalar is the text that stands there, and each thing has a line.

No type is guessed from how a scalar looks, so that `no`, `1e3`, `010` and dates stay what was
written. Anchors, aliases, tags, directives, a second document and a key that stands twice are
refused. JSON is a part of YAML and read the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from ledger.errors import InvalidArgument

DEPTH_LIMIT = 8
SHOWN_LENGTH = 64
_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB]..\\u[dD][c-fC-F]..)")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C, where PyYAML was built with it, takes a megabyte in a fraction of a second."""


@dataclass(slots=True)
class Node:
    """A scalar with its `text`, a list with its `items`, or a mapping with its `fields`.

    `line` counts from 1. `is_plain` is about quotes: only a plain `true` can be meant as one.
    """

    kind: str
    line: int
    text: str = ""
    is_plain: bool = False
    items: list[Node] = field(default_factory=list)
    fields: dict[str, Node] = field(default_factory=dict)


SCALAR, LIST, MAPPING = "text", "list", "mapping"


def parse(text: str, source: str) -> Node:
    """Return the one document in *text*; *source* is its name in errors.

    Raises:
        InvalidArgument: It is no YAML, or uses something of it that is refused here.
    """
    try:
        return _Reader(source).read(yaml.parse(_joined(text), Loader=_LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark else source
        problem = getattr(error, "problem", None) or getattr(error, "reason", "it can't be read")
        raise InvalidArgument(f"{where}: it is not YAML: {problem}") from error


def _joined(text: str) -> str:
    """Return *text* with the pairs of escapes by which JSON, unlike YAML, writes one character."""
    if not _PAIR.search(text):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _PAIR.sub(lambda found: found[1] + json.loads(f'"{found[2]}"'), text)


def refuse(source: str, line: int, rule: str, hint: str | None = None) -> InvalidArgument:
    """Return the error for what is wrong at *line* of *source*."""
    return InvalidArgument(f"{source}, line {line}: {rule}", hint=hint)


class _Reader:
    """Builds the tree from the parser's events, without recursion."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._open: list[Node] = []
        self._keys: list[str | None] = []
        """For each open mapping the key that waits for its value."""
        self._root: Node | None = None

    def read(self, events: Iterator[Any]) -> Node:
        for event in events:
            self._take(event)
        if self._root is None:
            raise InvalidArgument(f"{self._source}: it is empty")
        return self._root

    def _take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        self._require_plain(event, line)
        match event:
            case yaml.ScalarEvent():
                is_plain = not event.style and event.implicit[0]
                self._add(Node(SCALAR, line, self._text(event.value, line), is_plain))
            case yaml.SequenceStartEvent():
                self._begin(Node(LIST, line))
            case yaml.MappingStartEvent():
                self._begin(Node(MAPPING, line))
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                self._open.pop()
                self._keys.pop()
            case yaml.DocumentStartEvent() if self._root is not None:
                raise refuse(self._source, line, "a second document begins; only one can be read")
            case yaml.DocumentStartEvent() if event.version or event.tags:
                raise refuse(self._source, line, "directives (%) can't be used here")

    def _require_plain(self, event: Any, line: int) -> None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise refuse(self._source, line, "anchors (&) and aliases (*) can't be used here")
        tag = getattr(event, "tag", None)
        if tag is not None:
            rule = f"the tag {tag[:SHOWN_LENGTH]!r} can't be used here: every value is text"
            raise refuse(self._source, line, rule)

    def _text(self, text: str, line: int) -> str:
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise refuse(self._source, line, "a text has half of a surrogate pair")
        return text

    def _begin(self, node: Node) -> None:
        if len(self._open) == DEPTH_LIMIT:
            raise refuse(self._source, node.line, f"it nests deeper than {DEPTH_LIMIT}")
        self._add(node)
        self._open.append(node)
        self._keys.append(None)

    def _add(self, node: Node) -> None:
        parent = self._open[-1] if self._open else None
        if parent is None:
            self._root = node
        elif parent.kind == LIST:
            self._require_value(node, "an item of the list")
            parent.items.append(node)
        elif self._keys[-1] is None:
            self._keys[-1] = self._key(parent, node)
        else:
            key = self._keys[-1]
            self._require_value(node, key)
            parent.fields[key] = node
            self._keys[-1] = None

    def _key(self, parent: Node, node: Node) -> str:
        if node.kind != SCALAR:
            raise refuse(self._source, node.line, f"a {node.kind} can't be a field's name")
        if node.text in parent.fields:
            rule = f"the field {node.text[:SHOWN_LENGTH]!r} stands twice"
            raise refuse(self._source, node.line, rule)
        return node.text

    def _require_value(self, node: Node, name: str) -> None:
        if node.kind == SCALAR and node.is_plain and node.text in _NULLS:
            rule = f"{name[:SHOWN_LENGTH]}: it has no value"
            raise refuse(
                self._source, node.line, rule, f"leave it out, or quote the text: {node.text!r}"
            )
