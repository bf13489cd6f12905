"""`axern cp` with real sandboxes: what goes in and comes out, and what must not."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.host.daemon import DaemonLab
from tests.host.test_exec import execs, execute, run, runs, shared  # noqa: F401 - fixtures

pytestmark = pytest.mark.host


def test_a_tree_goes_in_and_comes_out_again(shared: DaemonLab, run: str, tmp_path: Path) -> None:  # noqa: F811
    tree = tmp_path / "tree"
    (tree / "sub" / ("n" * 120)).mkdir(parents=True)
    (tree / "sub" / "data").write_bytes(os.urandom(10 * 1024**2))
    (tree / "sub" / "run").write_text("#!/bin/sh\necho hello\n", encoding="utf-8")
    (tree / "sub" / "run").chmod(0o755)
    (tree / "link").symlink_to("sub/data")
    (tree / "host").symlink_to("/etc/hostname")
    os.mkfifo(tree / "pipe")
    done = shared.axern("cp", str(tree), f"{run}:/tmp")
    assert (done.returncode, done.stdout) == (1, b""), done
    assert b"left out: tree/pipe" in done.stderr
    assert execute(shared, run, "--", "/tmp/tree/sub/run").stdout == b"hello\n"
    done = shared.axern("cp", f"{run[:12]}:/tmp/tree", str(tmp_path / "back"))
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done
    assert b"left out: back/host: it is a link that leads out" in done.stderr
    back = tmp_path / "back"
    assert (back / "link").read_bytes() == (tree / "sub" / "data").read_bytes()
    assert stat.S_IMODE((back / "sub" / "run").stat().st_mode) == 0o755
    assert not os.path.lexists(back / "host")
    # A file, by its name and by another one.
    (tmp_path / "one").write_bytes(b"one")
    assert shared.axern("cp", str(tmp_path / "one"), f"{run}:/tmp/two").returncode == 0
    done = shared.axern("cp", f"{run}:/tmp/two", str(tmp_path))
    assert done.returncode == 0, done
    assert (tmp_path / "two").read_bytes() == b"one"
    execute(shared, run, "--", "rm", "-rf", "/tmp/tree", "/tmp/two")
    assert execs(shared, run) == []


def test_what_is_not_there_is_told(shared: DaemonLab, run: str, tmp_path: Path) -> None:  # noqa: F811
    for source, target, why in (
        (f"{run}:/tmp/none", str(tmp_path), b"tar in the sandbox ended with"),
        (str(tmp_path / "none"), f"{run}:/tmp", b"No such file"),
        (str(tmp_path), f"{run}:/none/none", b"tar in the sandbox ended with"),
        (f"{run}:/tmp", f"{run}:/tmp", b"one of SRC and DST"),
        ("a", "b/c", b"one of SRC and DST"),
        (f"{run}:tmp", str(tmp_path), b"absolute"),
        (f"{run}:/etc/passwd", str(tmp_path / "none" / "x"), b"No such file"),
    ):
        done = shared.axern("cp", source, target)
        assert (done.returncode, why in done.stderr) == (2, True), (source, target, done)


def test_a_hostile_tar_in_the_sandbox_gets_nothing_out(
    shared: DaemonLab,  # noqa: F811
    runtime: str,
    tmp_path: Path,
) -> None:
    words = ("--request-memory", "16MiB", "--env", "PATH=/tmp/bad:/bin", "--", "sleep", "100000")
    done = shared.axern("run", "-d", "--runtime-class", runtime, *words)
    made = done.stdout.decode().strip()
    shared.wait_status(made, "running")
    into = tmp_path / "a" / "b"
    into.mkdir(parents=True)
    scripts = {
        "../../x": "mkdir -p /tmp/w; cd /tmp/w; echo bad >/tmp/x; exec /bin/tar -cPf - ../x",
        "absolute": "exec /bin/tar -cPf - /etc/passwd",
        "other": "cd /etc; exec /bin/tar -cf - passwd",
        "through a link": "rm -rf /tmp/t; mkdir -p /tmp/t/d; cd /tmp/t; ln -s .. d/l; "
        "/bin/tar -cf - d | head -c 1024; rm d/l; mkdir d/l; echo >d/l/x; /bin/tar -cf - d/l/x",
        "flood": "cat /dev/zero",
        "noise": "cat /dev/urandom",
        "silence": "exit 0",
    }
    for name, script in scripts.items():
        bad = tmp_path / "tar"
        bad.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        bad.chmod(0o755)
        execute(shared, made, "--", "mkdir", "-p", "/tmp/bad")
        put = execute(
            shared,
            *(
                "-i",
                made,
                "--",
                "sh",
                "-c",
                "rm -f /tmp/bad/tar; cat >/tmp/bad/tar; chmod 755 /tmp/bad/tar",
            ),
            data=bad.read_bytes(),
        )
        assert put.returncode == 0, put
        done = shared.axern("cp", f"{made}:/tmp/d", str(into))
        assert done.returncode in (1, 2), (name, done)
        found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
        astray = {path for path in found if not path.startswith("a/b/d")}
        assert astray == {"a", "a/b", "tar"}, (name, found)
    shared.request("DELETE", f"/v2/runs/{made}?grace_ms=0")
