"""Imports point down only, and each third party has one place."""

import tomllib
from pathlib import Path

import pytest

from tests.tidy.floors import HOMES, check
from tests.tidy.sources import ROOT, run_tool


def test_no_import_breaks_a_floor() -> None:
    assert check(ROOT) == []


def test_no_import_chain_breaks_a_floor() -> None:
    run_tool("lint-imports", "--no-cache")


def test_every_dependency_has_a_home() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    required = [*project["dependencies"], *optional["gpu"]]
    names = {line.partition(">=")[0].strip() for line in required}
    renamed = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml"}  # imported by another name
    assert {renamed.get(name, name) for name in names} == set(HOMES)


PLANTED = [
    ("ledger/units.py", "import axern.errors", "the ledger stands alone"),
    ("ledger/units.py", "import os", "no clock"),
    ("ledger/units.py", "from os import path", "no clock"),
    ("ledger/units.py", "from pathlib import Path", "no clock"),
    ("ledger/units.py", "def f():\n    import time", "no clock"),
    ("ledger/units.py", "import numpy", "has no home"),
    ("ledger/units.py", "import msgspec", "whose place is ledger.codec"),
    ("ledger/units.py", "from . import store", "from the I/O floor"),
    ("ledger/units.py", "from ledger.store import Ledger", "from the I/O floor"),
    ("ledger/units.py", "import ledger.journal", "from the I/O floor"),
    ("ledger/units.py", "open('x')", "calls open()"),
    ("ledger/units.py", "import datetime\ndatetime.datetime.now()", "reads a clock"),
    ("ledger/anything_new.py", "import socket", "no clock"),
    ("ledger/__init__.py", "from ledger.store import Ledger", "from the I/O floor"),
    ("ledger/invariants.py", "from ledger import state", "finds nothing"),
    ("ledger/invariants.py", "from .admission import evaluate", "finds nothing"),
    ("ledger/store.py", "import psutil", "whose place is axern.host.inventory"),
    ("ledger/journal.py", "from filelock import FileLock", "whose place is ledger.lock"),
    ("axern/cli/run.py", "from axern.daemon import service", "siblings"),
    ("axern/cli/run.py", "from ..daemon.service import run", "siblings"),
    ("axern/cli/run.py", "import axern.runtime.runc", "offline release"),
    ("axern/cli/run.py", "from axern import runtime", "offline release"),
    ("axern/cli/run.py", "import pydantic", "whose place is axern.config"),
    ("axern/daemon/main.py", "import axern.cli.main", "siblings"),
    ("axern/daemon/main.py", "import typer", "whose place is axern.cli"),
    ("axern/daemon/main.py", "from importlib import import_module\nimport_module('rich')", "rich"),
    ("axern/api/client.py", "from axern.daemon.service import Service", "neither end"),
    ("axern/api/client.py", "import httptools", "whose place is axern.api.protocol"),
    ("axern/api/server.py", "import axern.cli", "neither end"),
    ("axern/runtime/runc.py", "import axern.api.schema", "imports point down"),
    ("axern/host/cgroup.py", "from axern.runtime import command", "decides nothing"),
    ("axern/host/cgroup.py", "import psutil", "whose place is axern.host.inventory"),
    ("axern/host/cgroup.py", "import pyroute2", "whose place is axern.host.network_survey"),
    ("axern/config.py", "import axern.host.linux", "imports point down"),
]


def plant(root: Path, path: str, source: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(source + "\n", encoding="utf-8")


@pytest.mark.parametrize(("path", "source", "message"), PLANTED)
def test_control_a_planted_violation_is_found(
    tmp_path: Path, path: str, source: str, message: str
) -> None:
    plant(tmp_path, path, source)
    found = check(tmp_path)
    assert any(message in line and line.startswith(f"{path}:") for line in found), found


CLEAN = [
    ("ledger/units.py", "import re\nfrom fractions import Fraction\nfrom ledger.errors import E"),
    ("ledger/lock.py", "import os\nimport time\nimport filelock\nfrom . import journal"),
    (
        "ledger/__init__.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ledger.store import Ledger",
    ),
    ("axern/cli/run.py", "import typer\nfrom axern.runtime.offline import desk"),
    ("axern/daemon/main.py", "import msgspec\nfrom axern.runtime import runc\nimport axern.host"),
    ("axern/api/protocol.py", "import httptools\nimport asyncio"),
    ("axern/host/inventory.py", "import psutil\nfrom ledger.resources import Capacity"),
]


@pytest.mark.parametrize(("path", "source"), CLEAN)
def test_control_an_honest_module_is_clean(tmp_path: Path, path: str, source: str) -> None:
    plant(tmp_path, path, source)
    assert check(tmp_path) == []
