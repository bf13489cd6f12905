"""What every test shares: Hypothesis profiles, and which tests run where."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

LONG = os.environ.get("AXERN_LONG") == "1"

# `ci` draws the same examples on every run. `long` draws new ones and prints what replays one.
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=5_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("long" if LONG else "ci")


def pytest_report_header() -> str:
    if LONG:
        return "axern: long form; Hypothesis draws new examples, a failure prints its replay line"
    return "axern: CI form; Hypothesis is derandomized (seed fixed by each test's own source)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long tests out of the CI form and keep host tests on one xdist worker."""
    for item in items:
        if item.get_closest_marker("host"):
            item.add_marker(pytest.mark.xdist_group("host"))
    if LONG:
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture
def short_root() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a unix socket (108 bytes), then remove it."""
    with tempfile.TemporaryDirectory(prefix="axern-") as path:
        yield Path(path)
