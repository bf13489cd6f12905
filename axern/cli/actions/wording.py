"""The daemon's errors in the words of the command line: flags where the API has fields."""

from __future__ import annotations

from axern.api.client import ApiError
from axern.cli.commands.resources import FLAGS
from ledger.errors import AxernError, InvalidArgument

_WORDS = {
    "command": "COMMAND",
    "created_before_ms": "--before",
    "created_from_ms": "--since",
    "cursor": "--cursor",
    "cwd": "--cwd",
    "env": "--env",
    "from": "--from",
    "grace_ms": "--grace",
    "label": "--label",
    "labels": "--label",
    "limit": "--limit",
    "max_lifetime_ms": "--max-lifetime",
    "name": "NAME",
    "namespace": "--namespace",
    "network": "--network",
    "older_than_ms": "--older-than",
    "oom_kill_one": "--oom-kill-one",
    "owner": "--owner",
    "publish": "--publish",
    "reason": "--reason",
    "request_id": "--request-id",
    "require": "--require",
    "rootfs": "--rootfs",
    "rootfs_readonly": "--rootfs-readonly",
    "runtime_class": "--runtime-class",
    "since_ms": "--since",
    "source.path": "--from",
    "source.reference": "--from",
    "statuses": "--status",
    "tail": "--tail",
    "template": "--template",
    "timeout_ms": "--timeout",
    "token": "--token",
    "ttl_ms": "--ttl",
    "user": "--user",
}
"""The fields that a flag or an argument fills, beside those of the resources."""


def in_flags(error: AxernError) -> AxernError:
    """Return *error*; one of the daemon about a field names the flag that fills it instead."""
    if not isinstance(error, ApiError) or error.code != InvalidArgument.code:
        return error
    field, colon, rule = error.message.partition(":")
    head, _, item = field.partition(".")
    name = _WORDS.get(field) or (f"{_WORDS[head]} {item}".rstrip() if head in _WORDS else field)
    text = f"{name}{colon}{rule}"
    for flag in FLAGS:
        text = text.replace(f"{flag.side}.{flag.dimension.name}", flag.flag)
    return ApiError(error.status, error.error | {"message": text})
