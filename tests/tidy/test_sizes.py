"""A file fits into one reading, a function onto one screen."""

import ast
from pathlib import Path

from tests.tidy.sources import PACKAGES, python_files, shown

FILE_LINES = 400
TEST_FILE_LINES = 500
FUNCTION_LINES = 60


def too_long(paths: list[Path], most: int) -> list[str]:
    """Return a line for each of *paths* that has more than *most* lines."""
    counts = ((path, len(path.read_text(encoding="utf-8").splitlines())) for path in paths)
    return [
        f"{shown(path)}: {lines} lines, at most {most}: split it by job"
        for path, lines in counts
        if lines > most
    ]


def long_functions(paths: list[Path], most: int) -> list[str]:
    """Return a line for each function with more than *most* lines, docstring included."""
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > most:
                place = f"{shown(path)}:{node.lineno}"
                found.append(f"{place}: {node.name} has {lines} lines, at most {most}")
    return found


def test_files_are_short() -> None:
    assert too_long(python_files(*PACKAGES), FILE_LINES) == []


def test_test_files_are_short() -> None:
    assert too_long(python_files("tests", "bench"), TEST_FILE_LINES) == []


def test_functions_are_short() -> None:
    assert long_functions(python_files(*PACKAGES), FUNCTION_LINES) == []


def test_control_long_ones_are_found(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("def f() -> None:\n" + "    pass\n" * 60, encoding="utf-8")
    assert len(long_functions([path], 60)) == 1
    assert len(too_long([path], 60)) == 1
    assert long_functions([path], 61) == []
    assert too_long([path], 61) == []
