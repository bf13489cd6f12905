"""`axern namespace`, `axern quota` and `axern claim`: who may hold how much, and is promised it."""

from __future__ import annotations

from axern.cli.commands.common import LIST_OUTPUT, ONLY_NAMESPACE, OUTPUT
from axern.cli.grammar import Argument, Command, Group, Option, choice, flag, integer, text
from ledger.dimensions import DIMENSIONS, Dimension
from ledger.units import parse_cpu_milli

LIMITED = ("cpu_milli", "memory_bytes", "ephemeral_storage_bytes")
RANGED = (*LIMITED, "gpu_memory_bytes")
DEFAULTED = (
    ("default_requests", "default-request", LIMITED[:2]),
    ("default_limits", "default-limit", LIMITED[2:]),
)
"""Fields of a namespace, the beginning of their flags, and their dimensions."""


class Bound:
    """One flag by which a namespace is bounded: `field` and `dimension` say what of it."""

    __slots__ = ("dimension", "field", "flag", "parameter")

    def __init__(self, field: str, word: str, dimension: Dimension) -> None:
        self.field = field
        self.dimension = dimension
        self.flag = f"--{word}-{dimension.flag}"
        self.parameter = self.flag.removeprefix("--").replace("-", "_")


def _bounds(field: str, word: str, names: tuple[str, ...]) -> list[Bound]:
    return [Bound(field, word, each) for each in DIMENSIONS if each.name in names]


BOUNDS = (
    *(bound for row in DEFAULTED for bound in _bounds(*row)),
    *_bounds("minimum", "min", RANGED),
    *_bounds("maximum", "max", RANGED),
    *_bounds("ratios", "max-ratio", LIMITED),
)
"""Every flag of `axern namespace update`."""
_SAID = {
    "default_requests": "{} of whoever asks for none",
    "default_limits": "limit on {} of whoever gives none",
    "minimum": "least {} of one request",
    "maximum": "most {} of one request or limit",
    "ratios": "how many times its request a limit on {} may be",
}


def _metavar(dimension: Dimension) -> str:
    if dimension.parse is parse_cpu_milli:
        return "CORES"
    return "BYTES" if dimension.name.endswith("_bytes") else "NUMBER"


def _bound_option(bound: Bound) -> Option:
    metavar = "RATIO" if bound.field == "ratios" else _metavar(bound.dimension)
    return text(bound.flag, metavar, _SAID[bound.field].format(bound.dimension.label))


def _amounts(words: str) -> tuple[Option, ...]:
    return tuple(
        text(f"--{each.flag}", _metavar(each), words.format(each.label)) for each in DIMENSIONS
    )


_NAME = Argument("name", "NAME", "name of the namespace", source="namespaces")
_OF = text(
    "--namespace", "NAME", "whose; default where not given", default="default", source="namespaces"
)
_CLAIM_ID = Argument("claim_id", "ID", "id, or a unique beginning of it", source="claims")
_MODE = "refuse what exceeds it (hard), or tell of it (advisory)"
_ACTIONS = "axern.cli.actions.namespaces"

