"""What a user asks for: flags turned into the body of a request."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from axern.cli.actions.environment import environment
from axern.cli.commands.resources import FLAGS
from ledger.errors import InvalidArgument
from ledger.frozen import frozen
from ledger.units import parse_duration_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@frozen
class RunOptions:
    """The flags of `axern run` as the user wrote them; `resources` is keyed by parameter name."""

    command: Sequence[str]
    resources: Mapping[str, str | None]
    env: Sequence[str] = ()
    cwd: str | None = None
    namespace: str | None = None
    template: str | None = None
    rootfs: str | None = None
    rootfs_readonly: bool = False
    runtime_class: str | None = None
    ttl: str | None = None
    request_id: str | None = None
    timeout: str | None = None
    user: str | None = None
    labels: Sequence[str] = ()
    env_files: Sequence[str] = ()
    file: str | None = None
    interactive: bool = False
    oom_kill_one: bool = False
    require: Sequence[str] = ()
    network: str | None = None
    publish: Sequence[str] = ()
    wait_for_capacity: str | None = None
    priority: int | None = None


def run_body(options: RunOptions) -> dict[str, Any]:
    """Return the body that asks for a run; it always has a request id, so that it may be repeated.

    What a spec file says holds where no flag says otherwise; variables, labels and amounts are
    taken one by one.

    Raises:
        InvalidArgument: A quantity, a duration, a variable or a file can't be read; no command.
    """
    _require_one_reader(options)
    written = _written(options.file)
    flags = {
        "request_id": options.request_id,
        "namespace": options.namespace,
        "command": list(options.command) or None,
        "cwd": options.cwd,
        "template": options.template,
        # The daemon has another working directory.
        "rootfs": None if options.rootfs is None else os.path.abspath(options.rootfs),
        "rootfs_readonly": options.rootfs_readonly or None,
        "runtime_class": options.runtime_class,
        "ttl_ms": _duration(options.ttl, "--ttl"),
        "timeout_ms": _duration(options.timeout, "--timeout"),
        "user": options.user,
        "stdin": options.interactive or None,
        "oom_kill_one": options.oom_kill_one or None,
        "require": list(options.require) or None,
        "network": options.network,
        "publish": list(options.publish) or None,
        "wait_for_capacity_ms": _duration(options.wait_for_capacity, "--wait-for-capacity"),
        "priority": options.priority,
    }
    if options.template or options.rootfs:  # either stands in for both
        written = {name: value for name, value in written.items() if name not in _ROOTS}
    body = _LEFT_OUT | written | {name: value for name, value in flags.items() if value is not None}
    if not body["command"]:
        raise InvalidArgument(
            "COMMAND is missing", hint="give it after --, for example: axern run -- true"
        )
    whole = body | {
        "request_id": body["request_id"] or os.urandom(16).hex(),
        "env": body["env"] | environment(options.env, options.env_files),
        "labels": body["labels"] | labels(options.labels),
        "requests": body["requests"] | amounts(options.resources, "requests"),
        "limits": body["limits"] | amounts(options.resources, "limits"),
    }
    _require_text(whole)
    return whole


def _require_one_reader(options: RunOptions) -> None:
    """Refuse to read standard input for two purposes."""
    flags = ["-i"] * options.interactive + ["-f -"] * (options.file == "-")
    flags += ["--env-file -"] * list(options.env_files).count("-")
    if len(flags) > 1:
        raise InvalidArgument(
            f"{' and '.join(flags)} would both read standard input", hint="give one of them a file"
        )


def _require_text(body: dict[str, Any]) -> None:
    """Refuse bytes that are no text: what a runtime reads is JSON, which would change them."""
    words = {f"word {number} of COMMAND": word for number, word in enumerate(body["command"], 1)}
    words |= {f"--env {name!r}": name + value for name, value in body["env"].items()}
    for what, word in words.items():
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(
                f"{what} has bytes that are not UTF-8 text, which no runtime can pass on",
                hint="hand them over in a file, or let the command make them: printf '\\377'",
            ) from None


_ROOTS = ("template", "rootfs")
_LEFT_OUT: dict[str, Any] = {
    "request_id": None,
    "namespace": "default",
    "command": [],
    "env": {},
    "cwd": "/",
    "template": None,
    "rootfs": None,
    "rootfs_readonly": False,
    "runtime_class": None,
    "requests": {},
    "limits": {},
    "ttl_ms": None,
    "timeout_ms": None,
    "user": None,
    "labels": {},
    "stdin": False,
    "oom_kill_one": False,
    "require": [],
    "network": "none",
    "publish": [],
}
"""The body of a run of which nothing is said."""


def _written(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    from axern.cli.actions.spec_file import read_spec

    return read_spec(path)


def _duration(text: str | None, flag: str) -> int | None:
    return None if text is None else parse_duration_ms(text, flag)


def amounts(texts: Mapping[str, str | None], side: str) -> dict[str, int]:
    """Return the amounts that were given for *side*, by dimension."""
    return {
        flag.dimension.name: flag.dimension.parse(text, flag.flag)
        for flag in FLAGS
        if flag.side == side and (text := texts.get(flag.parameter)) is not None
    }


def labels(words: Sequence[str]) -> dict[str, str]:
    """Return the labels that `KEY=VALUE` words name.

    Raises:
        InvalidArgument: A word has no `=`.
    """
    pairs = [word.partition("=") for word in words]
    for key, equals, value in pairs:
        if not key or not equals:
            raise InvalidArgument(
                f"--label: {key + equals + value!r} is not KEY=VALUE",
                hint="for example team=search",
            )
    return {key: value for key, _, value in pairs}
