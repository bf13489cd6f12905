"""Ruff's rules and its formatting hold everywhere."""

from tests.tidy.sources import run_tool


def test_ruff_check() -> None:
    run_tool("ruff", "check", "--quiet", ".")


def test_ruff_format() -> None:
    run_tool("ruff", "format", "--check", "--quiet", ".")
