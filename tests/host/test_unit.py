"""The shipped unit under a real systemd: sandboxes outlive every end of the daemon, limits hold.

It needs systemd as process 1, and a host where no Axern is at home: the machine of `tests/vm`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from axern.runtime.bundle import OOM_SCORE_ADJ
from ledger.errors import AxernError
from tests.conftest import LONG
from tests.host.conftest import wait_until
from tests.host.unit import (
    SAID,
    SAY,
    SLOW_S,
    UNITS,
    axern,
    cgroup_root,
    detach,
    drop_in,
    forget_failures,
    journal,
    main_pid,
    processes,
    request,
    run_of,
    running,
    shown,
    status,
    systemctl,
    undo_drop_in,
)
from tests.tidy.sources import ROOT

pytestmark = [pytest.mark.host, pytest.mark.machine, pytest.mark.timeout(3600)]
SYSTEM = Path("/usr/local/lib/systemd/system")
CONFIG = Path("/etc/axern/axern.toml")
ROUNDS = 30 if LONG else 3
SANDBOXES = 20 if LONG else 4
WATCHDOG_S = 60 if LONG else 10
"""With twenty sandboxes an emulated daemon may well be busy for more than ten seconds."""
LOSS_LIMIT_S = 10.0
NAMES = re.compile(r"CAP_[A-Z_]+")


@pytest.fixture(scope="module")
def unit() -> Iterator[list[str]]:
    """Install the shipped units where `make install` has not, and start them.

    Yields the ids of the sandboxes that stand from test to test.
    """
    if not os.path.isdir("/run/systemd/system"):
        if "systemd" in os.environ.get("AXERN_REQUIRE", "").split(","):
            pytest.fail("systemd is not process 1 here")
        pytest.skip("systemd is not process 1 here")
    if not Path("/usr/local/sbin/axernd").exists():
        _install()
    enforcing = "cgroup" in os.environ.get("AXERN_REQUIRE", "").split(",")
    CONFIG.write_text(
        f'cgroup_enforcement = "{"required" if enforcing else "disabled_dev"}"\n'
        'runtime_timeout = "300s"\nstop_grace = "1s"\n',
        encoding="utf-8",
    )
    systemctl("daemon-reload")
    forget_failures()
    systemctl("restart", *UNITS)
    standing: list[str] = []
    yield standing
    _end_all_but([])
    systemctl("stop", *UNITS)


def _install() -> None:
    for name in UNITS:
        target = SYSTEM / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / "systemd" / name).read_bytes())
    for kind in ("sysusers", "tmpfiles"):
        target = Path(f"/usr/local/lib/{kind}.d/axern.conf")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / f"systemd/{kind}.d/axern.conf").read_bytes())
    subprocess.run(("systemd-sysusers", "axern.conf"), check=True)
    subprocess.run(("systemd-tmpfiles", "--create", "axern.conf"), check=True)
    for place in ("/usr/local/sbin/axernd", "/usr/local/bin/axern"):
        os.symlink(f"{os.path.dirname(sys.executable)}/{os.path.basename(place)}", place)


def _end_all_but(standing: list[str]) -> None:
    """Cancel what else runs, and wait until nothing else is charged."""

    def others() -> list[str]:
        rows = request("GET", "/v2/reservations")["reservations"]
        return [str(row["id"]) for row in rows if row["id"] not in standing]

    for run_id in others():
        request("DELETE", f"/v2/runs/{run_id}?grace_ms=0")
    wait_until(lambda: not others(), SLOW_S)


@pytest.fixture
def service(unit: list[str]) -> Iterator[None]:
    """Give a service that runs; afterwards it still does, with the standing sandboxes alone."""
    yield
    undo_drop_in()
    if shown("ActiveState") != "active":
        forget_failures()
        systemctl("start", *UNITS)
    _end_all_but(unit)


@pytest.fixture
def sandboxes(unit: list[str], service: None) -> dict[str, set[int]]:
    """Return the processes of the standing sandboxes of both runtimes, started by the first test.

    No test may end one, so that each shows that too.
    """
    if not unit:
        unit += [detach(("runc", "runsc")[number % 2], SAY) for number in range(SANDBOXES)]
        for run_id in unit:
            running(run_id)
            wait_until(lambda said=run_id: _output(said) == SAID, SLOW_S)  # type: ignore[misc]
    found = processes()
    assert set(found) == set(unit)
    assert all(found.values())
    return found


def test_it_is_ready_and_lives_in_what_was_delegated(service: None) -> None:
    assert shown("ActiveState") == "active"
    count = len(request("GET", "/v2/reservations")["reservations"])
    assert re.match(f"{count} reservations? at generation ", shown("StatusText"))
    own = Path(f"/proc/{main_pid()}/cgroup").read_text(encoding="utf-8").strip()
    assert own == "0::/system.slice/axernd.service/daemon"
    assert cgroup_root() == "system.slice/axernd.service"
    socket = os.stat("/run/axern/axernd.sock")
    assert (oct(socket.st_mode & 0o777), socket.st_uid) == ("0o660", 0)
    environ = Path(f"/proc/{main_pid()}/environ").read_bytes()
    assert b"NOTIFY_SOCKET=" in environ, "control: systemd gives it"


def _output(run_id: str) -> list[str]:
    return axern("run", "logs", run_id).split()


def _limits() -> dict[str, str]:
    root = Path("/sys/fs/cgroup", cgroup_root(), "sandboxes")
    names = ("memory.max", "pids.max", "cpu.weight", "cpu.max")
    return {
        str(path): path.read_text(encoding="utf-8")
        for name in names
        for path in root.rglob(name)
        if path.parent.name != "birth"  # has none of its own, and goes once there is a leaf
    }


def test_no_end_of_the_daemon_ends_a_sandbox(sandboxes: dict[str, set[int]]) -> None:
    before = _limits()
    for _ in range(ROUNDS):
        systemctl("restart", "axernd.service")
        assert processes() == sandboxes
        forget_failures()  # 5 starts in 5 minutes are the most
    for _ in range(ROUNDS):
        old = main_pid()
        systemctl("kill", "--kill-whom=main", "--signal=KILL", "axernd.service")
        wait_until(lambda was=old: main_pid() not in (0, was), SLOW_S)  # type: ignore[misc]
        wait_until(lambda: shown("ActiveState") == "active", SLOW_S)
        assert processes() == sandboxes
        forget_failures()
    systemctl("daemon-reload")
    assert processes() == sandboxes
    assert _limits() == before
    assert {status(run_id) for run_id in sandboxes} == {"running"}


def test_nor_does_its_absence_which_a_client_ends(sandboxes: dict[str, set[int]]) -> None:
    """Meanwhile the files answer, and an offline release finds the delegated control group."""
    run_id = detach("runc")
    running(run_id)
    everybody = processes()
    systemctl("stop", *UNITS)
    assert processes() == everybody
    down = json.loads(axern("reservations", "-o", "json"))
    assert down["source"] == "ledger-file"
    assert {row["id"] for row in down["reservations"]} == {*sandboxes, run_id}
    axern("reservations", "release", "--force", "--reason", "test", "--grace", "0s", run_id)
    assert processes() == sandboxes
    systemctl("start", "axernd.socket")
    assert shown("ActiveState") == "inactive"
    # It may give up and read the files; the daemon comes all the same.
    axern("reservations", code=None)
    wait_until(lambda: shown("ActiveState") == "active", SLOW_S)
    assert request("GET", "/v2/health")["status"] == "ok"
    assert status(run_id) in {"failed", "cancelled"}
    assert {status(each) for each in sandboxes} == {"running"}
    assert processes() == sandboxes


def test_the_watchdog_ends_what_stands_still(sandboxes: dict[str, set[int]]) -> None:
    drop_in(f"WatchdogSec={WATCHDOG_S}", "TimeoutAbortSec=1")
    systemctl("restart", "axernd.service")
    old = main_pid()
    time.sleep(WATCHDOG_S + 2)
    assert main_pid() == old, "control: one that gets on is left alone"
    os.kill(old, 19)
    wait_until(lambda: main_pid() not in (0, old), SLOW_S)
    wait_until(lambda: shown("ActiveState") == "active", SLOW_S)
    assert "atchdog timeout" in journal("-n", "200")
    assert processes() == sandboxes
    assert {status(run_id) for run_id in sandboxes} == {"running"}


def test_what_a_restart_can_not_cure_is_not_tried_again(service: None) -> None:
    kept = CONFIG.read_text(encoding="utf-8")
    systemctl("stop", *UNITS)
    try:
        for config in ("no_such_key = 1\n", 'socket = "/run/axern/other"\n'):
            CONFIG.write_text(kept + config, encoding="utf-8")
            forget_failures()
            argv = ("systemctl", "start", "axernd.service")
            assert subprocess.run(argv, capture_output=True, check=False).returncode != 0
            # Before another start it would be "activating", and after some of them have a count.
            wait_until(lambda: shown("ActiveState") == "failed", SLOW_S)
            assert (shown("ExecMainStatus"), shown("NRestarts")) == ("78", "0")
    finally:
        CONFIG.write_text(kept, encoding="utf-8")


def test_clients_start_what_failed_for_good_a_few_times_and_then_read_the_files(
    service: None,
) -> None:
    """Five starts, the administrator's own counted: then the socket has failed as well."""
    run_id = detach("runc")
    running(run_id)
    kept, word = CONFIG.read_text(encoding="utf-8"), "no_such_key"
    systemctl("stop", *UNITS)
    forget_failures()
    before = journal().count(word)
    CONFIG.write_text(f"{kept}{word} = 1\n", encoding="utf-8")
    try:
        subprocess.run(("systemctl", "start", *UNITS), capture_output=True, check=False)
        wait_until(lambda: shown("ActiveState") == "failed", SLOW_S)
        axern("reservations", code=None)
        wait_until(lambda: _socket_state() == "failed", SLOW_S)
        assert 1 < journal().count(word) - before <= 5
        assert not os.path.lexists("/run/axern/axernd.sock")
        assert json.loads(axern("reservations", "-o", "json"))["source"] == "ledger-file"
        assert processes()[run_id]
    finally:
        CONFIG.write_text(kept, encoding="utf-8")
    mended = subprocess.run(("systemctl", "start", *UNITS), capture_output=True, check=False)
    assert mended.returncode != 0, "control: it takes reset-failed, as the handbook says"
    forget_failures()
    systemctl("start", *UNITS)
    assert status(run_id) == "running"


