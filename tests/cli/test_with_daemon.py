"""The contract of `axern run` with the real daemon and both runtimes."""

from collections.abc import Iterator

import pytest

from tests.cli.contract import RunContract
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

SMALL = ("--request-cpu", "10m", "--request-memory", "16MiB")


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonLab]:
    with daemon_lab() as found:
        found.start()
        yield found


class TestWithRunc(RunContract):
    options = ("--runtime-class", "runc", *SMALL)

    @pytest.fixture
    def socket_path(self, lab: DaemonLab) -> str:
        return lab.socket


class TestWithRunsc(RunContract):
    options = ("--runtime-class", "runsc", *SMALL)

    @pytest.fixture
    def socket_path(self, lab: DaemonLab) -> str:
        return lab.socket
