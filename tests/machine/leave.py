"""Start sandboxes that the end of this boot will meet alive, and note them: the job calls it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tests.machine.service import detach, run_of


def main(note: Path) -> None:
    """Start one sandbox with each runtime and write what must be found after the boot to *note*."""
    ids = [detach(runtime, "sh", "-c", "sleep 100000") for runtime in ("runc", "runsc")]
    for run_id in ids:
        while run_of(run_id)["status"] != "running":
            time.sleep(0.2)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with open(note, "w", encoding="utf-8") as file:
        file.write(json.dumps({"boot_id": boot_id, "runs": ids}))
        file.flush()
        os.fsync(file.fileno())  # it must outlive a power cut, which lost it once


if __name__ == "__main__":
    main(Path(sys.argv[1]))
