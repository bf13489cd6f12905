"""Drives a service with the compiled load generator: a turn, a filling, a run to a bitter end."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from bench.peers.tools import compile_c

ID = b"@" * 32
"""Stands for an id in a message; the load generator fills it in."""
CPU_MILLI, MEMORY_BYTES, STORAGE_BYTES = 500, 16_384, 4_096
"""What one reservation takes in every peer; small, since a hundred thousand must fit."""
DOCUMENT = "x" * 600
"""What a peer keeps of a reservation: as much as the ledger's journal writes about one."""
BATCH = 64
_MOST_FILLERS = 32
_FULL_AFTER_S = 600


@dataclass(frozen=True, slots=True)
class Target:
    """Where the load generator sends which bytes; ids are `ID` in them."""

    protocol: str
    socket: str
    reserve: bytes
    release: bytes
    greeting: bytes = b""


class Load:
    """The load generator, and a folder for the messages that it sends."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._program = compile_c("loadgen.c", f"{folder}/loadgen")

    def turn(self, target: Target, clients: int, seconds: float) -> Mapping[str, float]:
        """Let *clients* reserve and release for *seconds*; every request must succeed."""
        return self._checked(self.begin(target, clients, seconds))

    def fill(self, target: Target, count: int) -> None:
        """Make *count* reservations that stay."""
        if not count:
            return
        clients = next(n for n in range(_MOST_FILLERS, 0, -1) if count % n == 0)
        self._checked(self.begin(target, clients, 0, hold=count // clients))

    def begin(
        self, target: Target, clients: int, seconds: float, *, hold: int = 0, state: str = ""
    ) -> subprocess.Popen[bytes]:
        """Start *clients*, each with *hold* reservations kept, and return at once.

        *state* names the file that tells in the end what was acknowledged.
        """
        messages = []
        for name in ("greeting", "reserve", "release"):
            path = f"{self._folder}/{name}-{os.getpid()}-{abs(hash(target))}"
            if not os.path.exists(path):
                with open(path, "wb") as file:
                    file.write(getattr(target, name))
            messages.append(path)
        numbers = [str(clients), str(seconds), str(hold)]
        argv = [self._program, target.protocol, target.socket, *numbers, *messages]
        return subprocess.Popen(
            [*argv, *([state] if state else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @staticmethod
    def _checked(process: subprocess.Popen[bytes]) -> Mapping[str, float]:
        figures, complaint = finish(process)
        assert not figures["errors"], complaint
        return figures


def finish(process: subprocess.Popen[bytes]) -> tuple[dict[str, float], str]:
    """Wait for the load generator; return its figures and the first thing that went wrong."""
    output, complaint = process.communicate(timeout=_FULL_AFTER_S)
    assert process.returncode == 0, complaint
    figures: dict[str, float] = json.loads(output)
    return figures, complaint.decode(errors="replace").strip()
