"""Spec files: what is written is what is meant, and what is wrong is told by file, line, field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.cli.actions.request import RunOptions, run_body
from axern.cli.actions.spec_file import read_spec
from axern.cli.actions.strict_yaml import parse
from ledger.errors import InvalidArgument

EXAMPLE = Path(__file__).parents[3] / "docs/examples/run.yaml"
HEAD = "api_version: axern/v1\nkind: Run\n"
MEBIBYTE = 1024**2


def read(folder: Path, text: str, name: str = "spec.yaml") -> dict[str, Any]:
    (folder / name).write_bytes(text.encode())
    return read_spec(str(folder / name))


def test_the_example_says_what_it_says() -> None:
    assert read_spec(str(EXAMPLE)) == {
        "namespace": "default",
        "labels": {"team": "search", "example.com/job": "nightly"},
        "command": ["sh", "-c", 'echo "$GREETING from $(id -u)"; pwd'],
        "env": {"GREETING": "hello", "ANSWER": "42"},
        "cwd": "/tmp",
        "user": "nobody",
        "template": "busybox",
        "rootfs_readonly": False,
        "runtime_class": "runc",
        "oom_kill_one": False,
        "require": [],
        "network": "none",
        "publish": [],
        "requests": {"cpu_milli": 100, "memory_bytes": 32 * MEBIBYTE},
        "timeout_ms": 300_000,
        "ttl_ms": 3_600_000,
    }


@pytest.mark.parametrize(
    "word",
    ["no", "yes", "on", "off", "1e3", "010", "0x10", "1_000", "12:30:45", "2026-01-31", ".inf",
     "NaN", "=", "true", "1.0", "+1", "é😀", "a: b".replace(": ", ":"), "-1"],
)  # fmt: skip
def test_no_scalar_becomes_something_else(tmp_path: Path, word: str) -> None:
    text = f"{HEAD}spec:\n  command: [echo, {word}, '{word}']\n  env:\n    A: {word}\n"
    body = read(tmp_path, text)
    assert (body["command"], body["env"]) == (["echo", word, word], {"A": word})


def test_json_is_read_the_same(tmp_path: Path) -> None:
    command = ["a", 'é😀\n\t"\\/', "\\ud83d\\ude00", "\\😀", ""]
    spec = {"command": command, "rootfs_readonly": True, "env": {"A": "1"}}
    whole = {"api_version": "axern/v1", "kind": "Run", "spec": spec}
    for indent in (None, 2, "\t"):
        for ascii_only in (True, False):
            text = json.dumps(whole, indent=indent, ensure_ascii=ascii_only)
            assert read(tmp_path, text) == spec


BAD = [
    ("", "it is empty"),
    ("# nothing\n", "it is empty"),
    ("- a\n", "line 1: the whole: it must be a mapping, not a list"),
    ("text\n", "line 1: the whole: it must be a mapping, not a text"),
    ("kind: Run\n", "line 1: api_version: it must be axern/v1"),
    ("api_version: axern/v2\nkind: Run\n", "line 1: api_version: it must be axern/v1"),
    ("api_version: axern/v1\n", "line 1: kind: it must be Run"),
    ("api_version: axern/v1\nkind: Service\n", "line 2: kind: it must be Run"),
    (HEAD + "spec:\n  comand: [a]\n", "line 4: spec.comand: unknown field"),
    (HEAD + "command: [a]\n", "line 3: command: unknown field"),
    (HEAD + "spec:\n  resources:\n    requests:\n      gpu: 1\n",
     "line 6: spec.resources.requests.gpu: unknown field"),
    (HEAD + "spec:\n  cwd: /\n  cwd: /tmp\n", "line 5: the field 'cwd' stands twice"),
    (HEAD + "kind: Run\n", "line 3: the field 'kind' stands twice"),
    (HEAD + "spec:\n  env: {A: 1, A: 2}\n", "line 4: the field 'A' stands twice"),
    (HEAD + "spec:\n  command: echo\n", "line 4: spec.command: it must be a list, not a text"),
    (HEAD + "spec:\n  command: [a, [b]]\n", "line 4: spec.command[1]: it must be a text"),
    (HEAD + "spec:\n  command: []\n", "line 4: spec.command: it must not be empty"),
    (HEAD + "spec:\n  command:\n  - a\n  - b\n  - 'x\0y'\n", "it is not YAML"),
    (HEAD + 'spec:\n  command:\n  - a\n  - "x\\0y"\n', "line 6: spec.command[1]: a NUL byte"),
    (HEAD + "spec:\n  env: [A]\n", "line 4: spec.env: it must be a mapping, not a list"),
    (HEAD + "spec:\n  env:\n    A=B: 1\n", "line 5: spec.env: 'A=B' is not a variable name"),
    (HEAD + "spec:\n  env:\n    A: {b: c}\n", "line 5: spec.env.A: it must be a text"),
    (HEAD + "spec:\n  env:\n    A:\n", "line 5: A: it has no value"),
    (HEAD + "spec:\n  user: null\n", "line 4: user: it has no value"),
    (HEAD + "spec:\n", "line 3: spec: it has no value"),
    (HEAD + "spec:\n  command: [a, ~]\n", "line 4: an item of the list: it has no value"),
    (HEAD + "spec:\n  rootfs_readonly: yes\n", "line 4: spec.rootfs_readonly: it must be true"),
    (HEAD + "spec:\n  rootfs_readonly: 'true'\n", "line 4: spec.rootfs_readonly: it must be true"),
    (HEAD + "spec:\n  timeout: 5\n", "line 4: spec.timeout: '5' is not valid: each number needs"),
    (HEAD + "spec:\n  timeout: [5m]\n", "line 4: spec.timeout: it must be a text, not a list"),
    (HEAD + "spec:\n  ttl: 0s\n", "line 4: spec.ttl: it must be at least 1 ms"),
    (HEAD + "spec:\n  resources:\n    limits:\n      memory: 1G\n",
     "line 6: spec.resources.limits.memory: '1G' is not valid"),
    (HEAD + "spec:\n  resources:\n    requests:\n      cpu: 1e3\n",
     "line 6: spec.resources.requests.cpu: '1e3' is not valid"),
    (HEAD + "spec:\n  runtime_class: kata\n", "line 4: spec.runtime_class: it must be 'runsc'"),
    (HEAD + "spec:\n  rootfs: here\n", "line 4: spec.rootfs: it must be an absolute path"),
    (HEAD + "metadata:\n  namespace: A\n", "line 4: metadata.namespace: it must be 1 to 63"),
    (HEAD + "metadata:\n  labels:\n    ok: 1\n    a b: c\n", "line 6: metadata.labels.a b: a"),
    (HEAD + "metadata:\n  labels: {&x a: b}\n", "line 4: anchors (&) and aliases (*)"),
    (HEAD + "spec: &a {}\nx: *a\n", "line 3: anchors (&) and aliases (*)"),
    (HEAD + "spec: {<<: *a}\n", "line 3: anchors (&) and aliases (*)"),
    (HEAD + "spec:\n  cwd: !!python/object:os.system x\n", "line 4: the tag "),
    (HEAD + "spec:\n  cwd: !!str /\n", "line 4: the tag 'tag:yaml.org,2002:str' can't be used"),
    ("%YAML 1.2\n---\n" + HEAD, "directives (%) can't be used"),
    (HEAD + "---\n" + HEAD, "a second document begins"),
    (HEAD + "...\n---\n", "a second document begins"),
    (HEAD + "spec: " + "[" * 9, "line 3: it nests deeper than 8"),
    (HEAD + "spec: " + "[" * 500_000, "line 3: "),
    (HEAD + "spec: {a: ]\n", "line 3: it is not YAML"),
    (HEAD + "  bad: indent\n", "it is not YAML"),
    (HEAD + "? [a]\n: b\n", "line 3: a list can't be a field's name"),
    (HEAD + 'spec: {cwd: "\\ud800"}\n', "line 3: "),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD, ids=lambda part: repr(part)[:60])
def test_what_is_wrong_is_told_by_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read(tmp_path, text)
    assert caught.value.message.startswith(str(tmp_path / "spec.yaml"))
    assert message in caught.value.message
    assert len(caught.value.message) < 1000


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"-f: .*No such file"):
        read_spec(str(tmp_path / "none"))
    (tmp_path / "large").write_bytes(b"#" * (MEBIBYTE + 1))
    with pytest.raises(InvalidArgument, match="larger than 1MiB"):
        read_spec(str(tmp_path / "large"))
    (tmp_path / "latin").write_bytes(HEAD.encode() + b"# \xff\n")
    with pytest.raises(InvalidArgument, match="line 3: it is not UTF-8"):
        read_spec(str(tmp_path / "latin"))


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    options = RunOptions(
        command=(),
        resources={"request_cpu": "200m"},
        file=str(EXAMPLE),
        env=("ANSWER=43", "MORE=1"),
        labels=("team=web",),
        rootfs=str(tmp_path),
        timeout="1s",
        namespace="team-a",
    )
    body = run_body(options)
    assert body["env"] == {"GREETING": "hello", "ANSWER": "43", "MORE": "1"}
    assert body["labels"] == {"team": "web", "example.com/job": "nightly"}
    assert body["requests"] == {"cpu_milli": 200, "memory_bytes": 32 * MEBIBYTE}
    assert (body["template"], body["rootfs"]) == (None, str(tmp_path))
    assert (body["timeout_ms"], body["ttl_ms"], body["namespace"]) == (1_000, 3_600_000, "team-a")
    assert body["command"][0] == "sh"
    assert len(body["request_id"]) == 32
    words = RunOptions(command=("ls",), resources={}, file=str(EXAMPLE))
    assert run_body(words)["command"] == ["ls"]


def test_without_a_command_nothing_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(HEAD)
    for file in (None, str(tmp_path / "spec.yaml")):
        with pytest.raises(InvalidArgument, match="COMMAND is missing"):
            run_body(RunOptions(command=(), resources={}, file=file))


@given(text=st.text(st.sampled_from("ab:-[]{},&*!|>'\"#%?~ \n\t\x00é0."), max_size=60))
def test_whatever_it_is_it_is_read_or_refused(text: str) -> None:
    try:
        node = parse(text, "spec")
    except InvalidArgument as error:
        assert error.message.startswith("spec")  # noqa: PT017 - any other error fails the test
    else:
        assert node.line >= 1
