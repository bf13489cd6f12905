"""Real sandboxes in real runtimes: codes, bytes, roots and ids come out as promised."""

from __future__ import annotations

import hashlib
import os
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from axern.errors import (
    HostError,
    ProgramError,
    ProgramNotExecutable,
    ProgramNotFound,
    RootfsRefused,
)
from axern.host import idmap
from axern.runtime import launch, rootfs, teardown
from tests.host.conftest import Lab, digest_tree, wait_until

pytestmark = pytest.mark.host

STREAM_BYTES = 1 << 20
AT_ONCE = 20


def test_both_outputs_and_the_code_come_back(lab: Lab, runtime: str) -> None:
    outcome = lab.run(lab.spec(runtime, "sh", "-c", "echo hello; echo err >&2; exit 7"))
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (7, b"hello\n", b"err\n")
    assert outcome.evidence.exit_code == 7


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("printf 'abc\\n'", b"abc\n"),
        ("printf abc; sleep 0.1; printf '\\n'", b"abc\n"),
        ("printf 'a\\nbc'", b"a\nbc"),
        ("printf 'a\\0\\0b\\r\\n\\0'", b"a\0\0b\r\n\0"),
        ("printf '\\n\\n\\n'", b"\n\n\n"),
        ("true", b""),
    ],
)
def test_endings_are_kept(lab: Lab, runtime: str, script: str, expected: bytes) -> None:
    outcome = lab.run(lab.spec(runtime, "sh", "-c", f"({script}); ({script}) >&2"))
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, expected, expected)


def test_a_mebibyte_of_noise_on_each_output_is_byte_exact(lab: Lab, runtime: str) -> None:
    noise = os.urandom(STREAM_BYTES)
    with open(f"{lab.rootfs}/noise", "wb") as file:
        file.write(noise)
    outcome = lab.run(lab.spec(runtime, "sh", "-c", "cat /noise & cat /noise >&2; wait; exit 3"))
    assert outcome.exit_code == 3
    expected = hashlib.sha256(noise).hexdigest()
    assert hashlib.sha256(outcome.stdout).hexdigest() == expected
    assert hashlib.sha256(outcome.stderr).hexdigest() == expected


def test_outputs_can_be_opened_anew(lab: Lab, runtime: str) -> None:
    script = "echo one >/dev/stdout; echo two >/dev/stderr; echo three >/proc/self/fd/1"
    outcome = lab.run(lab.spec(runtime, "sh", "-c", script))
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, b"one\nthree\n", b"two\n")


def test_a_killed_workload_gives_137(lab: Lab, runtime: str) -> None:
    spec = lab.spec(runtime, "sh", "-c", "echo up; sleep 600")
    lab.launch(spec)
    wait_until(lambda: lab.outputs(spec)["stdout"] == b"up\n")
    teardown.stop(runtime, lab.layout, spec.sandbox_id, grace_s=0)
    outcome = lab.finish(spec)
    assert outcome.exit_code == 137
    assert outcome.evidence.killed == 0


