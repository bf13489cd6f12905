"""The configuration: one TOML file, every key with a unit and a default, unknown keys refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from ledger.errors import InvalidArgument
from ledger.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.settings import Settings

DEFAULT_PATH = "/etc/axern/axern.toml"
DEFAULT_STATE_DIR = "/var/lib/axern"
DEFAULT_RUN_DIR = "/run/axern"
TEMPLATE_NAME = r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
"""A template's name, safe as the name of a folder; no other folder there begins with a letter."""

NAMESPACE = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
"""A namespace's name: a DNS label."""

EXTENSION = (
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+"
    r"/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?(=[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$"
)
"""`<dns-domain>/<name>`, with or without `=<value>`: what an administrator says that a node has."""

_LONGEST_INTEGER = 18


@frozen
class Locations:
    """What the command line needs to know: the daemon's socket and the ledger's folder."""

    socket: str
    ledger_dir: str


def locate(path: str | None = None) -> Locations:
    """Return the locations that the file *path* (default /etc/axern/axern.toml) configures.

    Reads only the keys it needs, so that a command starts without the validation library.

    Raises:
        InvalidArgument: The file was named but can't be read, or is not TOML.
    """
    raw = _read(path, parse=_parse_plain)
    state_dir = str(raw.get("state_dir", DEFAULT_STATE_DIR))
    run_dir = str(raw.get("run_dir", DEFAULT_RUN_DIR))
    return Locations(
        socket=str(raw.get("socket") or f"{run_dir}/axernd.sock"),
        ledger_dir=f"{state_dir}/ledger",
    )


def load(path: str | None = None) -> Settings:
    """Return the whole configuration from the file *path*, validated.

    Raises:
        InvalidArgument: Unreadable, not TOML, an unknown key, a bad value, or a file that others
            than its owner may change.
    """
    from pydantic import ValidationError

    from axern.settings import Settings

    try:
        return Settings.model_validate(_read(path, parse=_parse, trusted=True))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InvalidArgument(
            f"{path or DEFAULT_PATH}: {key}: {first['msg']}",
            hint="docs/operating.md lists every key with its unit and default",
        ) from error


def _read(
    path: str | None, *, parse: Callable[[str], dict[str, Any]], trusted: bool = False
) -> dict[str, Any]:
    try:
        with open(path or DEFAULT_PATH, "rb") as file:
            if trusted:
                _require_trusted(path or DEFAULT_PATH, os.fstat(file.fileno()))
            return parse(file.read().decode())
    except FileNotFoundError:
        if path is None:
            return {}
        raise InvalidArgument(f"there is no configuration file {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path or DEFAULT_PATH}: {error}") from error


def _parse(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


def _parse_plain(text: str) -> dict[str, Any]:
    """Return what `tomllib` returns, without it (9 ms) where each line is a plain key and value."""
    found: dict[str, Any] = {}
    for line in text.split("\n"):
        if line.isprintable() and line.lstrip()[:1] in {"", "#"}:
            continue
        key, equals, value = (part.strip(" ") for part in line.partition("="))
        inner = value[1:-1]
        is_text = value == f'"{inner}"' and not {'"', "\\"} & set(inner) and inner.isprintable()
        is_number = (
            value.isdecimal() and len(value) <= _LONGEST_INTEGER and value == str(int(value))
        )
        plain = equals and key.isidentifier() and key.isascii() and key not in found
        if not plain or not (is_text or is_number or value in {"true", "false"}):
            return _parse(text)
        found[key] = inner if is_text else int(value) if is_number else value == "true"
    return found


def _require_trusted(path: str, status: os.stat_result) -> None:
    """Refuse a file that somebody else could have written: it decides what root runs."""
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidArgument(
            f"{path} may be changed by others than root "
            f"(owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o})",
            hint=f"chown root {path} && chmod go-w {path}",
        )
