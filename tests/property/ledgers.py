"""Random ledgers on real files, and what was acknowledged of them at each generation."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from ledger import contents
from ledger.capacity import node_of
from ledger.errors import AxernError, InvalidArgument
from ledger.files import Folder
from ledger.journal import segments
from ledger.postings import change
from ledger.resources import OptionalResources, Resources
from ledger.staging import Operation
from ledger.state import Change, Put, State
from ledger.store import Ledger
from ledger.tables import NAMESPACES, Namespace, Node
from ledger.transitions import observe_node
from tests.faults import lives
from tests.property.walk import DEVICES, KINDS, MOST, OPERATIONS, SPACES, Step
from tests.unit.ledger.samples import NOW, later

SEGMENT_BYTES = 16_384
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens to a ledger: its node, its operations, and checkpoints behind some of them.

    `rotates` says of each checkpoint whether a new segment begins with it.
    """

    node: Node
    steps: list[Step]
    checkpoints: dict[int, bool]
    ends_cleanly: bool


@dataclass(slots=True)
class Life:
    """A ledger that was made: `digests` has that of its rows at each generation."""

    path: Path
    digests: dict[int, str] = field(default_factory=dict)
    grants: int = 0


def plan_of(chance: random.Random) -> Plan:
    """Return the life of a small ledger, made by *chance*.

    Hypothesis draws the seed alone: what it would draw is large, and takes longer than the tests.
    """
    most = MOST.amounts()
    drawn = [
        Step(
            chance.choice(KINDS),
            chance.randrange(32),
            chance.choice(SPACES),
            Resources(*(chance.randint(0, amount) for amount in most)),
            chance.random() < _HALF,
            OptionalResources(*(chance.choice((None, amount)) for amount in most)),
            _node(chance),
        )
        for _ in range(chance.randint(0, 30))
    ]
    checkpoints = {
        chance.randrange(30): chance.random() < _HALF for _ in range(chance.randrange(4))
    }
    return Plan(_node(chance), drawn, checkpoints, chance.random() < _HALF)


def _node(chance: random.Random) -> Node:
    sizes = [chance.randint(0, 3 * amount) for amount in MOST.amounts()]
    host = replace(Resources(*sizes), gpu_memory_bytes=0)
    gpus = tuple((device, chance.randint(1, 16)) for device in DEVICES[: chance.randrange(3)])
    return node_of(host, Resources(10, 1, 1, 0, 0), chance.choice(["1", "1.5", "0.9"]), gpus)


@contextlib.contextmanager
def living(chance: random.Random) -> Iterator[Life]:
    """Yield a ledger that has lived by *chance*, in a folder that goes with the block."""
    root = Path(mkdtemp(prefix="axern-", dir=lives.MEMORY))
    try:
        life = Life(root / "ledger")
        _live(plan_of(chance), life)
        yield life
    finally:
        shutil.rmtree(root)


def _live(plan: Plan, life: Life) -> None:
    ledger = Ledger.open(life.path, NOW, node_id="node-a", segment_bytes=SEGMENT_BYTES)
    note(ledger, life)
    ledger.commit(lambda view: observe_node(view, plan.node), NOW)
    note(ledger, life)
    for name in SPACES[1:]:
        row = Namespace(name)
        ledger.commit(partial(put_namespace, row=row), NOW)
        note(ledger, life)
    for number, step in enumerate(plan.steps):
        with contextlib.suppress(AxernError):
            ledger.commit(_operation(step, number, life), later(NOW, number / 100))
            note(ledger, life)
        if number in plan.checkpoints:
            ledger.checkpoint(rotate=plan.checkpoints[number])
    ledger.close(checkpoint=plan.ends_cleanly)


def put_namespace(view: State, row: Namespace) -> Change:
    """Return the change that makes a namespace."""
    return change(view, "namespace", (Put(NAMESPACES, row.name, row),))


def _operation(step: Step, number: int, life: Life) -> Operation:
    def operation(view: State) -> Change:
        made = OPERATIONS[step.kind](view, step, number)
        if made is None:
            raise InvalidArgument("nothing to do it to")
        life.grants += made.operation == "reserve" and bool(made.puts)
        return made

    return operation


def note(ledger: Ledger, life: Life) -> None:
    """Remember what was acknowledged last."""
    life.digests[ledger.generation] = state_digest(ledger.state)


def state_digest(state: State) -> str:
    """Return the digest of *state*, as that of files is made."""
    rows = {table: dict(found) for table, found in state.all_rows().items()}
    return contents.digest(contents.Contents(rows, state.generation, state.balances()))


def digest_of(path: Path) -> str:
    """Return the digest of what the files in *path* say."""
    folder = Folder(str(path))
    try:
        return contents.digest(contents.read(folder).contents)
    finally:
        folder.close()


def lines_by_generation(path: Path) -> dict[int, tuple[Path, bytes]]:
    """Return each acknowledged line and the file that it is in."""
    found: dict[int, tuple[Path, bytes]] = {}
    for place in (path / "archive", path):
        if not place.exists():
            continue
        folder = Folder(str(place))
        try:
            names = segments(folder)
        finally:
            folder.close()
        for first, name in names.items():
            lines = [each for each in (place / name).read_bytes().split(b"\n") if each[:1] == b"{"]
            for number, line in enumerate(lines):
                found[first + number] = (place / name, line + b"\n")
    return found