def _socket_state() -> str:
    return systemctl("show", "-P", "ActiveState", "axernd.socket").strip()


def test_the_journal_knows_what_matters(service: None) -> None:
    assert "serving on" in journal("-p", "info")
    assert "serving on" not in journal("-p", "warning")


def _capabilities(pid: int, name: str) -> set[str]:
    """Return the capabilities in the set *name* of a process, as capsh spells them."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    number = next(line.split()[1] for line in text.splitlines() if line.startswith(name))
    done = subprocess.run(
        ("capsh", f"--decode={number}"), capture_output=True, text=True, check=True
    )
    return {word.upper() for word in done.stdout.strip().partition("=")[2].split(",")}


def test_the_daemon_has_lost_what_it_does_not_need(service: None) -> None:
    text = (ROOT / "systemd/axernd.service").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("CapabilityBoundingSet=~")]
    dropped = {name for line in lines for name in NAMES.findall(line)}
    assert len(dropped) > 15
    for name in ("CapBnd", "CapEff", "CapPrm"):
        assert not dropped & _capabilities(main_pid(), name)
    kept = _capabilities(main_pid(), "CapEff")
    assert {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_MKNOD", "CAP_NET_ADMIN"} <= kept


@pytest.mark.parametrize("name", ["CAP_SYS_MODULE", "CAP_SYS_TIME", "CAP_SYSLOG"])
def test_what_was_taken_away_is_refused(service: None, name: str) -> None:
    """From inside the service, with all that it has, what the capability is for fails."""
    script = {
        "CAP_SYS_MODULE": "import ctypes; r = ctypes.CDLL(None).delete_module(b'x', 0)",
        "CAP_SYS_TIME": "import time; r = time.clock_settime(0, time.time())",
        "CAP_SYSLOG": "import ctypes; r = ctypes.CDLL(None).klogctl(5, None, 0)",
    }[name]
    check = f"import ctypes, errno\n{script}\nraise SystemExit(0 if r in (0, None) else 1)"
    inside = _as_the_service(check)
    assert inside.returncode != 0, inside
    if name != "CAP_SYS_MODULE":  # no such module: it fails for root too, with another errno
        control = subprocess.run((sys.executable, "-c", check), capture_output=True, check=False)
        assert control.returncode == 0, control


def _as_the_service(script: str) -> subprocess.CompletedProcess[bytes]:
    """Run *script* with the bounding set, the flags and the limits of the shipped unit."""
    text = (ROOT / "systemd/axernd.service").read_text(encoding="utf-8")
    lines = text[text.index("LimitNOFILE") : text.index("[Install]")].splitlines()
    bounded = "CapabilityBoundingSet=~"
    # Several lines of a file take away together, several settings of a command replace each other.
    taken = (line.removeprefix(bounded) for line in lines if line.startswith(bounded))
    hardening = [
        *(line for line in lines if not line.startswith(bounded)),
        bounded + " ".join(taken),
    ]
    return subprocess.run(
        (
            *("systemd-run", "--quiet", "--pipe", "--wait", "--collect"),
            *(word for line in hardening if line for word in ("-p", line)),
            *(sys.executable, "-c", script),
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def test_a_sandbox_is_as_it_would_be_without_the_hardening(
    sandboxes: dict[str, set[int]],
) -> None:
    for run_id in list(sandboxes)[:2]:  # one of each runtime
        assert _output(run_id) == SAID
        for pid in sandboxes[run_id]:
            score = Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="utf-8")
            assert int(score) >= OOM_SCORE_ADJ, f"process {pid} would not die first"
    daemon = Path(f"/proc/{main_pid()}/oom_score_adj").read_text(encoding="utf-8")
    assert daemon.strip() == "-900"


def test_the_figure_of_systemd_is_the_one_in_the_docs(service: None) -> None:
    done = subprocess.run(
        ("systemd-analyze", "security", "--no-pager", "axernd.service"),
        capture_output=True,
        text=True,
        check=True,
    )
    figure = re.search(r"Overall exposure level for axernd\.service: ([\d.]+)", done.stdout)
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    told = re.search(r"exposure level ([\d.]+)", page)
    assert figure is not None
    assert told is not None
    assert figure[1] == told[1]


@pytest.mark.parametrize("runtime", ["runc", "runsc"])
def test_who_writes_too_much_is_told_so(service: None, runtime: str) -> None:
    fill = "dd if=/dev/zero of=/fill bs=256k count=48 2>/dev/null; rm /fill; exit 3"
    run_id = detach(runtime, fill, ephemeral_storage_bytes=10 * 1024**2)
    wait_until(lambda: status(run_id) == "failed", SLOW_S)
    ended = run_of(run_id)
    assert (ended["exit_code"], ended["diagnostic_code"]) == (3, "storage-limit-exceeded"), ended


def test_who_loses_a_limit_while_running_is_ended(unit: list[str], service: None) -> None:
    """Also the standing sandboxes: all of them stand on the quotas that are switched off here."""
    run_id = detach("runc")
    running(run_id)
    try:
        project_quotas("disable")
        lost_s = time.monotonic()
        wait_until(lambda: not any(processes().values()), SLOW_S)
        if LONG:  # alone on the host
            assert time.monotonic() - lost_s <= LOSS_LIMIT_S
        unit.clear()
        wait_until(lambda: status(run_id) == "failed", SLOW_S)
        ended = run_of(run_id)
        assert ended["cli_exit_code"] == 125
        assert ended["diagnostic_code"] == "capability-enforcement-lost"
        assert "project quotas" in axern("node", "doctor", code=None)
        with pytest.raises(AxernError, match="project quotas"):
            detach("runc")
    finally:
        project_quotas("enable")
    wait_until(lambda: _is_taken("runc"), SLOW_S)


def project_quotas(word: str) -> None:
    """Switch the enforcement of the filestore's project quotas: `enable` or `disable`."""
    argv = ("xfs_quota", "-x", "-c", f"{word} -p", "/var/lib/axern/filestore")
    subprocess.run(argv, check=True, capture_output=True)


def _is_taken(runtime: str) -> bool:
    try:
        detach(runtime)
    except AxernError:
        return False
    return True
