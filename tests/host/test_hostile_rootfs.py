"""A root file system that was made to break out is harmless: its traps are hidden, not followed."""

from __future__ import annotations

import os
import shutil
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


def test_device_nodes_are_dead(lab: Lab) -> None:
    rootfs = hostile(lab, "etc/motd", "/nowhere")
    device = os.stat("/dev/null").st_rdev
    os.mknod(f"{rootfs}/null", 0o666 | 0o020000, device)
    spec = lab.spec("runc", "sh", "-c", "cat /null", rootfs=rootfs)
    outcome = lab.run(spec)
    assert outcome.exit_code != 0
    assert b"Permission denied" in outcome.stderr


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
