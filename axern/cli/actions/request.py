"""What a user asks for: flags turned into the body of a request."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from axern.cli.commands.resources import FLAGS
from ledger.errors import InvalidArgument
from ledger.units import parse_duration_ms


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The flags of `axern run` as the user wrote them; `resources` is keyed by parameter name."""

    command: Sequence[str]
    resources: Mapping[str, str | None]
    env: Sequence[str] = ()
    cwd: str = "/"
    namespace: str = "default"
    template: str | None = None
    rootfs: str | None = None
    rootfs_readonly: bool = False
    runtime_class: str | None = None
    ttl: str | None = None
    request_id: str | None = None


def run_body(options: RunOptions) -> dict[str, Any]:
    """Return the body that asks for a run; it always has a request id, so that it may be repeated.

    Raises:
        InvalidArgument: A quantity, a duration or a variable can't be read.
    """
    return {
        "request_id": options.request_id or os.urandom(16).hex(),
        "namespace": options.namespace,
        "command": list(options.command),
        "env": environment(options.env),
        "cwd": options.cwd,
        "template": options.template,
        # The daemon has another working directory.
        "rootfs": os.path.abspath(options.rootfs) if options.rootfs else None,
        "rootfs_readonly": options.rootfs_readonly,
        "runtime_class": options.runtime_class,
        "requests": amounts(options.resources, "requests"),
        "limits": amounts(options.resources, "limits"),
        "ttl_ms": parse_duration_ms(options.ttl, "--ttl") if options.ttl is not None else None,
    }


_FLAGS = {
    "namespace": "--namespace",
    "env": "--env",
    "cwd": "--cwd",
    "template": "--template",
    "rootfs": "--rootfs",
    "rootfs_readonly": "--rootfs-readonly",
    "runtime_class": "--runtime-class",
    "ttl_ms": "--ttl",
    "request_id": "--request-id",
}
"""The fields of the body that a flag fills, beside those of the resources."""


def in_flags(message: str) -> str:
    """Return *message* with the fields of the body that it is about as the flags for them."""
    field, colon, rule = message.partition(":")
    text = f"{_FLAGS.get(field, field)}{colon}{rule}"
    for flag in FLAGS:
        text = text.replace(f"{flag.side}.{flag.dimension.name}", flag.flag)
    return text


def amounts(texts: Mapping[str, str | None], side: str) -> dict[str, int]:
    """Return the amounts that were given for *side*, by dimension."""
    return {
        flag.dimension.name: flag.dimension.parse(text, flag.flag)
        for flag in FLAGS
        if flag.side == side and (text := texts.get(flag.parameter)) is not None
    }


def environment(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that `KEY=VALUE` words name; `KEY` alone is taken from this process.

    Raises:
        InvalidArgument: There is no name, or the variable to be taken is not set.
    """
    variables: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name:
            raise InvalidArgument(
                f"--env: {word!r} has no name before the '='", hint="for example --env LANG=C"
            )
        if not equals:
            if name not in os.environ:
                raise InvalidArgument(
                    f"--env: {name} is not set here, so it can't be passed on",
                    hint=f"give it a value: --env {name}=VALUE",
                )
            value = os.environ[name]
        variables[name] = value
    return variables


def checked_id(text: str) -> str:
    """Return the id or prefix *text* in lower case.

    Raises:
        InvalidArgument: It is not 4 to 32 hexadecimal digits.
    """
    word = text.lower()
    if not 4 <= len(word) <= 32 or word.strip("0123456789abcdef"):  # noqa: PLR2004 - said below
        raise InvalidArgument(
            f"{text!r} is not an id: it must be 4 to 32 hexadecimal digits",
            hint="a unique beginning of an id will do",
        )
    return word


def query(path: str, **values: object) -> str:
    """Return *path* with the *values* that are not None as its query."""
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return path
    from urllib.parse import urlencode

    return f"{path}?{urlencode(given)}"
