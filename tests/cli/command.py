"""Run the command line as users do: a process of its own, with real descriptors."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

TIMEOUT_S = 60


@dataclass(frozen=True)
class Axern:
    """The command line with its global options set."""

    options: tuple[str, ...]

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "axern", *self.options, *words]

    def run(self, *words: str, **settings: Any) -> subprocess.CompletedProcess[bytes]:
        settings = {"stdin": subprocess.DEVNULL, "timeout": TIMEOUT_S} | settings
        if "stdout" not in settings:
            settings["capture_output"] = True
        done = subprocess.run(self.argv(*words), check=False, **settings)
        return cast("subprocess.CompletedProcess[bytes]", done)

    @contextlib.contextmanager
    def start(self, *words: str, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Yield the running command; it does not outlive the block."""
        settings = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        } | settings
        process = cast("subprocess.Popen[bytes]", subprocess.Popen(self.argv(*words), **settings))
        try:
            yield process
        finally:
            process.kill()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()

    def json(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.returncode == 0, done
        return json.loads(done.stdout)


def plain_environment(**variables: str) -> dict[str, str]:
    """Return this environment without what changes how tables look, and with *variables*."""
    kept = {
        name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS"}
    }
    return kept | variables
