"""See how many seeded faults the tests of the ledger find: `python -m tests.mutation [WORD ...]`.

Words choose faults: an area, a file, or a part of what they break; without any all are tried.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.mutation.catalogue import AREAS, ROOT
from tests.mutation.fault import Fault
from tests.mutation.trial import SURVIVED, Copy, Outcome

LEAST_SHARE = 0.95


def main(words: list[str]) -> int:
    """Try the chosen faults out, print what came of each, and return 1 if too many survive."""
    counts: Counter[bool] = Counter()
    with tempfile.TemporaryDirectory(prefix="axern-mutation-") as folder:
        copy = Copy(ROOT, Path(folder) / "tree")
        for name, area in AREAS.items():
            chosen = [fault for fault in area.faults if _is_meant(name, fault, words)]
            if not chosen:
                continue
            _tell(whole := copy.run(area.tests), f"{name}  no fault")
            if whole.verdict != SURVIVED:
                return 1
            for fault in chosen:
                outcome = copy.try_out(fault, area.tests)
                counts[outcome.verdict != SURVIVED] += 1
                _tell(outcome, f"{name}  {fault.file}  {fault.breaks}")
    sys.stdout.write(f"{counts[True]} of {counts.total()} caught\n")
    return 0 if counts[True] >= LEAST_SHARE * counts.total() else 1


def _is_meant(area: str, fault: Fault, words: list[str]) -> bool:
    return all(word in f"{area} {fault.file} {fault.breaks}" for word in words)


def _tell(outcome: Outcome, what: str) -> None:
    sys.stdout.write(f"{outcome.verdict:8} {outcome.wall_s:6.1f} s  {what}\n")
    sys.stdout.write(f"{'':19}{outcome.words[:140]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
