"""Every type is checked strictly, those of tests and benchmarks too."""

from tests.tidy.sources import python_files, run_tool


def test_mypy_strict() -> None:
    folders = [name for name in ("axern", "ledger", "tests", "bench") if python_files(name)]
    run_tool("mypy", *folders)
