"""One running test machine: its QEMU, its disk, and commands inside it over ssh.

All of it lies in one folder, so that machines know nothing of each other: `disk.qcow2` (over the
image's disk), `serial.log`, `qmp.sock`, `qemu.pid`, `port`, `synced.json`. QEMU outlives whoever
started it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.vm.image import Image
from tests.vm.recipe import ROOT

MEMORY_MIB = 4096 if os.environ.get("AXERN_LONG") == "1" else 3072
"""In the long form twenty sandboxes take what they can get, at once."""
BOOT_LIMIT_S = 600.0
"""An idle machine needs 30 s; one that is shared with other tests, many times that."""

COMMAND_LIMIT_S = 600.0
WORKTREE = "/axern"
"""Where the guest has this checkout."""

PATH = "/opt/tests/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NO_CONNECTION = 255
"""How ssh ends when it is cut off."""

KERNEL_WORDS = (
    "rw console=ttyS0 net.ifnames=0 panic=-1 quiet loglevel=4 systemd.show_status=0 "
    # Given, or each machine would go through a first boot, which takes twice as long.
    "systemd.machine_id=5f1c9e3a7b2d4c60a8e4d1f09b6c2e87 "
    # An emulated processor tests and mitigates slowly, and tells of units that nothing here needs.
    "mitigations=off cryptomgr.notests audit=0 "
    # Elsewhere this is a static device node, one of many whose making is left out.
    "modules_load=loop"
)


class GuestDied(Exception):
    """The machine is gone, or never came up; the message names its log."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A machine in the folder *state*, running *image*."""

    state: Path
    image: Image
    kernel_words: str = ""
    """Said to the kernel beside `KERNEL_WORDS`."""
    boot_limit_s: float = BOOT_LIMIT_S

    @property
    def serial_log(self) -> Path:
        """What the kernel and the first programs said."""
        return self.state / "serial.log"

    @property
    def disk(self) -> Path:
        """What the machine writes to; it lies over another disk."""
        return self.state / "disk.qcow2"

    def start(self, base: Path | None = None) -> None:
        """Start the machine on a new disk over *base*, else the image's; wait for its commands.

        Raises:
            GuestDied: It did not come up within `boot_limit_s`.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        below = base or self.image.disk
        argv = ["qemu-img", "create", "-qf", "qcow2", "-F", "raw", "-b", str(below), str(self.disk)]
        subprocess.run(argv, check=True)
        (self.state / "synced.json").unlink(missing_ok=True)
        self.power_on()

    def power_on(self) -> None:
        """Start QEMU on the disk as it is and wait until commands run in the machine.

        Raises:
            GuestDied: It did not come up within `boot_limit_s`.
        """
        with socket.socket() as probe:  # free now; QEMU says so if it no longer is
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        (self.state / "port").write_text(str(port), encoding="ascii")
        with open(self.state / "qemu.log", "ab") as log:
            pid = start_detached(self.qemu(port), log)
        (self.state / "qemu.pid").write_text(str(pid), encoding="ascii")
        self.wait_ready()

    def qemu(self, port: int) -> list[str]:
        """Return QEMU's command line."""
        disk = f"file={self.disk},format=qcow2,if=virtio,discard=unmap"
        network = f"user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:22"
        return [
            *(
                "qemu-system-x86_64",
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "max,la57=off",
                "-smp",
                "2",
            ),
            *("-m", str(MEMORY_MIB), "-display", "none", "-no-user-config", "-nodefaults"),
            *("-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd)),
            *("-append", f"{KERNEL_WORDS} {self.kernel_words}", "-drive", disk, "-netdev", network),
            *("-device", "virtio-net-pci,netdev=n0,romfile="),
            *("-device", "virtio-rng-pci", "-serial", f"file:{self.serial_log}"),
            *("-qmp", f"unix:{self.state}/qmp.sock,server=on,wait=off"),
        ]

    def pid(self) -> int | None:
        """Return QEMU's process, or None when there is none."""
        try:
            pid = int((self.state / "qemu.pid").read_text(encoding="ascii"))
            command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # Empty for a moment: an exec closes the pipe that Popen waits for, then sets the words.
        ours = not command_line or str(self.state).encode() in command_line
        ours = ours and state[0] != "Z"
        return pid if ours else None

    def cpu_s(self) -> float:
        """Return the CPU time that QEMU has taken since it was started, 0 where it does not run."""
        pid = self.pid()
        if pid is None:
            return 0.0
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def wait_ready(self) -> None:
        """Wait until a command runs in the machine.

        Raises:
            GuestDied: QEMU ended, or nothing answered within `boot_limit_s`.
        """
        deadline_s = time.monotonic() + self.boot_limit_s
        while time.monotonic() < deadline_s:
            if self.pid() is None:
                raise GuestDied(f"QEMU ended: see {self.state}/qemu.log and {self.serial_log}")
            if self.ssh("true").returncode == 0:
                return
            time.sleep(1)
        raise GuestDied(f"no command ran within {self.boot_limit_s:.0f} s: see {self.serial_log}")

    def ssh_argv(self, *options: str) -> list[str]:
        """Return the start of an ssh command line; one connection serves all of them."""
        port = (self.state / "port").read_text(encoding="ascii")
        return [
            *("ssh", "-q", "-F", "none", "-i", str(self.image.key), "-p", port, *options),
            *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
            *("-o", "ControlMaster=auto", "-o", f"ControlPath={self.state}/ssh-%C"[:100]),
            *("-o", "ControlPersist=yes", "-o", "ConnectTimeout=10"),
            *("-o", "ServerAliveInterval=20", "-o", "ServerAliveCountMax=6"),
            *("-c", "aes128-gcm@openssh.com", "root@127.0.0.1"),
        ]

    def ssh(
        self,
        command: str,
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | int | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a shell command line inside; 255 says that there was no connection, or no end."""
        argv = [*self.ssh_argv(), command]
        try:
            return subprocess.run(
                argv, stdin=stdin, stdout=stdout, check=False, timeout=COMMAND_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, NO_CONNECTION, b"")

    def run(
        self,
        argv: Sequence[str],
        stdout: IO[bytes] | None = None,
        limit_s: float | None = None,
    ) -> int:
        """Run a program inside, in the checkout, with the tests' Python first on PATH.

        Raises:
            GuestDied: The connection was lost, or *limit_s* has passed.
        """
        words = [f"{name}={value}" for name, value in os.environ.items() if name == "AXERN_LONG"]
        line = shlex.join(["env", f"PATH={PATH}", *words, *argv])
        command = [*self.ssh_argv(), f"cd {WORKTREE} && exec {line}"]
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stdout,
                check=False,
                timeout=limit_s,
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise GuestDied(f"{argv} took longer than {limit_s} s: {self.serial_log}") from error
        if code == NO_CONNECTION:
            raise GuestDied(f"the machine is gone: see {self.serial_log}")
        return code

    def reboot(self) -> None:
        """Let the machine's own systemd reboot it, and wait for commands in the new boot.

        Raises:
            GuestDied: It did not come back.
        """
        before = self.boot_id()
        self.ssh("systemctl reboot")
        self.drop_connection()
        deadline_s = time.monotonic() + self.boot_limit_s
        while self.boot_id() in {before, ""}:
            if time.monotonic() > deadline_s or self.pid() is None:
                raise GuestDied(f"it did not come back from a reboot: see {self.serial_log}")
            time.sleep(1)

    def cut_power(self) -> None:
        """End QEMU without a word to the guest, and start it again on the same disk.

        Raises:
            GuestDied: It did not come back.
        """
        self.stop()
        self.power_on()

    def boot_id(self) -> str:
        """Return what tells boots apart, or nothing where no command runs."""
        asked = self.ssh("cat /proc/sys/kernel/random/boot_id", stdout=subprocess.PIPE)
        return asked.stdout.decode() if asked.returncode == 0 else ""

    def sync(self) -> None:
        """Bring the checkout into the guest: what changed since the last time, and what is gone."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
        )
        names = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
        memory = self.state / "synced.json"
        before = json.loads(memory.read_text(encoding="utf-8")) if memory.exists() else {}
        now = {name: fingerprint(name) for name in sorted(names) if (ROOT / name).exists()}
        changed = [name for name in now if before.get(name) != now[name]]
        gone = sorted(before.keys() - now.keys())
        if gone:
            self.must(f"cd {WORKTREE} && rm -f -- {shlex.join(gone)}")
        if changed:
            send = [*self.ssh_argv(), f"tar -x -C {WORKTREE} -f - --warning=no-timestamp"]
            with subprocess.Popen(send, stdin=subprocess.PIPE) as process:
                assert process.stdin is not None
                with suppress(BrokenPipeError):
                    with tarfile.open(fileobj=process.stdin, mode="w|") as tar:
                        for name in changed:
                            tar.add(ROOT / name, name, recursive=False, filter=owned_by_root)
                    process.stdin.close()
                if process.wait() != 0:
                    raise GuestDied(f"the checkout could not be sent: see {self.serial_log}")
        memory.write_text(json.dumps(now), encoding="utf-8")

    def must(self, command: str) -> None:
        """Run a shell command line inside that has to succeed.

        Raises:
            GuestDied: It failed.
        """
        done = self.ssh(f"{{ {command}; }} 2>&1", stdout=subprocess.PIPE)
        if done.returncode != 0:
            said = done.stdout.decode(errors="replace")
            raise GuestDied(f"`{command}` ended with {done.returncode}: {said}{self.serial_log}")

    def qmp(self, command: str) -> None:
        """Tell QEMU something: `system_reset`, `system_powerdown`, `quit`."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(30)
            link.connect(str(self.state / "qmp.sock"))
            with link.makefile("rw", encoding="utf-8") as stream:
                json.loads(stream.readline())
                for word in ("qmp_capabilities", command):
                    stream.write(json.dumps({"execute": word}) + "\n")
                    stream.flush()
                    while "return" not in (answer := json.loads(stream.readline())):
                        if "error" in answer:
                            raise RuntimeError(f"QEMU: {answer['error']}")

    def drop_connection(self) -> None:
        """Close the shared ssh connection, which a reboot makes useless."""
        subprocess.run(
            self.ssh_argv("-O", "exit"), check=False, stderr=subprocess.DEVNULL, timeout=30
        )

    def stop(self) -> None:
        """End QEMU at once; the state folder stays."""
        if (self.state / "port").exists():
            self.drop_connection()
        pid = self.pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            while self.pid() is not None:
                time.sleep(0.05)

    def remove(self) -> None:
        """End QEMU and remove all that the machine was."""
        self.stop()
        shutil.rmtree(self.state, ignore_errors=True)


def start_detached(argv: Sequence[str], log: IO[bytes]) -> int:
    """Start a program that may outlive this process; return its pid.

    A thread takes its exit, for as long as this process lives: nobody meets a zombie.
    """
    process = subprocess.Popen(
        argv,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    threading.Thread(target=process.wait, daemon=True).start()
    return process.pid


def fingerprint(name: str) -> list[Any]:
    """Return what tells whether a file of the checkout changed."""
    seen = os.lstat(ROOT / name)
    return [seen.st_mtime_ns, seen.st_size, seen.st_mode]


def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Give a file of the checkout to the guest's root."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
