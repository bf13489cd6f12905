"""The table of codes is closed and complete: the source says no other code, and uses each."""

import ast
from collections.abc import Iterator

import pytest

from axern.cli.describe import EXIT_CODES
from ledger.errors import CODES
from ledger.refusal import NODE_CODES, SUMMARIES
from tests.tidy.sources import PACKAGES, ROOT, python_files, shown

RETRYABLE = {
    *NODE_CODES.values(),
    "node_reservation_capacity_exhausted",
    "published_port_taken",
    "daemon_unreachable",
    "busy",
}
WAITABLE = {*SUMMARIES}
PROMISED = {"version_mismatch"}
"""Codes of the contract that nothing raises yet; a code that is raised must leave this list."""
DIAGNOSTICS = {
    *("admission-blocked", "node-selection-error", "runtime-start-error", "process-exited"),
    *("liveness-probe-failed", "storage-reserve-error", "capability-enforcement-lost"),
    *("memory-limit-exceeded", "storage-limit-exceeded", "image-resolution-error"),
    "secret-projection-error",
}
TABLE = "ledger/errors.py"


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in python_files(*PACKAGES):
        yield shown(path), ast.parse(path.read_text(encoding="utf-8"))


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and value of each text in *tree* that is neither a docstring nor in the table."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.AnnAssign) and ast.unparse(child.target) == "CODES":
            continue
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.lineno, child.value
        yield from texts(child)


def named_codes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each text that stands where an error's code stands."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(body=body):
                pairs = [
                    (ast.unparse(item.targets[0]), item.value)
                    for item in body
                    if isinstance(item, ast.Assign)
                ]
            case ast.Assign(targets=[ast.Attribute(attr="code")], value=value):
                pairs = [("code", value)]
            case _:
                continue
        for name, value in pairs:
            if name == "code" and isinstance(value, ast.Constant):
                yield node.lineno, str(value.value)


def decided_elsewhere(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that say for themselves whether something is retryable or waitable."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="retryable" | "waitable", value=ast.Constant()):
                yield node.value.lineno
            case ast.Dict(keys=keys, values=values):
                yield from (
                    value.lineno
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant)
                    and key.value in ("retryable", "waitable")
                    and isinstance(value, ast.Constant)
                )


def in_table(tree: ast.Module, line: int) -> bool:
    return any(
        isinstance(node, ast.AnnAssign)
        and ast.unparse(node.target) == "CODES"
        and node.lineno <= line <= (node.end_lineno or 0)
        for node in tree.body
    )


def test_the_sets_are_closed() -> None:
    assert {code for code, row in CODES.items() if row.retryable} == RETRYABLE
    assert {code for code, row in CODES.items() if row.waitable} == WAITABLE


def test_nobody_else_says_whether_trying_or_waiting_helps() -> None:
    found = [
        f"{name}:{line}"
        for name, tree in trees()
        for line in decided_elsewhere(tree)
        if not (name == TABLE and in_table(tree, line))
    ]
    assert found == []


def test_every_code_that_is_named_has_a_row() -> None:
    found = [
        f"{name}:{line}: {code}"
        for name, tree in trees()
        for line, code in named_codes(tree)
        if code not in CODES
    ]
    assert found == []


def test_every_row_is_used() -> None:
    said = {text.replace("-", "_") for _, tree in trees() for _, text in texts(tree)}
    assert set(CODES) - said == PROMISED


def test_every_refusal_has_a_row_and_every_waitable_row_is_a_refusal() -> None:
    assert set(NODE_CODES.values()) <= set(SUMMARIES)
    assert set(SUMMARIES) == WAITABLE
    assert len(set(SUMMARIES.values())) == len(SUMMARIES)
    assert all(CODES[code].exit_code in (3, 4) for code in SUMMARIES)
    assert {CODES[code].http_status for code in SUMMARIES} == {403, 507}


def test_every_exit_code_is_described() -> None:
    described = {int(code) for code, _ in EXIT_CODES}
    assert {row.exit_code for row in CODES.values()} - described == {125}


@pytest.mark.parametrize("diagnostic", sorted(DIAGNOSTICS))
def test_diagnostics_are_words_and_no_codes(diagnostic: str) -> None:
    assert diagnostic not in CODES
    assert diagnostic == diagnostic.lower().replace("_", "-")


def test_control_what_breaks_the_rules_is_found() -> None:
    tree = ast.parse(
        'class Bad:\n    code = "made_up"\n'
        'answer = {"retryable": True}\nrow = CodeRow(1, 2, retryable=True, waitable=False)\n'
    )
    assert list(named_codes(tree)) == [(1, "made_up")]
    assert sorted(decided_elsewhere(tree)) == [3, 4, 4]
    assert ROOT.is_dir()
