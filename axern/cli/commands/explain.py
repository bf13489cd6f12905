"""`axern explain`: what `axern run` with the same flags would be told."""

from __future__ import annotations

from axern.cli.commands.run import ASKED
from axern.cli.grammar import Argument, Command

EXPLAIN = Command(
    "explain",
    "say whether a run would be admitted, and if not, why",
    detail="Takes the flags of `axern run`, and changes nothing: every gate that says no with its "
    "numbers, who holds what is short, what would make it fit, and when it fits by itself. Exits "
    "with 0 if it fits, 3 if the node refuses, 4 if the namespace does.",
    example="axern explain --request-memory 64GiB",
    action="axern.cli.actions.explain:explain",
    arguments=(Argument("command", "COMMAND…", "as for axern run", rest=True, required=False),),
    options=ASKED,
)
