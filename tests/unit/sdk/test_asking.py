"""What a call in Python becomes on the wire, and what it refuses before that."""

from __future__ import annotations

from typing import Any

import pytest

from axern.api import schema
from axern.sdk import asking
from ledger.errors import InvalidArgument


def test_a_lease_in_all_its_spellings() -> None:
    body = asking.lease_body(
        {"cpu": 1.5, "memory": "8GiB", "gpu_memory": 1024, "ttl": 90, "max_lifetime": "2h"}
        | {"name": "build", "namespace": "team-a", "request_id": "a", "ephemeral_storage": None}
    )
    assert body == {
        "request_id": "a",
        "requests": {"cpu_milli": 1500, "memory_bytes": 8 * 1024**3, "gpu_memory_bytes": 1024},
        "ttl_ms": 90_000,
        "max_lifetime_ms": 7_200_000,
        "name": "build",
        "namespace": "team-a",
    }
    schema.parse(schema.ReserveRequest, body)


def test_a_run_in_all_its_spellings() -> None:
    options: dict[str, Any] = {
        "cpu": 2,
        "limit_memory": "64MiB",
        "rootfs": "some/folder",
        "rootfs_readonly": True,
        "runtime_class": "runc",
        "env": {"A": "b"},
        "labels": {"team": "search"},
        "require": ("example.com/disk=nvme",),
        "timeout": "1h",
        "ttl": 0.5,
        "oom_kill_one": True,
        "user": "1000",
        "cwd": "/tmp",
        "template": "busybox",
    }
    body = asking.run_body(["sh", "-c", "true"], options)
    assert body["requests"] == {"cpu_milli": 2000}
    assert body["limits"] == {"memory_bytes": 64 * 1024**2}
    assert body["rootfs"].startswith("/")
    assert (body["timeout_ms"], body["ttl_ms"]) == (3_600_000, 500)
    assert len(body["request_id"]) == 32
    schema.parse(schema.RunRequest, body)


def test_each_call_has_a_request_id_of_its_own() -> None:
    assert asking.lease_body({})["request_id"] != asking.lease_body({})["request_id"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"cpu": "1G"}, "cpu: "), ({"memory": 1.5}, "memory: "), ({"ttl": "soon"}, "ttl: ")],
)
def test_a_quantity_that_is_none_names_its_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        asking.lease_body(options)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    "options", [{"limit_cpu": "1"}, {"cpus": 2}, {"cpu": True}, {"ttl": True}, {"cpu": ["1"]}]
)
def test_what_there_is_not_is_an_error_of_the_program(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        asking.lease_body(options)


def test_a_command_is_no_text() -> None:
    with pytest.raises(TypeError, match="list of words"):
        asking.run_body("true", {})


def test_the_typed_options_are_those_that_are_known() -> None:
    """The types exist for checkers only, so their names are read from the source."""
    import ast
    from pathlib import Path

    tree = ast.parse(Path(asking.__file__).read_text(encoding="utf-8"))
    fields = {
        node.name: {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    assert fields["LeaseOptions"] - {"retry_for"} == asking._OF_LEASES
    assert fields["AskedOptions"] == asking._OF_RUNS
