"""The fake daemon and the command line that talks to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Axern
from tests.cli.fake import FakeDaemon


@pytest.fixture
def fake(short_root: Path) -> Iterator[FakeDaemon]:
    with FakeDaemon(str(short_root / "axernd.sock")) as daemon:
        yield daemon


@pytest.fixture
def axern(fake: FakeDaemon) -> Axern:
    return Axern(("--socket", fake.path))
