"""What may be asked for in Python, and the bodies of requests that it becomes.

Quantities are written as everywhere in Axern: CPU in cores ("500m", "1.5", 2), bytes with their
unit ("8GiB", or a number of bytes), durations as text ("1h30m") or as a number of seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ledger.dimensions import BY_NAME
from ledger.units import parse_duration_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypedDict

    Json = dict[str, Any]
    Cores = str | int | float
    Bytes = str | int
    Duration = str | int | float

    class LeaseOptions(TypedDict, total=False):
        """What a lease may be: what is left out takes the node's default.

        `retry_for` is how long to go on asking where the node is full, as often as it says.
        """

        cpu: Cores
        memory: Bytes
        ephemeral_storage: Bytes
        gpu_memory: Bytes
        namespace: str
        name: str
        parent: str
        ttl: Duration
        max_lifetime: Duration
        request_id: str
        retry_for: Duration

    class AskedOptions(TypedDict, total=False):
        """What describes a run, as for `axern run`; `env` has all of its variables."""

        cpu: Cores
        memory: Bytes
        ephemeral_storage: Bytes
        gpu_memory: Bytes
        limit_cpu: Cores
        limit_memory: Bytes
        limit_ephemeral_storage: Bytes
        namespace: str
        template: str
        rootfs: str
        rootfs_readonly: bool
        runtime_class: str
        env: Mapping[str, str]
        cwd: str
        user: str
        labels: Mapping[str, str]
        require: Sequence[str]
        network: str
        publish: Sequence[str]
        oom_kill_one: bool
        timeout: Duration
        ttl: Duration
        request_id: str

    class RunOptions(AskedOptions, total=False):
        """How a run goes besides.

        `on_output` is called with "stdout" or "stderr" and bytes, as they come. `capture` keeps
        them too, which is the default. `retry_for` is as for a lease.
        """

        on_output: Callable[[str, bytes], object]
        capture: bool
        retry_for: Duration


_AMOUNTS = {
    "cpu": "cpu_milli",
    "memory": "memory_bytes",
    "ephemeral_storage": "ephemeral_storage_bytes",
    "gpu_memory": "gpu_memory_bytes",
}
_LIMITS = {f"limit_{name}": field for name, field in _AMOUNTS.items() if name != "gpu_memory"}
_DURATIONS = {"ttl": "ttl_ms", "timeout": "timeout_ms", "max_lifetime": "max_lifetime_ms"}
_OF_LEASES = frozenset(
    {"namespace", "name", "parent", "request_id", "ttl", "max_lifetime", *_AMOUNTS}
)
_OF_RUNS = frozenset(
    {
        *("namespace", "template", "rootfs", "rootfs_readonly", "runtime_class", "env", "cwd"),
        *(
            "user",
            "labels",
            "require",
            "network",
            "publish",
            "oom_kill_one",
            "timeout",
            "ttl",
            "request_id",
        ),
        *_AMOUNTS,
        *_LIMITS,
    }
)


def lease_body(options: Mapping[str, Any]) -> Json:
    """Return the body that asks for a lease of *options*; it always has a request id.

    Raises:
        InvalidArgument: A quantity or duration can't be read.
        TypeError: An option that there is not.
    """
    return _body(options, _OF_LEASES, "a lease")


def run_body(command: Sequence[str], options: Mapping[str, Any]) -> Json:
    """Return the body that asks for a run of *command*; it always has a request id.

    Raises:
        InvalidArgument: A quantity or duration can't be read.
        TypeError: An option that there is not, or a command that is one text.
    """
    if isinstance(command, str):
        raise TypeError("a command is a list of words: ['sh', '-c', '…'] lets a shell read one")
    body = _body(options, _OF_RUNS, "a run")
    if "rootfs" in body:
        body["rootfs"] = os.path.abspath(body["rootfs"])  # the daemon has another folder
    return body | {"command": [os.fspath(word) for word in command]}


def seconds(value: Duration | None, name: str) -> float:
    """Return a duration in seconds, 0 for None."""
    return 0.0 if value is None else _milliseconds(value, name) / 1000


def listing(namespace: str | None, phase: str | None) -> str:
    """Return the path of the list of reservations that agree with what is not None."""
    from urllib.parse import urlencode

    given = {"namespace": namespace, "phase": phase}
    words = urlencode({name: value for name, value in given.items() if value is not None})
    return f"/v2/reservations?{words}" if words else "/v2/reservations"


def _body(options: Mapping[str, Any], known: frozenset[str], what: str) -> Json:
    given = {name: value for name, value in options.items() if value is not None}
    unknown = given.keys() - known
    if unknown:
        raise TypeError(f"{what} has no {', '.join(sorted(unknown))}")
    body: Json = {"request_id": os.urandom(16).hex()}
    for name, value in given.items():
        if name in _AMOUNTS:
            body.setdefault("requests", {})[_AMOUNTS[name]] = _amount(value, name, _AMOUNTS[name])
        elif name in _LIMITS:
            body.setdefault("limits", {})[_LIMITS[name]] = _amount(value, name, _LIMITS[name])
        elif name in _DURATIONS:
            body[_DURATIONS[name]] = _milliseconds(value, name)
        elif isinstance(value, Mapping):
            body[name] = dict(value)
        else:
            body[name] = list(value) if name == "require" else value
    return body


def _amount(value: object, name: str, dimension: str) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{name}: {value!r} is no quantity")
    amount: int = BY_NAME[dimension].parse(str(value), name)
    return amount


def _milliseconds(value: Duration, name: str) -> int:
    if isinstance(value, str):
        return parse_duration_ms(value, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: {value!r} is no duration")
    return max(1, round(value * 1000))
