"""What every test shares: Hypothesis profiles, and which tests run where."""

import fcntl
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

LONG = os.environ.get("AXERN_LONG") == "1"
MACHINE = os.environ.get("AXERN_MACHINE", "")
"""In the test machine: the number of this boot, whose machine tests alone run; or `any`."""

# `ci` draws the same examples on every run. `long` draws new ones and prints what replays one.
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=5_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("few", settings.get_profile("ci"), max_examples=20)  # tests/mutation
settings.load_profile("long" if LONG else "ci")


# Who runs in the background of a shell ignores Ctrl-C, who runs under nohup the terminal's end, and
# so would the programs under test.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_report_header() -> str:
    if LONG:
        return "axern: long form; Hypothesis draws new examples, a failure prints its replay line"
    return "axern: CI form; Hypothesis is derandomized (seed fixed by each test's own source)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long tests out of the CI form, and the machine's tests out of all other places.

    What takes longest runs first, or at the end all workers but one would wait for it.
    """
    out = [item for item in items if not belongs(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if belongs(item)]
    items.sort(key=lambda item: item.get_closest_marker("first") is None)


def belongs(item: pytest.Item) -> bool:
    """Say whether a test is for this form and this place."""
    if item.get_closest_marker("long") and not LONG:
        return False
    machine = item.get_closest_marker("machine")
    if machine is None or not MACHINE:
        return machine is None and MACHINE in {"", "any"}
    return MACHINE in {"any", str(machine.kwargs.get("boot", 0))}


@pytest.hookimpl(
    wrapper=True, tryfirst=True
)  # before pytest-timeout, which must not count the wait
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a host test that wants to be alone be so, among those of all workers and sessions.

    Not xdist's groups: xdist 3.8 writes them into the node id, where pytest 9.2 ignores them.
    """
    marker = item.get_closest_marker("host")
    if marker is None:
        return (yield)
    with ExitStack() as stack:
        with locked("turn", fcntl.LOCK_EX):  # so that who wants to be alone is not passed by others
            alone = marker.kwargs.get("alone", False)
            stack.enter_context(locked("lock", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        return (yield)


@contextmanager
def locked(name: str, how: int) -> Iterator[None]:
    """Hold a lock of this user's host tests."""
    path = Path(tempfile.gettempdir()) / f"axern-host-tests-{os.getuid()}.{name}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, how)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # for descriptors that a fork copied, too
    finally:
        os.close(descriptor)


@pytest.fixture
def short_root() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a unix socket (108 bytes), then remove it."""
    with tempfile.TemporaryDirectory(prefix="axern-") as path:
        yield Path(path)
