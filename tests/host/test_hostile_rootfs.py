"""A root file system that was made to break out is harmless: its traps are hidden, not followed."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import stat
import subprocess
import threading

import pytest

from axern.errors import ProgramNotFound
from tests.host.conftest import Lab, digest_tree, run_on_host

pytestmark = pytest.mark.host

LINKS = {
    "dev": "/etc",
    "proc": "/",
    "sys": "../../../..",
    "etc": "/root",
    "etc/hosts": "/target",
    "etc/resolv.conf": "../../../../../target",
    "etc/hostname": "/proc/self/exe",
}


def hostile(lab: Lab, name: str, to: str) -> str:
    rootfs = os.path.join(lab.layout.templates, "hostile")
    shutil.copytree(lab.rootfs, rootfs, symlinks=True)
    path = os.path.join(rootfs, name)
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.unlink(path)
    os.symlink(to, path)
    return rootfs


@pytest.mark.parametrize("readonly", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("name", LINKS)
def test_links_in_place_of_mount_points(lab: Lab, runtime: str, name: str, readonly: bool) -> None:
    rootfs = hostile(lab, name, LINKS[name])
    before = digest_tree(rootfs)
    script = "ls -ld /dev /proc /sys /etc; cat /etc/hosts; ls /proc/self/exe /dev/null"
    spec = lab.spec(runtime, "sh", "-c", script, rootfs=rootfs, rootfs_readonly=readonly)
    outcome = lab.run(spec)
    lines = outcome.stdout.decode().splitlines()
    assert outcome.exit_code == 0
    assert all(line.startswith("d") for line in lines[:4])
    assert lines[4] == "127.0.0.1\tlocalhost lab"
    assert digest_tree(rootfs) == before


def test_a_program_is_never_looked_for_outside(lab: Lab, runtime: str) -> None:
    outside = f"{lab.layout.state_dir}/outside"
    shutil.copy("/bin/busybox", outside)
    rootfs = hostile(lab, "bin/outside", "../../../../../.." + outside)
    with pytest.raises(ProgramNotFound):
        lab.launch(lab.spec(runtime, "/bin/outside", rootfs=rootfs))


def test_device_nodes_are_dead(lab: Lab, runtime: str) -> None:
    """The kernel refuses them (runc), or they are not the host's (runsc)."""
    rootfs = hostile(lab, "etc/motd", "/nowhere")
    disk = next(name for name in os.listdir("/sys/class/block"))
    with open(f"/sys/class/block/{disk}/dev", encoding="ascii") as file:
        major, minor = map(int, file.read().split(":"))
    os.mknod(f"{rootfs}/disk", stat.S_IFBLK | 0o666, os.makedev(major, minor))
    os.mknod(f"{rootfs}/memory", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    os.mknod(f"{rootfs}/kmsg", stat.S_IFCHR | 0o666, os.makedev(1, 11))
    script = "for name in disk memory kmsg; do head -c 1 /$name && echo read; done; true"
    outcome = lab.run(lab.spec(runtime, "sh", "-c", script, rootfs=rootfs))
    assert (outcome.exit_code, outcome.stdout) == (0, b"")


def test_pipes_lead_nowhere(lab: Lab, runtime: str) -> None:
    """Nobody on the host is met at the other end of a pipe that lies in a root."""
    rootfs = hostile(lab, "etc/motd", "/nowhere")
    os.mkfifo(f"{rootfs}/pipe")
    reader = os.open(f"{rootfs}/pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        spec = lab.spec(runtime, "sh", "-c", "(echo x 1<>/pipe) || true", rootfs=rootfs)
        assert lab.run(spec).exit_code == 0
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_setuid_gives_nothing(lab: Lab, runtime: str) -> None:
    """Not with busybox, which drops such rights by itself."""
    rootfs = hostile(lab, "etc/motd", "/nowhere")
    needed = subprocess.run(["ldd", "/bin/cat"], check=True, capture_output=True, text=True).stdout
    for path in ("/bin/cat", *re.findall(r"/\S+", needed)):
        os.makedirs(os.path.dirname(f"{rootfs}{path}"), exist_ok=True)
        if os.path.lexists(f"{rootfs}{path}"):
            os.unlink(f"{rootfs}{path}")
        shutil.copy(path, f"{rootfs}{path}")
    os.chmod(f"{rootfs}/bin/cat", 0o6755)  # noqa: S103 - that is the trap
    spec = lab.spec(runtime, "/bin/cat", "/proc/self/status", rootfs=rootfs)
    outcome = lab.run(dataclasses.replace(spec, user="1000:1000"))
    ids = re.findall(rb"^[UG]id:\s+(.*)$", outcome.stdout, re.MULTILINE)
    assert [line.split() for line in ids] == [[b"1000"] * 4] * 2, outcome


@pytest.mark.parametrize("to", ["/outside", "../../../../../..{outside}", "/proc/1/root{outside}"])
def test_links_to_the_outside_stay_inside(lab: Lab, runtime: str, to: str) -> None:
    """What they name is looked for in the sandbox, read or written."""
    outside = f"{lab.layout.state_dir}/outside"
    os.mkdir(outside)
    with open(f"{outside}/secret", "w", encoding="utf-8") as file:
        file.write("secret")
    target = to.replace("{outside}", outside).replace("/outside", outside, to == "/outside")
    rootfs = hostile(lab, "way", target)
    before = digest_tree(outside)
    script = "cat /way/secret; echo x >/way/secret; mkdir -p /way/new; rm -rf /way/secret; true"
    outcome = lab.run(lab.spec(runtime, "sh", "-c", script, rootfs=rootfs))
    assert (outcome.exit_code, outcome.stdout) == (0, b"")
    assert digest_tree(outside) == before


def test_mounts_below_a_root_stay_out(lab: Lab, runtime: str) -> None:
    rootfs = hostile(lab, "etc/motd", "/nowhere")
    os.mkdir(f"{rootfs}/host")
    run_on_host("mount", "-t", "tmpfs", "none", f"{rootfs}/host")
    try:
        with open(f"{rootfs}/host/secret", "w", encoding="utf-8") as file:
            file.write("secret")
        outcome = lab.run(lab.spec(runtime, "ls", "-A", "/host", rootfs=rootfs))
    finally:
        run_on_host("umount", f"{rootfs}/host")
    assert (outcome.exit_code, outcome.stdout) == (0, b"")


def test_a_mount_point_that_keeps_changing_into_a_link(lab: Lab) -> None:
    """The mount points are in a layer of ours, so that no moment exists to swap one for a link."""
    rootfs = hostile(lab, "other", "/")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(f"{rootfs}/dev", f"{rootfs}/swapped")
            os.symlink("/etc", f"{rootfs}/dev")
            os.unlink(f"{rootfs}/dev")
            os.rename(f"{rootfs}/swapped", f"{rootfs}/dev")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(10):
            script = "echo x >/dev/shm/x && [ ! -e /dev/passwd ] && [ -d /dev ] && [ ! -L /dev ]"
            assert lab.run(lab.spec("runc", "sh", "-c", script, rootfs=rootfs)).exit_code == 0
    finally:
        done.set()
        swapper.join()
