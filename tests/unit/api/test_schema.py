"""Each limit of the contract on what a request may hold, at the limit and one beyond."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.api import schema
from ledger.errors import InvalidArgument
from ledger.units import MAX_INTEGER, format_rfc3339

RUN = {"command": ["true"]}
LABEL = "a" * 63
PAGE = 4096


def run(**fields: Any) -> schema.RunRequest:
    return schema.parse(schema.RunRequest, {**RUN, **fields})


GOOD: list[dict[str, Any]] = [
    {},
    {"command": ["x"] * 256},
    {"command": ["x", "y" * (128 * 1024 - PAGE - 3)]},
    {"command": ["x", "", "--", "-", "a b", "é😀", "\n\t\x1b[31m\x7f"]},
    {"env": {"A": "", "b c": "=", "é": "😀", "A.B-C": "x\ny"}},
    {"env": {"A": "x" * (128 * 1024 - PAGE - 3)}},
    {"cwd": "/"},
    {"cwd": "/a b/..c/.../d"},
    {"cwd": "/" + "a" * 4094},
    {"namespace": LABEL},
    {"namespace": "0-a"},
    {"template": "python-3.11_x"},
    {"request_id": "A" * 128},
    {"request_id": "a.b_c:d-e"},
    {"request_id": None},
    {"requests": {"cpu_milli": MAX_INTEGER, "memory_bytes": None}},
    {"requests": {"cpu_milli": 0}},
    {"requests": {}, "limits": {}},
    {"ttl_ms": 1, "timeout_ms": 1},
    {"user": "0"},
    {"user": "65535:65535"},
    {"user": "_apt.x-1"},
    {"user": "nobody:100"},
    {"labels": {}},
    {"labels": {"a": "", "example.com/job_1-x": "é😀 =" + "x" * 248, "A" * 63: "b"}},
    {"labels": {f"k{number}": "" for number in range(64)}},
    {"runtime_class": "runc", "rootfs": "/x", "rootfs_readonly": True},
    {"runtime_class": None, "rootfs": None, "template": None},
]

WRONG_AMOUNTS: tuple[Any, ...] = (
    -1, 2**53, 2**63, 2**64, 10**400, 1.0, 1.5, "1", True, False, [], {},
)  # fmt: skip

BAD: list[tuple[str, dict[str, Any]]] = [
    ("command", {"command": []}),
    ("command", {"command": [""]}),
    ("command", {"command": ["", "x"]}),
    ("command", {"command": ["x"] * 257}),
    ("command", {"command": "true"}),
    ("command", {"command": None}),
    ("command", {"command": {"0": "true"}}),
    ("command.0", {"command": [1]}),
    ("command.1", {"command": ["x", None]}),
    ("command.1", {"command": ["x", "a\x00b"]}),
    ("command.1", {"command": ["x", "y" * 131_072]}),
    ("command.1", {"command": ["x", "é" * 65_536]}),
    ("command", {"command": ["x", "y" * (128 * 1024 - PAGE - 2)]}),
    ("command", {"command": ["é" * 500] * 256}),
    ("env", {"env": [["A", "b"]]}),
    ("env", {"env": {"": "x"}}),
    ("env", {"env": {"A=B": "x"}}),
    ("env", {"env": {"A\x00": "x"}}),
    ("env", {"env": {"A": "\x00"}}),
    ("env", {"env": {"A": 1}}),
    ("env", {"env": {"A": None}}),
    ("env", {"env": {"A": "x" * 131_072}}),
    ("env", {"env": {"A": "x" * (128 * 1024 - PAGE - 2)}}),
    ("env", {"env": {f"A{number}": "x" * 100 for number in range(1_300)}}),
    ("cwd", {"cwd": ""}),
    ("cwd", {"cwd": "relative"}),
    ("cwd", {"cwd": "./"}),
    ("cwd", {"cwd": "/a/../b"}),
    ("cwd", {"cwd": "/.."}),
    ("cwd", {"cwd": "/a\x00"}),
    ("cwd", {"cwd": "/" + "a" * 4095}),
    ("cwd", {"cwd": "/" + "é" * 2100}),
    ("rootfs", {"rootfs": "tmp"}),
    ("rootfs", {"rootfs": "/srv/../etc"}),
    ("rootfs", {"rootfs": 1}),
    ("rootfs_readonly", {"rootfs_readonly": 1}),
    ("rootfs_readonly", {"rootfs_readonly": "true"}),
    ("rootfs_readonly", {"rootfs_readonly": None}),
    ("runtime_class", {"runtime_class": "runC"}),
    ("runtime_class", {"runtime_class": "kata"}),
    *(
        (field, {field: name})
        for field in ("namespace", "template")
        for name in (*(("a_b", "a.b") if field == "namespace" else (".a", "a.", "_a")),
            "", "A", "-a", "a-", "a" * 64, "..", "a/b", "default\n", "\ndefault",
            "default ", "a\x00", "%2e%2e", "ａ", "ﬁ", "é", "а", 1, ["a"], True,
        )
    ),
    *(
        ("request_id", {"request_id": name})
        for name in ("", "-a", ".", "a b", "a" * 129, "a\n", "é", "a/b", 7, True)
    ),
    *(
        (f"{side}.{name}", {side: {name: value}})
        for side in ("requests", "limits")
        for name in ("cpu_milli", "memory_bytes", "ephemeral_storage_bytes", "gpu_memory_bytes")
        for value in WRONG_AMOUNTS
    ),
    *(
        ("user", {"user": user})
        for user in ("", ":", "a:", ":a", "-1", "65536", "0:65536", "9" * 32, "a b", "a:b:c",
                     "root\n", "a" * 33, "\x1b", "é", "1.5 ", 0, True, ["root"])
    ),
    *(
        ("labels", {"labels": {key: "x"}})
        for key in ("", "-a", "a-", "a" * 64, "a b", "a\n", "é", "a=b", "a\x00", "\x1b[31m")
    ),
    *(
        ("labels.a", {"labels": {"a": value}})
        for value in ("x" * 257, "é" * 129, "a\nb", "\x00", "\x1b[31m", "\u202e", "\t", 1, None)
    ),
    ("labels", {"labels": {f"k{number}": "" for number in range(65)}}),
    ("labels", {"labels": ["a=b"]}),
    ("timeout_ms", {"timeout_ms": 0}),
    ("timeout_ms", {"timeout_ms": "1s"}),
    ("requests.sandbox_slots", {"requests": {"sandbox_slots": 1}}),
    ("requests.cpu", {"requests": {"cpu": 1}}),
    ("requests", {"requests": None}),
    ("requests", {"requests": []}),
    *(
        ("ttl_ms", {"ttl_ms": value})
        for value in (0, -1, 2**53 - 1, 2**53, 1.0, "1", True, 10**400)
    ),
    ("Command", {"Command": ["true"]}),
    ("token", {"token": "x"}),
    ("__class__", {"__class__": "x"}),
]  # fmt: skip


@pytest.mark.parametrize("fields", GOOD, ids=lambda fields: str(fields)[:40])
def test_what_the_contract_allows_is_taken(fields: dict[str, Any]) -> None:
    assert run(**fields).command


@pytest.mark.parametrize(("field", "fields"), BAD, ids=lambda part: str(part)[:50])
def test_what_it_forbids_is_refused_by_name(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        run(**fields)
    assert caught.value.message.startswith(f"{field}"), caught.value.message
    assert len(caught.value.message) < 1000
    for theirs in ("should", "Input", "validation", "permitted", "Value error", "{", "not valid"):
        assert theirs not in caught.value.message.partition(": ")[2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"namespace": "Bad_"},
            (
                "namespace: it must be 1 to 63 of a-z, 0-9 and '-', with no '-' at either end, "
                "for example team-a"
            ),
        ),
        ({"ttl_ms": 0}, "ttl_ms: it must be at least 1 ms"),
        (
            {"requests": {"memory_bytes": 2**53}},
            "requests.memory_bytes: it must be at most 9007199254740991 bytes",
        ),
        ({"runtime_class": "kata"}, "runtime_class: it must be 'runsc' or 'runc'"),
        ({"requests": {"cpu": 1}}, "requests.cpu: unknown field 'cpu'"),
        ({"cwd": "x"}, "cwd: it must be an absolute path without '..'"),
        ({"user": "65536"}, "user: 65536 is too large: a sandbox has the ids 0 to 65535"),
        (
            {"labels": {"a b": "x"}},
            (
                "labels.a b: a label's key must be 1 to 63 of A-Z, a-z, 0-9, '.', '_', '/' and "
                "'-', with a letter or digit at either end, for example team or example.com/job"
            ),
        ),
    ],
)
def test_the_rule_is_told_in_our_words(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        run(**fields)
    assert caught.value.message == message


def test_values_are_not_repeated_in_the_refusal() -> None:
    canary = "canary-7f3a"
    for fields in (
        {"env": {"A": f"{canary}\x00"}},
        {"command": ["x", f"{canary}\x00"]},
        {"command": ["x", [canary]]},
        {"env": {"A": {"b": canary}}},
    ):
        with pytest.raises(InvalidArgument) as caught:
            run(**fields)
        assert canary not in caught.value.message


def test_a_long_unknown_field_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidArgument) as caught:
        run(**{"k" * 500_000: 1})
    assert len(caught.value.message) < 1000


def test_several_errors_are_counted() -> None:
    with pytest.raises(InvalidArgument, match=r"\(and 2 more\)$"):
        run(cwd="x", ttl_ms=0, namespace="A")


def test_a_command_is_needed() -> None:
    with pytest.raises(InvalidArgument, match=r"^command: it must not be left out$"):
        schema.parse(schema.RunRequest, {})


@pytest.mark.parametrize("value", ["", "x" * 128, "é😀", "a b"])
def test_names_of_leases_are_free_text(value: str) -> None:
    assert schema.parse(schema.ReserveRequest, {"name": value}).name == value


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("name", {"name": "x" * 129}),
        ("name", {"name": None}),
        ("name", {"name": "\x1b[31m"}),
        ("owner_process.pid", {"owner_process": {"pid": 0}}),
        ("owner_process.pid", {"owner_process": {"pid": -1}}),
        ("owner_process.pid", {"owner_process": {"pid": 2**22 + 1}}),
        ("owner_process.pid", {"owner_process": {"pid": True}}),
        ("owner_process.pid", {"owner_process": {}}),
        ("owner_process.boot_id", {"owner_process": {"pid": 1, "boot_id": "x"}}),
        ("max_lifetime_ms", {"max_lifetime_ms": 0}),
        ("max_lifetime_ms", {"max_lifetime_ms": 2**53 - 1}),
        ("command", {"command": ["true"]}),
    ],
)
def test_a_lease_has_limits_too(field: str, body: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        schema.parse(schema.ReserveRequest, body)
    assert caught.value.message.startswith(field)


@pytest.mark.parametrize("token", [None, 1, "x" * 129])
def test_a_token_is_a_short_text(token: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^token: "):
        schema.parse(schema.HeartbeatRequest, {"token": token})


def test_the_longest_deadline_can_still_be_shown() -> None:
    longest = schema.parse(schema.HeartbeatRequest, {"token": "", "ttl_ms": schema.LONGEST_MS})
    assert longest.ttl_ms
    year_2100_ms = 4_102_444_800_000
    assert format_rfc3339(year_2100_ms + longest.ttl_ms + longest.ttl_ms)


def test_omitted_is_not_zero() -> None:
    spec = run(requests={"cpu_milli": 0}, limits={"memory_bytes": 5}).spec()
    assert spec.requests.cpu_milli == 0
    assert spec.requests.memory_bytes is None
    assert spec.limits.memory_bytes == 5
    assert spec.limits.sandbox_slots is None


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
names = st.sampled_from([*schema.RunRequest.model_fields, *schema.ReserveRequest.model_fields])


@given(
    st.sampled_from([schema.RunRequest, schema.ReserveRequest, schema.HeartbeatRequest]),
    st.dictionaries(names | st.text(max_size=8), junk, max_size=4),
)
def test_any_body_is_taken_or_refused(model: type[schema.Body], body: dict[str, Any]) -> None:
    try:
        found = schema.parse(model, body)
    except InvalidArgument as error:
        msgspec.json.encode(error.message)  # can be told
        return
    assert schema.parse(model, found.model_dump(mode="json")) == found
