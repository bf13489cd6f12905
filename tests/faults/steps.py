"""Number every step in which a process changes files, and let it die at a chosen one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# The calls by which the ledger changes files. A step is one of them; `open` only when it creates.
CHANGING = (
    "open",
    "pwrite",
    "fsync",
    "fdatasync",
    "rename",
    "link",
    "unlink",
    "ftruncate",
    "mkdir",
)

BEFORE = "before"
HALFWAY = "halfway"
AFTER = "after"

Hook = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """Let *hook* stand in for each call that changes a file: it gets name, call and arguments."""
    originals = {name: getattr(os, name) for name in CHANGING}

    def standing_in(name: str) -> Callable[..., Any]:
        original = originals[name]

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return original(*args, **kwargs)
            return hook(name, original, args, kwargs)

        return stand_in

    for name in CHANGING:
        setattr(os, name, standing_in(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def counted(life: Callable[[], None]) -> list[str]:
    """Return the names of the steps of *life*, in order."""
    steps: list[str] = []

    def count(name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        steps.append(name)
        return call(*args, **kwargs)

    with hooked(count):
        life()
    return steps


def dying(step: int, moment: str) -> Hook:
    """Return a hook that kills the process at *step* (from 0); halfway cuts a write in two."""
    seen = -1

    def die(name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen != step:
            return call(*args, **kwargs)
        try:
            if moment == HALFWAY and name == "pwrite":
                fd, data, offset = args
                call(fd, data[: len(data) // 2], offset)
            elif moment == AFTER:
                call(*args, **kwargs)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    return die


def run_child(life: Callable[[Callable[[str], None]], None], hook: Hook) -> tuple[int, list[str]]:
    """Run *life* in a forked child under *hook*: (wait status, what it told before)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            with hooked(hook):
                life(lambda word: _tell(writing, word))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as pipe:
        words = pipe.read().decode().split()
    _, status = os.waitpid(child, 0)
    return status, words


def _tell(fd: int, word: str) -> None:
    os.write(fd, word.encode() + b"\n")