def test_environment_working_directory_and_names(lab: Lab, runtime: str) -> None:
    script = 'echo "$GREETING"; pwd; hostname; cat /etc/hostname; id -u; grep -c lab /etc/hosts'
    spec = lab.spec(runtime, "sh", "-c", script, env=(("GREETING", "grüße\t="),), cwd="/tmp")
    outcome = lab.run(spec)
    assert outcome.stdout.decode().splitlines() == ["grüße\t=", "/tmp", "lab", "lab", "0", "1"]


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("1000", ["1000 0 0", "/"]),
        ("1000:2000", ["1000 2000 2000", "/"]),
        ("guest", ["7 8 8 9 10", "/srv"]),
        ("guest:staff", ["7 9 9", "/srv"]),
        ("0", ["0 0 0", "/root"]),
    ],
)
def test_a_user_is_who_the_root_says(
    lab: Lab, runtime: str, user: str, expected: list[str]
) -> None:
    with open(f"{lab.rootfs}/etc/passwd", "a", encoding="utf-8") as file:
        file.write("guest:x:7:8::/srv:/bin/sh\n")
    with open(f"{lab.rootfs}/etc/group", "a", encoding="utf-8") as file:
        file.write("staff:x:9:guest\naudio:x:10:guest\nother:x:11:guests\n")
    script = (
        'echo $(id -u) $(id -g) $(id -G); echo "$HOME"; '
        "grep CapEff /proc/self/status >/dev/stderr; echo x >/probe"
    )
    spec = replace(lab.spec(runtime, "sh", "-c", script), user=user)
    outcome = lab.run(spec)
    assert outcome.stdout.decode().splitlines() == expected
    is_root = user == "0"
    assert (b"0000000000000000" in outcome.stderr) is not is_root
    assert outcome.exit_code == (0 if is_root else 1)


def test_bytes_that_are_no_text_would_be_changed(lab: Lab, runtime: str) -> None:
    """Why the command line refuses them: a bundle is JSON. Once this fails, it may let them be."""
    script = 'printf %s "$1$A" | od -An -tx1'
    spec = lab.spec(runtime, "sh", "-c", script, "x", "a\udcff", env=(("A", "\udcfe"),))
    assert lab.run(spec).stdout.split() == b"61 ef bf bd ef bf bd".split()


def test_nothing_of_the_host_is_inherited(
    lab: Lab, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("LISTEN_FDS", "1")
    outcome = lab.run(lab.spec(runtime, "sh", "-c", "env | sort; ls /proc/self/fd | wc -l"))
    names = {line.partition("=")[0] for line in outcome.stdout.decode().splitlines()}
    assert names <= {"PATH", "HOME", "HOSTNAME", "PWD", "SHLVL", "TERM", "OLDPWD", "_", "4"}


@pytest.mark.parametrize("program", ["nosuch", "/bin/nosuch", "./nosuch", "/etc/nosuch/x"])
def test_a_missing_program_is_127(lab: Lab, runtime: str, program: str) -> None:
    with pytest.raises(ProgramNotFound) as caught:
        lab.launch(lab.spec(runtime, program))
    assert caught.value.exit_code == 127


ODD_PATHS = {
    "relative": ("bin", "/", 126),
    "relative first": ("bin:/bin", "/", 126),
    "relative and not there": ("nowhere:/bin", "/", 0),
    "relative behind": ("/bin:bin", "/", 0),
    "nothing": ("", "/", 127),
    "nothing, from where it is": ("", "/bin", 126),
    "empty first": (":/bin", "/bin", 126),
    "empty last": ("/bin:", "/bin", 0),
    "newlines": ("\n:/a\nb:/bin", "/", 0),
    "only a newline": ("\n", "/", 127),
    "parent of the root": ("/../bin", "/", 0),
    "too many": ("/nowhere:" * 64 + "/bin", "/", 127),
    "a component too long": (f"/{'x' * 256}:/bin", "/", 127),
    "too long": (f"{'/x' * 2_048}:/bin", "/", 127),
    "a file": ("/etc/passwd:/bin", "/", 127),
    "behind the hit": (f"/bin:/{'x' * 256}", "/", 0),
}


@pytest.mark.parametrize("name", ODD_PATHS)
def test_an_odd_path_means_the_same_to_both(lab: Lab, runtime: str, name: str) -> None:
    search_path, cwd, code = ODD_PATHS[name]
    spec = lab.spec(runtime, "echo", "found", env=(("PATH", search_path),), cwd=cwd)
    if code:
        with pytest.raises(ProgramError) as caught:
            lab.launch(spec)
        assert caught.value.exit_code == code
    else:
        assert lab.run(spec).stdout == b"found\n"


@pytest.mark.parametrize("program", ["x" * 256, "x" * 128 * 1024, "/x" * 2_048])
def test_a_name_that_no_file_can_have_is_127_at_once(lab: Lab, program: str) -> None:
    spec = lab.spec("runc", program, env=(("PATH", ":".join("a" * 60_000)),))
    tracemalloc.start()
    try:
        with pytest.raises(ProgramNotFound):
            lab.launch(spec)
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024**2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "content", "mode"),
    [
        ("plain", b"#!/bin/sh\n", 0o644),
        ("garbage", b"not a program", 0o755),
        ("empty", b"", 0o755),
        ("no-interpreter", b"#!\n", 0o755),
    ],
)
def test_a_program_that_cannot_be_executed_is_126(
    lab: Lab, runtime: str, name: str, content: bytes, mode: int
) -> None:
    _put(lab, name, content, mode)
    with pytest.raises(ProgramNotExecutable) as caught:
        lab.launch(lab.spec(runtime, f"/bin/{name}"))
    assert caught.value.exit_code == 126


