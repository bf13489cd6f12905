"""Start `axernd` in a process without OpenSSL, which `asyncio` loads wherever it can be had.

The daemon speaks over a unix socket only: it would be 4 MiB of memory, and time of each start.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the daemon until it is told to stop; the process's exit status says how it went."""
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]  # None is "there is no such one"
    from axern.daemon.main import main as serve

    serve()


if __name__ == "__main__":
    main()
