"""The program that imports one template: `python -m axern.runtime.template_import`.

It is a child of the daemon, so that what a stranger made is parsed outside the daemon, in a jail,
under limits, and can be killed at any moment. The job is one line of JSON on standard input; that
input's end, which a dead daemon causes too, ends everything at once. What it has done so far, and
at last what came of it, are lines of JSON on standard output.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any

from axern.errors import HostFull, TemplateRefused
from axern.host import filestore, jail, linux
from axern.runtime import template_image
from axern.runtime.template import RECORD
from axern.runtime.template_meter import Limits, Meter
from axern.runtime.template_tree import shown, take_over
from ledger.errors import AxernError

DIRECTORY = "dir"
_ADDRESS_SPACE_BYTES = 4 * 1024**3
"""Of each process; skopeo and umoci take some hundred MiB."""
_NICE = 10
_PATIENCE_S = 10.0
"""How long past its time the import may go on before it is killed, whatever it does."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to import: `kind` is dir, oci or docker-archive; `hidden` is the mount of sandboxes."""

    staging: str
    hidden: str
    kind: str
    path: str
    reference: str
    created_wall_ms: int
    limits: Limits

    @property
    def source(self) -> str:
        """Return the source as people write it."""
        reference = f":{self.reference}" if self.reference else ""
        return self.path if self.kind == DIRECTORY else f"{self.kind}:{self.path}{reference}"

    def encode(self) -> bytes:
        """Return the line that `decode` reads."""
        limits = {name: getattr(self.limits, name) for name in Limits.__slots__}
        own = {name: getattr(self, name) for name in Job.__slots__ if name != "limits"}
        return json.dumps({**own, "limits": limits}).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Job:
        """Return the job in *line*."""
        fields = json.loads(line)
        return cls(**{**fields, "limits": Limits(**fields["limits"])})


def main() -> int:
    """Do the job on standard input and return the exit code: 0 once it is complete on the disk."""
    job = Job.decode(sys.stdin.buffer.readline())
    os.umask(0o022)
    os.nice(_NICE)
    for limit, value in (
        (resource.RLIMIT_FSIZE, job.limits.max_bytes),
        (resource.RLIMIT_AS, _ADDRESS_SPACE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    try:
        jail.confine(job.staging, job.hidden)
        threading.Thread(target=_die_with_input, args=(job.limits.timeout_s,), daemon=True).start()
        _build(job)
    except AxernError as error:
        _tell({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return 1
    except OSError as error:
        _tell({"error": _describe(error)})
        return 1
    _tell({"done": True})
    return 0


def _die_with_input(timeout_s: float) -> None:
    """Kill this process and what it started once the input ends or its time is long over."""
    select.select([sys.stdin.fileno()], [], [], timeout_s + _PATIENCE_S)
    os.killpg(0, signal.SIGKILL)


def _build(job: Job) -> None:
    """Fill the staging folder: the root file system and the record of it."""
    meter = Meter(job.staging, job.limits, _tell)
    rootfs = f"{job.staging}/rootfs"
    image = None
    if job.kind == DIRECTORY:
        meter.begin("copy")
        take_over(job.path, rootfs, meter, moves=False)
    else:
        unpacked = f"{job.staging}/unpacked"
        source = job.source
        image = template_image.unpack(source, job.staging, unpacked, meter)
        meter.begin("check")
        take_over(unpacked, rootfs, meter, moves=True)
        filestore.remove_tree(unpacked)
    if not meter.entries:
        raise TemplateRefused("there is nothing in it that a template could hold")
    record = {
        "source": shown(job.source),
        "digest": image.digest if image else None,
        "created_wall_ms": job.created_wall_ms,
        "bytes": meter.written_bytes,
        "entries": meter.entries,
        "left_out": dict(meter.left_out),
        "env": image.env if image else {},
        "image": image.config if image else None,
    }
    with open(f"{job.staging}/{RECORD}", "x", encoding="utf-8") as file:
        json.dump(record, file)
    _tell({"step": "sync", "entries": meter.entries, "bytes": meter.written_bytes})
    descriptor = os.open(job.staging, os.O_RDONLY | os.O_DIRECTORY)
    try:
        linux.syncfs(descriptor)
    finally:
        os.close(descriptor)


def _describe(error: OSError) -> dict[str, str | None]:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = HostFull("the disk of the templates is full", hint="make room and try again")
        return {"code": full.code, "message": full.message, "hint": full.hint}
    place = f"{shown(os.fsdecode(error.filename))}: " if error.filename else ""
    refused = TemplateRefused(f"{place}{error.strerror or error}")
    return {"code": refused.code, "message": refused.message, "hint": None}


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(what).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
