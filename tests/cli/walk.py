"""Walk a page as its reader would: type every command, and compare what is shown.

In a block marked `console`, a line that begins with `$ ` is typed into one shell for the whole
page; the lines below it are what the terminal shows then. `…` stands for any text in a line, and
alone on a line for any number of lines. A command that ends in `# …` has a comment for readers.
"""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY = "…"
PROMPT = "$ "
TIMEOUT_S = 120.0
LEAVE_S = 30.0
PATIENCE_S = 20.0
"""How long a daemon may take to answer after it was started in the background, or a run to say what
it has to say: a reader looks again."""
LOOKS = re.compile(r"(sudo )?axern (run (get|list|logs)|reservations|node) ?")
"""Commands that only look at what goes on in the background."""


@dataclass(frozen=True)
class Step:
    """One command of a page, where it stands, and what its reader is told to expect."""

    line: int
    command: str
    expected: tuple[str, ...]


def steps(page: str) -> Iterator[Step]:
    """Yield every command of *page* in its order."""
    for block in BLOCK.finditer(page):
        line = page.count("\n", 0, block.start(1)) + 1
        found: list[tuple[int, list[str], list[str]]] = []
        for number, text in enumerate(block[1].splitlines(), line):
            if text.startswith(PROMPT):
                found.append((number, [text.removeprefix(PROMPT)], []))
            elif found and found[-1][1][-1].endswith("\\") and not found[-1][2]:
                found[-1][1].append(text)
            elif found:
                found[-1][2].append(text)
        for number, command, expected in found:
            yield Step(number, "\n".join(command), tuple(expected))


def matches(expected: tuple[str, ...], seen: list[str]) -> bool:
    """Tell whether the lines *seen* are those *expected*."""
    pattern = "\n".join(
        r"(?:[^\n]*(?:\n|$))*?" if line == ANY else _line_pattern(line) for line in expected
    ).replace("*?\n", "*?")
    return re.fullmatch(pattern, "\n".join(seen)) is not None


def _line_pattern(line: str) -> str:
    return "[^\n]*".join(re.escape(part) for part in line.split(ANY))


@dataclass
class Shell:
    """A shell that is typed into; it ends with the block."""

    argv: list[str]
    folder: str
    environment: dict[str, str]
    process: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        """End the shell and whatever it left in the background."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        deadline = time.monotonic() + LEAVE_S
        number: int = signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.killpg(self.process.pid, number)
                number = signal.SIGKILL if time.monotonic() > deadline else 0
                self.process.poll()
                time.sleep(0.02)
        self.process.stdout.close()

    def type(self, command: str) -> list[str]:
        """Return the lines that *command* shows until the shell has its prompt again."""
        mark = f"-- {os.urandom(8).hex()} --"
        assert self.process.stdin is not None
        # `:` keeps $? what it was; the mark stands on a line of its own whatever was written.
        text = f"{command}\nkept=$?; printf '\\n%s\\n' '{mark}'; (exit $kept)\n"
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()
        seen = self._until(mark.encode() + b"\n").decode(errors="replace")
        lines = seen.removesuffix("\n").removesuffix("\n").split("\n")
        return [] if lines == [""] else lines

    def _until(self, mark: bytes) -> bytes:
        assert self.process.stdout is not None
        seen = bytearray()
        deadline = time.monotonic() + TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while mark not in seen:
                assert selector.select(deadline - time.monotonic()), bytes(seen)
                data = os.read(self.process.stdout.fileno(), 65536)
                assert data, bytes(seen)
                seen += data
        return bytes(seen.partition(mark)[0])


def walk(page: str, shell: Shell) -> list[str]:
    """Type every command of *page*; return a line for each that showed something else."""
    wrong = []
    for step in steps(page):
        deadline = time.monotonic() + PATIENCE_S
        seen = shell.type(step.command)
        while (
            not matches(step.expected, seen)
            and (LOOKS.match(step.command) or any("[daemon_unreachable]" in line for line in seen))
            and time.monotonic() < deadline
        ):
            seen = shell.type(step.command)
        if not matches(step.expected, seen):
            wrong.append(f"line {step.line}: {step.command}\n  " + "\n  ".join(seen))
    return wrong
