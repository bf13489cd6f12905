"""What a command does not load, so that it starts fast; the figures are in bench/."""

import subprocess
import sys
from pathlib import Path

import pytest

from ledger.store import Ledger
from ledger.testing import ManualClock
from tests.cli.command import Axern
from tests.cli.fake import FakeDaemon

COSTLY = frozenset(
    "asyncio concurrent.futures email filelock http.client httptools logging pydantic psutil rich "
    "ssl typer uvicorn".split()
)
NOT_WITH_A_DAEMON = frozenset(
    "axern.api.views axern.cli.full dataclasses datetime fractions inspect ledger.reader "
    "ledger.resources ledger.state msgspec socket tomllib typer typing".split()
)
"""`typing` too: what every command loads imports it under `if TYPE_CHECKING` only."""


def loaded(axern: Axern, *words: str) -> set[str]:
    """Return the modules that `axern` with *words* has imported."""
    argv = [sys.executable, "-X", "importtime", *axern.argv(*words)[1:]]
    done = subprocess.run(argv, capture_output=True, check=True)
    found = {
        line.rpartition(b"|")[2].strip().decode()
        for line in done.stderr.splitlines()
        if line.startswith(b"import time:")
    }
    assert "axern.cli.main" in found
    return found


@pytest.mark.parametrize(
    "words",
    [
        ["version"],
        ["reservations"],
        ["reservations", "list", "--namespace", "a", "-ojson"],
        ["run", "--env", "A=1", "--request-memory", "16MiB", "--", "true"],
        ["run", "--detach", "true"],
        ["run", "list"],
        ["node", "capacity"],
        ["reserve", "--request-cpu", "1"],
        ["reserve", "--ttl", "5m", "--", "true"],
        ["__complete", "--", "run", "get", ""],
    ],
)
def test_with_a_daemon(axern: Axern, fake: FakeDaemon, words: list[str]) -> None:
    row = {"id": "4f" * 16, "namespace": "default", "requests": {}}
    ends = dict.fromkeys(("expires_at", "latest_expiry_at"))
    fake.lease = {"reservation": row | ends, "token": "secret", "expires_in_ms": 600_000}
    assert loaded(axern, *words) & (COSTLY | NOT_WITH_A_DAEMON) == set()


def test_without_one(short_root: Path) -> None:
    config = short_root / "axern.toml"
    config.write_text(f'state_dir = "{short_root}/state"\nrun_dir = "{short_root}/run"\n')
    (short_root / "state").mkdir()
    Ledger.open(short_root / "state" / "ledger", ManualClock()()).close()
    assert loaded(Axern(("--config", str(config))), "reservations") & COSTLY == set()


def test_control_what_is_loaded_is_seen(axern: Axern) -> None:
    assert {"typer", "typing", "axern.cli.full"} <= loaded(axern, "--help")