NAMESPACE = Group(
    "namespace",
    "make, bound and delete namespaces",
    detail="All may look, only root changes anything. With the daemon down, list and get read the "
    "ledger's files.",
    example="axern namespace list",
    commands=(
        Command(
            "create",
            "make a namespace",
            detail="One that is there already stays as it is.",
            example="axern namespace create team-a",
            action=f"{_ACTIONS}:create",
            arguments=(Argument("name", "NAME", "1 to 63 of a-z, 0-9 and '-'"),),
            options=(OUTPUT,),
        ),
        Command(
            "list",
            "list the namespaces",
            example="axern namespace list",
            action=f"{_ACTIONS}:list_all",
            options=(LIST_OUTPUT,),
        ),
        Command(
            "get",
            "show a namespace, and what one request in it may be",
            example="axern namespace get team-a",
            action=f"{_ACTIONS}:get",
            arguments=(_NAME,),
            options=(OUTPUT,),
        ),
        Command(
            "update",
            "change what one request may be",
            detail="Changes what is named; none takes a bound away. What a request leaves out "
            "always ends inside the bounds, what it says outside of them is refused.",
            example="axern namespace update team-a --max-memory 8GiB",
            action=f"{_ACTIONS}:update",
            arguments=(_NAME,),
            options=(*map(_bound_option, BOUNDS), OUTPUT),
        ),
        Command(
            "delete",
            "delete a namespace that holds nothing",
            detail="What is left in it is named. Its quota goes with it, its events stay.",
            example="axern namespace delete team-a",
            action=f"{_ACTIONS}:delete",
            arguments=(_NAME,),
            options=(OUTPUT,),
        ),
    ),
)
QUOTA = Group(
    "quota",
    "bound the sum of what a namespace requests",
    detail="All may look, only root changes anything. With the daemon down, get and list read the "
    "ledger's files.",
    example="axern quota get --namespace team-a",
    commands=(
        Command(
            "get",
            "show ceilings, and how much is in use",
            example="axern quota get --namespace team-a",
            action="axern.cli.actions.quotas:get",
            options=(_OF, OUTPUT),
        ),
        Command(
            "list",
            "list the quotas",
            example="axern quota list --pressure",
            action="axern.cli.actions.quotas:list_all",
            options=(
                flag("--constrained", "only those with a ceiling"),
                flag("--pressure", "only those that use 80 % of a ceiling or more"),
                LIST_OUTPUT,
            ),
        ),
        Command(
            "set",
            "change the ceilings that are named",
            detail="unlimited takes one away. What runs is not touched: what is new waits "
            "until the namespace is below its ceilings.",
            example="axern quota set --namespace team-a --cpu 16 --memory 64GiB",
            action="axern.cli.actions.quotas:set_ceilings",
            options=(_OF, *_amounts("most {} of all its requests, or unlimited"), OUTPUT),
        ),
        Command(
            "unset",
            "take every ceiling away",
            example="axern quota unset --namespace team-a",
            action="axern.cli.actions.quotas:unset",
            options=(_OF, OUTPUT),
        ),
        Command(
            "events",
            "list what a namespace was refused",
            detail="Newest first, for seven days, also of a namespace that is gone. What is "
            "repeated often is counted.",
            example="axern quota events --namespace team-a",
            action="axern.cli.actions.quotas:events",
            options=(
                _OF,
                integer("--limit -n", "NUMBER", "at most so many", minimum=1),
                LIST_OUTPUT,
            ),
        ),
    ),
)
CLAIM = Group(
    "claim",
    "guarantee capacity to a namespace",
    detail="A claim is a floor that nobody else gets, and a ceiling. A namespace has one at most. "
    "All may look, only root changes anything.",
    example="axern claim list",
    commands=(
        Command(
            "create",
            "set capacity aside for a namespace",
            detail="What the namespace holds already counts. Refused where the node has not so "
            "much. What is not named has neither floor nor ceiling.",
            example="axern claim create --namespace team-a --cpu 8 --memory 32GiB",
            action="axern.cli.actions.claims:create",
            options=(
                _OF,
                *_amounts("{} to claim"),
                choice("--mode", ("hard", "advisory"), _MODE, default="hard"),
                text("--ttl", "DURATION", "give it up then, or none; a day where not given"),
                OUTPUT,
            ),
        ),
        Command(
            "list",
            "list the claims",
            example="axern claim list",
            action="axern.cli.actions.claims:list_all",
            options=(ONLY_NAMESPACE, LIST_OUTPUT),
        ),
        Command(
            "get",
            "show a claim, and what is drawn from it",
            example="axern claim get 4f1c",
            action="axern.cli.actions.claims:get",
            arguments=(_CLAIM_ID,),
            options=(OUTPUT,),
        ),
        Command(
            "update",
            "let a claim grow, shrink or last longer",
            detail="Changes what is named; 0 takes a dimension out. It grows into what is free, "
            "and shrinks down to what is drawn.",
            example="axern claim update 4f1c --cpu 12 --ttl 7d",
            action="axern.cli.actions.claims:update",
            arguments=(_CLAIM_ID,),
            options=(
                *_amounts("{} to claim; 0 for none"),
                choice("--mode", ("hard", "advisory"), _MODE),
                text("--ttl", "DURATION", "give it up so long from now, or none"),
                OUTPUT,
            ),
        ),
        Command(
            "release",
            "give a claim up; what runs goes on",
            example="axern claim release 4f1c",
            action="axern.cli.actions.claims:release",
            arguments=(_CLAIM_ID,),
            options=(OUTPUT,),
        ),
    ),
)
