"""What the commands about templates do: list, show, import with progress, remove."""

from __future__ import annotations

import contextlib
import os
import time

from axern.cli.interrupt import INTERRUPTED
from axern.cli.output import STDERR, counted, put, put_fields, put_json, say
from axern.cli.table import Column, put_list
from axern.cli.when import age
from axern.errors import ProtocolError
from ledger.errors import AxernError, InvalidArgument
from ledger.units import format_bytes, format_short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]


_TEMPLATES = "/v2/templates"
_IMAGE_KINDS = ("oci", "docker-archive")
_IN_NAMES = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")
_QUIET_S = 10.0
"""Where nobody watches, a step that takes longer than this says how far it is."""
_STEPS = {
    "copy": "copying",
    "read": "reading the image",
    "unpack": "unpacking",
    "check": "checking",
    "sync": "writing to the disk",
}


class ImportRefused(AxernError):
    """The daemon did not import it; `error` is its structure."""

    def __init__(self, error: Json) -> None:
        super().__init__(str(error["message"]), hint=error.get("hint"))
        self.error = error
        self.code = str(error["code"])


def list_all(where: Where, *, output: str) -> None:
    """Show the root file systems that a run may name."""
    with where.reach() as client:
        answer = client.request("GET", _TEMPLATES)
    header = (
        "NAME",
        Column("RUNS", right=True),
        Column("SIZE", rank=1, right=True),
        Column("ENTRIES", rank=3, right=True),
        Column("AGE", rank=2),
        Column("SOURCE", "cut", least=20, rank=4),
        Column("PATH", "cut", least=20, rank=5),
    )
    put_list(answer, "templates", output, header, _line)


def _line(entry: Json) -> list[object]:
    return [
        entry["name"],
        entry["users"],
        _size(entry["bytes"]),
        entry["entries"],
        age(entry["created_at"]),
        entry["source"],
        entry["path"],
    ]


def get(where: Where, *, name: str, output: str) -> None:
    """Show one template."""
    with where.reach() as client:
        answer = client.request("GET", _target(name))
    if output == "json":
        put_json(answer)
        return
    entry = answer["template"]
    image = entry["image"] or {}
    put_fields(
        [
            ("name", entry["name"]),
            ("runs", entry["users"]),
            ("size", _size(entry["bytes"])),
            ("entries", entry["entries"]),
            ("left out", _left_out(entry)),
            ("source", entry["source"]),
            ("digest", entry["digest"]),
            ("created", entry["created_at"]),
            ("path", entry["path"]),
            *((f"env {key}", value) for key, value in sorted(entry["env"].items())),
            *((f"image's {key.replace('_', ' ')}", text) for key, text in image.items() if text),
        ]
    )


def add(where: Where, *, name: str, source: str | None, output: str) -> int:
    """Import *source* under *name*, showing how far it is, and return the exit code."""
    if source is None:
        raise InvalidArgument(
            "--from is missing: where shall the template come from?",
            hint="axern template add NAME --from DIR",
        )
    body = {"name": name, "source": parse_source(source)}
    try:
        with where.reach() as client, _progress(quiet=output == "json") as show:
            made = None
            for event in client.events(_TEMPLATES, method="POST", body=body):
                made = _take(event.name, event.data, show) or made
    except KeyboardInterrupt:
        say("axern: interrupted; the import is cancelled, and nothing of it is left")
        return INTERRUPTED
    if made is None:
        raise ProtocolError(
            "the daemon ended the import without a word",
            hint="see its log, and: axern template list",
        )
    if output == "json":
        put_json({"template": made})
        return 0
    put(f"template {made['name']}: {_contents(made)}")
    if made["left_out"]:
        say(f"axern: left out: {_left_out(made)}")
    return 0


def _take(name: str, data: bytes, show: Callable[[Json], None]) -> Json | None:
    """Show a step, or return the template that is done; raises what the daemon refused with."""
    import json

    found: Json = json.loads(data)
    if name == "error":
        raise ImportRefused(found["error"])
    if name == "done":
        made: Json = found["template"]
        return made
    show(found)
    return None


def parse_source(source: str) -> Json:
    """Return the `source` of a request; paths become absolute, as the daemon needs them.

    Raises:
        InvalidArgument: A kind that there is not, or a path that is no UTF-8.
    """
    try:
        source.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("--from: the path must be UTF-8", hint="rename it") from None
    kind, sign, rest = source.partition(":")
    if sign and kind in _IMAGE_KINDS:
        path, _, reference = rest.partition(":")
        if not path:
            raise InvalidArgument(f"--from: a path is missing behind {kind}:")
        return {"kind": kind, "path": os.path.abspath(path), "reference": reference or None}
    if sign and rest.startswith("//"):
        raise InvalidArgument(
            f"--from: nothing is downloaded, so that {kind}: is no source",
            hint=f"fetch it first: skopeo copy {source} oci:DIR:TAG",
        )
    if not source:
        raise InvalidArgument("--from: a path is missing")
    return {"kind": "dir", "path": os.path.abspath(source), "reference": None}


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[Json], None]]:
    """Yield what shows a step: a live line on a terminal, now and then a line elsewhere."""
    if quiet:
        yield lambda _: None
    elif os.isatty(STDERR):
        yield from _live()
    else:
        yield _Lines().show


def _live() -> Iterator[Callable[[Json], None]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("importing")
        yield lambda step: progress.update(task, description=_told(step))


class _Lines:
    """Says each step once, and again when it takes long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step = ""
        self._again_at_s = 0.0

    def show(self, step: Json) -> None:
        """Say *step* if that is due."""
        now_s = self._clock()
        if step["step"] != self._step or now_s >= self._again_at_s:
            self._step, self._again_at_s = step["step"], now_s + _QUIET_S
            say(f"axern: {_told(step)}")


def _told(step: Json) -> str:
    what = _STEPS.get(step["step"], str(step["step"]))
    if not step["entries"] and not step["bytes"]:
        return what
    return f"{what}: {_contents(step)}"


def _contents(entry: Json) -> str:
    return f"{counted(entry['entries'], 'entry', 'entries')}, {_size(entry['bytes'])}"


def remove(where: Where, *, name: str, output: str) -> None:
    """Remove a template."""
    with where.reach() as client:
        answer = client.request("DELETE", _target(name))
    if output == "json":
        put_json(answer)
    else:
        put(f"template {answer['template']['name']} removed")


def _target(name: str) -> str:
    if not name or not set(name) <= _IN_NAMES:
        raise InvalidArgument(
            f"{name!r} is no template's name: a-z, 0-9, '.', '_' and '-' may be in one",
            hint="axern template list shows all",
        )
    return f"{_TEMPLATES}/{name}"


def _size(amount_bytes: int | None) -> str | None:
    return None if amount_bytes is None else format_short(amount_bytes, format_bytes)


def _left_out(entry: Json) -> str:
    return ", ".join(f"{count} {what}" for what, count in entry["left_out"].items())