def test_a_folder_is_126_and_a_missing_interpreter_127(lab: Lab, runtime: str) -> None:
    with pytest.raises(ProgramNotExecutable):
        lab.launch(lab.spec(runtime, "/etc"))
    _put(lab, "script", b"#!/bin/nosuch\n", 0o755)
    with pytest.raises(ProgramNotFound):
        lab.launch(lab.spec(runtime, "script"))


@pytest.mark.parametrize(
    ("program", "error"), [("/bin/nosuch", ProgramNotFound), ("/bin/plain", ProgramNotExecutable)]
)
def test_the_runtimes_own_words_are_read_too(
    lab: Lab,
    runtime: str,
    program: str,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The root may change after the check, so that the runtime's refusal must mean the same."""
    _put(lab, "plain", b"#!/bin/sh\n", 0o644)
    monkeypatch.setattr(rootfs, "check_program", lambda spec, paths: None)
    with pytest.raises(error):
        lab.launch(lab.spec(runtime, program))


def test_a_script_runs_by_its_interpreter(lab: Lab, runtime: str) -> None:
    _put(lab, "script", b"#!/bin/sh\necho scripted\n", 0o755)
    assert lab.run(lab.spec(runtime, "script")).stdout == b"scripted\n"


def test_a_writable_root_is_private(lab: Lab, runtime: str) -> None:
    before = digest_tree(lab.rootfs)
    script = (
        "echo x >/etc/passwd; rm /bin/vi; chmod 0 /etc; touch /new; rm -r /var; "
        "cat /new /etc/passwd"
    )
    first = lab.run(lab.spec(runtime, "sh", "-c", script))
    assert (first.exit_code, first.stdout, first.stderr) == (0, b"x\n", b"")
    second = lab.run(lab.spec(runtime, "sh", "-c", "ls -d /bin/vi /var; ls /new"))
    assert second.stdout == b"/bin/vi\n/var\n"
    assert second.exit_code == 1
    assert digest_tree(lab.rootfs) == before


def test_a_read_only_root_cannot_be_written(lab: Lab, runtime: str) -> None:
    before = digest_tree(lab.rootfs)
    script = (
        "for p in /new /etc/hosts /bin/sh /proc/x /sys/x; do (echo x >$p) && echo wrote $p; done"
    )
    outcome = lab.run(lab.spec(runtime, "sh", "-c", script, rootfs_readonly=True))
    assert outcome.stdout == b""
    assert outcome.stderr.count(b"Read-only file system") >= 3
    assert digest_tree(lab.rootfs) == before


def test_root_inside_is_nobody_on_the_host_with_runc(lab: Lab) -> None:
    spec = lab.spec("runc", "sh", "-c", "echo x >/mine; chown 7:8 /mine; sleep 600")
    lab.launch(spec)
    mine = f"{lab.layout.sandbox(spec.sandbox_id).upper}/mine"
    base = idmap.first_id(spec.lane)
    wait_until(lambda: os.path.exists(mine) and os.stat(mine).st_uid == base + 7)
    assert os.stat(mine).st_gid == base + 8
    pid = lab.layout.sandbox(spec.sandbox_id).workload.pids()[0]
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        uids = next(line for line in file if line.startswith("Uid:")).split()[1:]
    assert uids == [str(base)] * 4


def test_a_root_that_cannot_be_mapped_is_refused_for_runc(lab: Lab) -> None:
    with pytest.raises(RootfsRefused):
        lab.launch(lab.spec("runc", "sh", rootfs="/proc"))
    with pytest.raises(RootfsRefused):
        lab.launch(lab.spec("runc", "sh", rootfs="/etc/passwd"))


def test_a_missing_working_directory_is_refused(lab: Lab, runtime: str) -> None:
    with pytest.raises(RootfsRefused):
        lab.launch(lab.spec(runtime, "sh", cwd="/nowhere"))


def test_a_run_folder_that_root_inside_cannot_reach_is_named(lab: Lab) -> None:
    os.chmod(lab.layout.run_dir, 0o700)
    with pytest.raises(HostError) as caught:
        lab.launch(lab.spec("runc", "true"))
    assert caught.value.hint == f"chmod o+x {lab.layout.run_dir}"


def test_secrets_stay_in_the_bundle(lab: Lab, runtime: str) -> None:
    spec = lab.spec(runtime, "sh", "-c", "sleep 600", env=(("TOKEN", "canary-4711"),))
    lab.launch(spec)
    paths = lab.layout.sandbox(spec.sandbox_id)
    assert os.stat(paths.config).st_mode & 0o777 == 0o600
    assert os.stat(paths.folder).st_mode & 0o007 == 0
    holders = [
        os.path.join(folder, name)
        for top in (lab.layout.run_dir, lab.layout.state_dir, lab.layout.filestore)
        for folder, _, names in os.walk(top)
        for name in names
        if b"canary-4711" in _content(os.path.join(folder, name))
    ]
    runtime_state = [path for path in holders if path != paths.config]
    assert paths.config in holders
    assert all(path.startswith(lab.layout.runtime_root(runtime)) for path in runtime_state)
    assert (
        all(os.stat(path).st_mode & 0o077 == 0 for path in runtime_state)
        or os.stat(lab.layout.runtime_root(runtime)).st_mode & 0o077 == 0
    )


def test_twenty_at_once(lab: Lab) -> None:
    gate = threading.Barrier(AT_ONCE)
    specs = [
        lab.spec(("runc", "runsc")[n % 2], "sh", "-c", f"echo {n}; exit {n}")
        for n in range(AT_ONCE)
    ]

    def run(n: int) -> tuple[int, bytes]:
        gate.wait()
        outcome = lab.run(specs[n])
        return outcome.exit_code, outcome.stdout

    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(run, range(AT_ONCE)))
    assert results == [(n, b"%d\n" % n) for n in range(AT_ONCE)]


def test_the_monitor_lives_outside_the_wall(lab: Lab, runtime: str) -> None:
    spec = lab.spec(runtime, "sh", "-c", "sleep 600 & sleep 600")
    created = launch.create(spec, lab.layout)
    paths = lab.layout.sandbox(spec.sandbox_id)
    assert paths.monitor.pids() == (created.monitor.pid,)
    assert created.init.pid in paths.wall.pids()
    launch.start(spec, lab.layout)
    parents = {pid for pid in paths.wall.pids() if _parent(pid) == created.monitor.pid}
    assert created.init.pid in parents
    assert len(parents) == {"runc": 1, "runsc": 2}[runtime]


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _content(path: str) -> bytes:
    if not os.path.isfile(path) or os.path.islink(path):
        return b""
    with open(path, "rb") as file:
        return file.read()


def _put(lab: Lab, name: str, content: bytes, mode: int) -> None:
    path = f"{lab.rootfs}/bin/{name}"
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)
