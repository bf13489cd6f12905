"""The table of codes is the contract's, and every error stands in it."""

import ast
from collections.abc import Iterator

import pytest

from ledger import errors
from ledger.errors import CODES, AxernError, CodeRow, InvariantViolation, RequestError
from tests.tidy.sources import ROOT

# The contract's table, row by row: code, HTTP status, exit code, retryable, waitable.
NODE_FULL = CodeRow(507, 3, retryable=True, waitable=True)
CONTRACT = {
    "invalid_argument": CodeRow(400, 2, retryable=False, waitable=False),
    "request_exceeds_node": CodeRow(422, 3, retryable=False, waitable=False),
    "node_cpu_capacity_exhausted": NODE_FULL,
    "node_memory_capacity_exhausted": NODE_FULL,
    "node_cpu_and_memory_capacity_exhausted": NODE_FULL,
    "node_ephemeral_storage_capacity_exhausted": NODE_FULL,
    "node_gpu_memory_capacity_exhausted": NODE_FULL,
    "runtime_slot_capacity_exhausted": NODE_FULL,
    "node_reservation_capacity_exhausted": NODE_FULL,
    "namespace_quota_exceeded": CodeRow(403, 4, retryable=False, waitable=True),
    "namespace_claim_exceeded": CodeRow(403, 4, retryable=False, waitable=True),
    "node_selection_error": CodeRow(422, 3, retryable=False, waitable=False),
    "not_found": CodeRow(404, 5, retryable=False, waitable=False),
    "state_conflict": CodeRow(409, 5, retryable=False, waitable=False),
    "version_mismatch": CodeRow(409, 5, retryable=False, waitable=False),
    "request_id_conflict": CodeRow(409, 5, retryable=False, waitable=False),
    "permission_denied": CodeRow(403, 5, retryable=False, waitable=False),
    "runtime_start_error": CodeRow(None, 125, retryable=False, waitable=False),
    "storage_reserve_error": CodeRow(None, 125, retryable=False, waitable=False),
    "daemon_unreachable": CodeRow(None, 6, retryable=True, waitable=False),
    "ledger_corrupt": CodeRow(503, 7, retryable=False, waitable=False),
    "ledger_too_new": CodeRow(503, 7, retryable=False, waitable=False),
    "busy": CodeRow(503, 1, retryable=True, waitable=False),
}


@pytest.mark.parametrize("code", CONTRACT)
def test_a_code_is_what_the_contract_says(code: str) -> None:
    assert CODES[code] == CONTRACT[code]


def test_few_codes_go_beyond_the_contract() -> None:
    ours = {"internal_error", "lease_lost", "output_incomplete", "run_stopped"}
    ours |= {"published_port_taken"}
    assert set(CODES) - set(CONTRACT) == ours


def test_every_error_has_a_public_code() -> None:
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, AxernError)
    ]
    assert len(classes) > 10
    assert {each.code for each in classes} <= set(CODES)


def trees() -> Iterator[ast.AST]:
    for package in ("axern", "ledger"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def test_each_code_has_one_row() -> None:
    """A dict keeps the last of two equal keys in silence, so the source itself is read."""
    tables = [
        node.value
        for node in trees()
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "CODES"
    ]
    (table,) = tables
    assert isinstance(table, ast.Dict)
    keys = [ast.literal_eval(key) for key in table.keys if key is not None]
    assert sorted(keys) == sorted(CODES)


def test_every_code_that_a_class_names_is_in_the_table() -> None:
    named = {
        ast.literal_eval(node.value)
        for owner in trees()
        if isinstance(owner, ast.ClassDef) and owner.name[0].isupper()
        for node in owner.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "code"
        and isinstance(node.value, ast.Constant)
    }
    assert len(named) > 5
    assert named <= set(CODES)


def test_what_the_caller_must_change_is_never_retryable() -> None:
    for each in RequestError.__subclasses__():
        assert not CODES[each.code].retryable


def test_an_error_carries_message_and_hint() -> None:
    error = errors.NotFound("no such thing", hint="look elsewhere")
    assert (str(error), error.message, error.hint) == (error.message,) * 2 + ("look elsewhere",)
    assert errors.NotFound("no such thing").hint is None


def test_a_contradiction_is_no_axern_error() -> None:
    assert not issubclass(InvariantViolation, AxernError)
