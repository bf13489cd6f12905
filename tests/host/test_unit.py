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
from typing import Any

import pytest

from axern.api.client import Client
from tests.conftest import LONG
from tests.host.conftest import wait_until
from tests.tidy.sources import ROOT

pytestmark = [pytest.mark.host, pytest.mark.machine, pytest.mark.timeout(3600)]
UNITS = ("axernd.socket", "axernd.service")
SYSTEM = Path("/usr/local/lib/systemd/system")
DROP_IN = Path("/run/systemd/system/axernd.service.d")
CONFIG = Path("/etc/axern/axern.toml")
ROUNDS = 30 if LONG else 3
SANDBOXES = 20 if LONG else 4
SLOW_S = 300.0
"""An emulated processor, which others may be using."""
NAMES = re.compile(r"CAP_[A-Z_]+")


def systemctl(*words: str) -> str:
    """Run systemctl and return what it says."""
    done = subprocess.run(("systemctl", *words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + journal()
    return done.stdout


def journal(*words: str) -> str:
    argv = ("journalctl", "--no-pager", "-o", "cat", "-u", "axernd.service", "-b", *words)
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def shown(name: str) -> str:
    return systemctl("show", "-P", name, "axernd.service").strip()


def main_pid() -> int:
    return int(shown("MainPID"))


def axern(*words: str, code: int | None = 0) -> str:
    done = subprocess.run(
        (sys.executable, "-m", "axern", *words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert code in (None, done.returncode), (done, journal("-n", "50"))
    return done.stdout if code == 0 else done.stdout + done.stderr


def request(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Ask the daemon from within: a process for each question is slow on an emulated processor."""
    with Client("/run/axern/axernd.sock") as client:
        return client.request(method, path, body, timeout_s=60)


def detach(runtime: str) -> str:
    body = {
        "command": ["sleep", "36000"],
        "runtime_class": runtime,
        "requests": {"cpu_milli": 10, "memory_bytes": 64 * 1024**2},
    }
    return str(request("POST", "/v2/runs", body)["run"]["id"])


def status(run_id: str) -> str:
    return str(request("GET", f"/v2/runs/{run_id}")["run"]["status"])


def running(run_id: str) -> None:
    """Wait until a run is running; one that ended instead is shown."""
    wait_until(lambda: status(run_id) not in {"reserved", "starting"}, SLOW_S)
    assert status(run_id) == "running", (request("GET", f"/v2/runs/{run_id}"), journal("-n", "30"))


def processes() -> dict[str, set[int]]:
    """Return by sandbox the processes of its workload."""
    root = Path("/sys/fs/cgroup", cgroup_root(), "sandboxes")
    return {
        wall.name: {int(pid) for path in wall.rglob("cgroup.procs") for pid in _words(path)}
        for wall in root.iterdir()
        if wall.is_dir()
    }


def cgroup_root() -> str:
    return Path("/run/axern/cgroup_root").read_text(encoding="utf-8").strip()


def _words(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()


def drop_in(*lines: str) -> None:
    """Change the service for this boot, in the section of the service."""
    DROP_IN.mkdir(parents=True, exist_ok=True)
    (DROP_IN / "test.conf").write_text("\n".join(("[Service]", *lines, "")), encoding="utf-8")
    systemctl("daemon-reload")


def undo_drop_in() -> None:
    (DROP_IN / "test.conf").unlink(missing_ok=True)
    systemctl("daemon-reload")


@pytest.fixture(scope="module")
def unit() -> Iterator[None]:
    """Install the shipped units where `make install` has not, and start them."""
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
    systemctl("reset-failed", *UNITS)
    systemctl("restart", *UNITS)
    yield
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


def _end_all() -> None:
    """Cancel what runs, and wait until nothing is charged."""
    for row in request("GET", "/v2/reservations")["reservations"]:
        request("DELETE", f"/v2/runs/{row['id']}?grace_ms=0")
    wait_until(lambda: not request("GET", "/v2/reservations")["reservations"], SLOW_S)


@pytest.fixture
def service(unit: None) -> Iterator[None]:
    """Give a service that runs, without a sandbox; afterwards it still does."""
    systemctl("reset-failed", *UNITS)
    systemctl("start", *UNITS)
    yield
    undo_drop_in()
    systemctl("reset-failed", *UNITS)
    systemctl("start", *UNITS)
    _end_all()


def test_it_is_ready_and_lives_in_what_was_delegated(service: None) -> None:
    assert shown("ActiveState") == "active"
    assert shown("StatusText").startswith("0 reservations at generation ")
    own = Path(f"/proc/{main_pid()}/cgroup").read_text(encoding="utf-8").strip()
    assert own == "0::/system.slice/axernd.service/daemon"
    assert cgroup_root() == "system.slice/axernd.service"
    socket = os.stat("/run/axern/axernd.sock")
    assert (oct(socket.st_mode & 0o777), socket.st_uid) == ("0o660", 0)
    environ = Path(f"/proc/{main_pid()}/environ").read_bytes()
    assert b"NOTIFY_SOCKET=" in environ, "control: systemd gives it"


@pytest.fixture
def sandboxes(service: None) -> dict[str, set[int]]:
    """Start sandboxes of both runtimes and return their processes."""
    ids = [detach(("runc", "runsc")[number % 2]) for number in range(SANDBOXES)]
    for run_id in ids:
        running(run_id)
    found = processes()
    assert set(found) == set(ids)
    assert all(found.values())
    return found


def _limits() -> dict[str, str]:
    root = Path("/sys/fs/cgroup", cgroup_root(), "sandboxes")
    names = ("memory.max", "pids.max", "cpu.weight", "cpu.max")
    return {
        str(path): path.read_text(encoding="utf-8") for name in names for path in root.rglob(name)
    }


def test_no_end_of_the_daemon_ends_a_sandbox(sandboxes: dict[str, set[int]]) -> None:
    before = _limits()
    for _ in range(ROUNDS):
        systemctl("restart", "axernd.service")
        assert processes() == sandboxes
    for _ in range(ROUNDS):
        old = main_pid()
        systemctl("kill", "--kill-whom=main", "--signal=KILL", "axernd.service")
        wait_until(lambda was=old: main_pid() not in (0, was), SLOW_S)  # type: ignore[misc]
        wait_until(lambda: shown("ActiveState") == "active", SLOW_S)
        assert processes() == sandboxes
        systemctl("reset-failed", "axernd.service")  # 5 starts in 5 minutes are the most
    systemctl("stop", *UNITS)
    assert processes() == sandboxes
    down = json.loads(axern("reservations", "-o", "json"))
    assert down["source"] == "ledger-file"
    assert {row["id"] for row in down["reservations"]} == set(sandboxes)
    systemctl("start", *UNITS)
    systemctl("daemon-reload")
    assert processes() == sandboxes
    assert _limits() == before
    assert {status(run_id) for run_id in sandboxes} == {"running"}


def test_an_offline_release_finds_its_sandboxes(service: None) -> None:
    """The delegated control group is known to whoever works without the daemon."""
    run_id = detach("runc")
    running(run_id)
    systemctl("stop", *UNITS)
    axern("reservations", "release", "--force", "--reason", "test", "--grace", "0s", run_id)
    assert run_id not in processes()
    systemctl("start", *UNITS)
    assert status(run_id) in {"failed", "cancelled"}


def test_a_client_starts_it_and_waits_for_it(service: None) -> None:
    systemctl("stop", *UNITS)
    systemctl("start", "axernd.socket")
    assert shown("ActiveState") == "inactive"
    axern(
        "reservations", code=None
    )  # it may give up and read the files; the daemon comes all the same
    wait_until(lambda: shown("ActiveState") == "active", SLOW_S)
    assert request("GET", "/v2/health")["status"] == "ok"


def test_the_watchdog_ends_what_stands_still(service: None) -> None:
    drop_in("WatchdogSec=20", "TimeoutAbortSec=5")
    systemctl("restart", "axernd.service")
    run_id = detach("runc")
    running(run_id)
    old = main_pid()
    time.sleep(45)
    assert main_pid() == old, "control: one that gets on is left alone"
    os.kill(old, 19)
    wait_until(lambda: main_pid() not in (0, old), SLOW_S)
    wait_until(lambda: shown("ActiveState") == "active", SLOW_S)
    assert "atchdog timeout" in journal("-n", "200")
    assert status(run_id) == "running"


@pytest.mark.parametrize(
    ("config", "code"), [("no_such_key = 1\n", "78"), ('socket = "/run/axern/other"\n', "78")]
)
def test_what_a_restart_can_not_cure_is_not_tried_again(
    service: None, config: str, code: str
) -> None:
    kept = CONFIG.read_text(encoding="utf-8")
    systemctl("stop", *UNITS)
    CONFIG.write_text(kept + config, encoding="utf-8")
    try:
        subprocess.run(("systemctl", "start", "axernd.service"), capture_output=True, check=False)
        time.sleep(5)
        assert shown("ActiveState") == "failed"
        assert (shown("ExecMainStatus"), shown("NRestarts")) == (code, "0")
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
    systemctl("reset-failed", *UNITS)
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
    systemctl("reset-failed", *UNITS)
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


@pytest.mark.parametrize("name", ["CAP_SYS_MODULE", "CAP_SYS_TIME", "CAP_SYSLOG", "CAP_NET_RAW"])
def test_what_was_taken_away_is_refused(service: None, name: str) -> None:
    """From inside the service, with all that it has, what the capability is for fails."""
    script = {
        "CAP_SYS_MODULE": "import ctypes; r = ctypes.CDLL(None).delete_module(b'x', 0)",
        "CAP_SYS_TIME": "import time; r = time.clock_settime(0, time.time())",
        "CAP_SYSLOG": "import ctypes; r = ctypes.CDLL(None).klogctl(5, None, 0)",
        "CAP_NET_RAW": "import socket; r = socket.socket(17, 3).close()",
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
    hardening = text[text.index("LimitNOFILE") : text.index("[Install]")].splitlines()
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


@pytest.mark.parametrize("runtime", ["runc", "runsc"])
def test_a_sandbox_is_as_it_would_be_without_the_hardening(service: None, runtime: str) -> None:
    script = "id -u; mount -t tmpfs none /mnt || echo refused; echo x >/file && cat /file"
    said = axern("run", "--runtime-class", runtime, "--", "sh", "-c", script)
    assert said.split() == ["0", "refused", "x"]
    run_id = detach(runtime)
    running(run_id)
    for pid in processes()[run_id]:
        score = Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="utf-8")
        assert int(score) >= 0, f"process {pid} has the daemon's own protection"
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
