"""What people and programs are told by `axern node doctor`."""

import json
from typing import Any

import pytest

from tests.cli.command import Axern
from tests.cli.fake import FakeDaemon

FINE = {
    "check": "runtime/runc",
    "status": "ok",
    "code": "available",
    "message": "runc and its monitor: /usr/bin/runc 1.3.6",
    "remedy": None,
}
LACKING = FINE | {"check": "gpu", "status": "absent", "code": "probe-failed"}
DOUBTFUL = FINE | {"check": "holes/runc", "status": "warning", "remedy": "upgrade runc"}
WRONG = FINE | {"check": "limit/pids", "status": "error", "remedy": "boot another way"}


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([], 0),
        ([FINE], 0),
        ([FINE, LACKING], 0),
        ([FINE, DOUBTFUL, LACKING], 1),
        ([FINE, WRONG, DOUBTFUL], 3),
        ([FINE | {"status": "of a later version"}], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_check(
    axern: Axern, fake: FakeDaemon, checks: list[dict[str, Any]], code: int
) -> None:
    fake.checks = checks
    done = axern.run("node", "doctor", "-o", "json")
    assert done.returncode == code
    answer = json.loads(done.stdout)
    assert answer == {"checks": checks, "generation": 41, "source": "daemon"}


def test_a_line_a_check_and_each_remedy_once(axern: Axern, fake: FakeDaemon) -> None:
    needing = LACKING | {"code": "dependency-unavailable", "remedy": "see limit/pids"}
    fake.checks = [FINE, DOUBTFUL, DOUBTFUL | {"check": "holes/two"}, needing]
    lines = axern.run("node", "doctor").stdout.decode().splitlines()
    assert lines[0].split() == ["CHECK", "STATUS", "CODE", "MESSAGE"]
    assert lines[1].split()[:3] == ["runtime/runc", "ok", "available"]
    assert lines[5:] == ["", "remedy: upgrade runc", "for:    holes/runc, holes/two"]
