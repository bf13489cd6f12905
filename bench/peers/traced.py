"""Becomes the daemon, and notes when each step of a launch and a burial is passed.

The places are those at which crash tests let the daemon die: each name is the moment right after
its step. usage: python -m bench.peers.traced PYTHON -m axern.daemon ARGUMENTS, with TRACE
naming the file to write to.
"""

import os
import sys
import time
from typing import Any

VARIABLE = "AXERN_BENCH_TRACE"
REQUEST = "request"
"""The moment at which the request of a run has been read."""


def main() -> None:
    """Put the notes in, before anything imports what they stand for, and be the daemon."""
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(name: str) -> None:
        os.write(descriptor, f"{name} {time.monotonic_ns()}\n".encode())

    from axern import failpoint

    failpoint.failpoint = note
    from axern.daemon import main as daemon
    from axern.daemon.run_service import RunService

    run = RunService.run

    async def noted(service: RunService, *arguments: Any) -> Any:
        note(REQUEST)
        return await run(service, *arguments)

    RunService.run = noted  # type: ignore[assignment, method-assign]
    sys.argv = sys.argv[3:]
    daemon.main()


if __name__ == "__main__":
    main()
