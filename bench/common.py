"""What every benchmark shares: interleaved rounds, medians, a table for people, one JSON line."""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

Case = Callable[[], Mapping[str, float]]
"""One turn of one contestant; returns its figures by name."""

QUIET_LOAD = 1.0
"""The load, over a minute, above which figures say more about the neighbours."""
_QUIET_WITHIN_S = 180
_LOOK_EVERY_S = 5


def arguments(module_doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has; the docstring is its help."""
    parser = argparse.ArgumentParser(
        description=module_doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it still run?")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn")
    parser.add_argument(
        "--directory",
        default="/var/tmp",  # noqa: S108 - a folder of its own is made there, and it is no tmpfs
        help="where files go; a disk, no tmpfs (%(default)s)",
    )
    parser.add_argument(
        "--any-load",
        action="store_true",
        help=f"measure also where the load is above {QUIET_LOAD}, with figures nobody can compare",
    )
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options, once the machine is quiet; leave if it does not become so.

    The benchmark before this one may be what it still hears of. --quick takes any load. From now on
    SIGTERM ends the program as Ctrl-C does, so that it leaves no daemon behind.
    """
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    deadline_s = time.monotonic() + _QUIET_WITHIN_S
    while not (options.any_load or options.quick) and (load := os.getloadavg()[0]) > QUIET_LOAD:
        if time.monotonic() > deadline_s:
            parser.exit(75, f"the load is {load:.1f}, above {QUIET_LOAD}: see --any-load\n")
        print(f"\rwaiting for a load of {QUIET_LOAD}: it is {load:.1f} ", end="", file=sys.stderr)
        time.sleep(_LOOK_EVERY_S)
    return options


def interleave(cases: Mapping[str, Case], rounds: int) -> dict[str, dict[str, float]]:
    """Give each case its turn, round after round, and return the median of each figure.

    Whatever else the machine does in the meantime then falls on all of them alike.
    """
    turns: dict[str, list[Mapping[str, float]]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, case in cases.items():
            print(f"\rround {number + 1} of {rounds}: {name:<40}", end="", file=sys.stderr)
            turns[name].append(case())
    print("\r" + " " * 70, end="\r", file=sys.stderr)
    return {
        name: {key: statistics.median(turn[key] for turn in taken) for key in taken[0]}
        for name, taken in turns.items()
    }


def figures(latencies_s: list[float], operations: int, wall_s: float) -> dict[str, float]:
    """Return operations a second, and latencies in microseconds."""
    return {
        "ops_s": operations / wall_s,
        "p50_us": percentile(latencies_s, 50) * 1e6,
        "p99_us": percentile(latencies_s, 99) * 1e6,
        "max_us": max(latencies_s) * 1e6,
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which *percent* of *values* lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(percent / 100 * len(ordered)))]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return *rows* in columns, the first to the left and the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def machine() -> dict[str, object]:
    """Return what a figure means nothing without."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def report(bench: str, figures: Mapping[str, object], ratios: Mapping[str, float]) -> None:
    """Print the one line that a program reads: machine, figures and ratios to the peers."""
    rounded = {name: round(ratio, 3) for name, ratio in ratios.items()}
    line = {"bench": bench, "machine": machine(), "figures": figures, "ratios": rounded}
    print(json.dumps(line))
