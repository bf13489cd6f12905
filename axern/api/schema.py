"""What the body of a request may hold: models and limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)

from axern.config import EXTENSION, NAMESPACE, TEMPLATE_NAME
from ledger.errors import InvalidArgument
from ledger.published import MOST_PORTS, RULE, SPELLED
from ledger.release import LONGEST_REASON
from ledger.resources import DIMENSIONS, OptionalResources
from ledger.spec import ResourceSpec
from ledger.units import MAX_INTEGER

ARGV_ITEMS_LIMIT = 256
ENV_ITEMS_LIMIT = 256
STRING_LIMIT_BYTES = 131_071
TOTAL_LIMIT_BYTES = 128 * 1024 - 4096
"""One string, and all of argv or env: what Linux takes. Source: execve(2), MAX_ARG_STRLEN."""
PATH_LIMIT_BYTES = 4095
LONGEST_MS = 100 * 365 * 86_400_000
"""A century: a deadline beyond the year 9999 could not be shown any more."""
DNS_LABEL = f"^{NAMESPACE}$"
REQUEST_ID = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
LABEL_KEY = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"
LABELS_LIMIT = 64
LABEL_VALUE_LIMIT_BYTES = 256
LONGEST_NAME = 128
LONGEST_TOKEN = 128
USER = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?$"
LARGEST_ID = 65_535
"""A sandbox has ids 0 to 65,535, whatever isolates it."""
IMAGE_REFERENCE = r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,254}$"

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)
_ONE_SLOT = "sandbox_slots"
_SHOWN_LENGTH = 64
"""How much of a name that the client made up an error repeats."""
_OF_A_KEY = "[key]"
"""What pydantic puts behind a key that is at fault itself."""

_RULES = {
    "value_error": "{error}",
    "missing": "it must not be left out",
    "extra_forbidden": "unknown field {name!r}",
    "literal_error": "it must be {expected}",
    "string_pattern_mismatch": "{rule}",
    "string_too_long": "it must have at most {max_length} characters",
    "string_type": "it must be a text",
    "bool_type": "it must be true or false",
    "list_type": "it must be a list",
    "dict_type": "it must be an object",
    "model_type": "it must be an object",
    "too_short": "it must not be empty",
    "too_long": "it must have at most {max_length} items",
    "int_type": "it must be a whole number{unit}{example}",
    "greater_than_equal": "it must be at least {ge}{unit}",
    "less_than_equal": "it must be at most {le}{unit}",
}
"""Our words for pydantic's types of errors."""
_PATTERN_RULES = {
    DNS_LABEL: "it must be 1 to 63 of a-z, 0-9 and '-', with no '-' at either end, "
    "for example team-a",
    TEMPLATE_NAME: "it must be 1 to 63 of a-z, 0-9, '.', '_' and '-', beginning and ending with a "
    "letter or digit, for example python-3.11",
    IMAGE_REFERENCE: "it must be 1 to 255 of letters, digits, '.', '_', '/', ':' and '-', "
    "beginning with a letter or digit, for example 1.2 or team/app:1.2",
    REQUEST_ID: "it must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-', beginning with a "
    "letter or digit, for example build-42",
    EXTENSION: "it must be DOMAIN/NAME or DOMAIN/NAME=VALUE, a name of the DNS with a dot and then "
    "words of letters, digits, '.', '_' and '-', for example example.com/disk=nvme",
    USER: "it must be an id or a name, and after a ':' a group's, for example 1000:1000 or nobody",
    SPELLED: RULE,
    LABEL_KEY: "a label's key must be 1 to 63 of A-Z, a-z, 0-9, '.', '_', '/' and '-', with a "
    "letter or digit at either end, for example team or example.com/job",
}
_UNITS = {
    "ms": (" ms", ", for example 90000"),
    "bytes": (" bytes", ", for example 536870912"),
    "milli": (" milli-cores", ", for example 500"),
}
"""What the ends of names say about the numbers, and an example for who wrote none."""


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("a NUL byte can't be passed to a program")
    if len(text.encode()) > STRING_LIMIT_BYTES:
        raise ValueError(f"one string may have at most {STRING_LIMIT_BYTES} bytes")
    return text


def _command(command: list[str]) -> list[str]:
    if not command[0]:
        raise ValueError("the first item is the program and must not be empty")
    _bounded_total(command)
    return command


def _environment(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not name or "=" in name:
            raise ValueError(
                f"{name[:_SHOWN_LENGTH]!r} is not a variable name: it is empty or contains '='"
            )
    _bounded_total([f"{name}={value}" for name, value in env.items()])
    return env


def _bounded_total(texts: list[str]) -> None:
    total = sum(len(text.encode()) + 1 for text in texts)
    if total > TOTAL_LIMIT_BYTES:
        raise ValueError(f"{total} bytes in all; at most {TOTAL_LIMIT_BYTES} can be passed")


def _user(text: str) -> str:
    for word in text.split(":"):
        if word.isdigit() and int(word) > LARGEST_ID:
            raise ValueError(f"{word} is too large: a sandbox has the ids 0 to {LARGEST_ID}")
    return text


def _label_value(text: str) -> str:
    if len(text.encode()) > LABEL_VALUE_LIMIT_BYTES:
        raise ValueError(f"a label's value may have at most {LABEL_VALUE_LIMIT_BYTES} bytes")
    return _printable(text)


def is_printable(text: str) -> bool:
    """Tell whether *text* can be shown in a table."""
    return text.isprintable()


def _printable(text: str) -> str:
    if not is_printable(text):
        raise ValueError("it must have printable characters only")
    return text


def _absolute(path: str) -> str:
    if not path.startswith("/") or "/../" in f"{path}/":
        raise ValueError("it must be an absolute path without '..'")
    if len(path.encode()) > PATH_LIMIT_BYTES:
        raise ValueError(f"a path may have at most {PATH_LIMIT_BYTES} bytes")
    return path


Text = Annotated[str, AfterValidator(_no_nul)]
Path = Annotated[
    str, Field(max_length=PATH_LIMIT_BYTES), AfterValidator(_no_nul), AfterValidator(_absolute)
]
Label = Annotated[str, Field(pattern=DNS_LABEL)]
TemplateName = Annotated[str, Field(pattern=TEMPLATE_NAME)]
RequestId = Annotated[str, Field(pattern=REQUEST_ID)]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY)]
LabelValue = Annotated[str, AfterValidator(_label_value)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=LABELS_LIMIT)]
LabelFilter = Annotated[dict[LabelKey, LabelValue | None], Field(max_length=LABELS_LIMIT)]
"""A value of null is met by any."""
Extension = Annotated[str, Field(pattern=EXTENSION)]
Milliseconds = Annotated[int, Field(ge=1, le=LONGEST_MS)]

Amounts = create_model(
    "Amounts",
    __config__=_STRICT,
    __doc__="Amounts by dimension; what is left out takes its default.",
    **{
        dimension.name: (
            Annotated[int, Field(ge=0, le=MAX_INTEGER)] | None,
            Field(None, description=f"{dimension.label} in the unit that the name ends with"),
        )
        for dimension in DIMENSIONS
        if dimension.name != _ONE_SLOT
    },  # type: ignore[call-overload]  # the fields are listed once, in ledger.resources
)


class Body(BaseModel):
    """A request's body: every field known, of exactly its type."""

    model_config = _STRICT

    def document(self) -> dict[str, Any]:
        """Return all that was asked for, with what was left out, as JSON has it."""
        return self.model_dump(mode="json")


class Demanding(Body):
    """What every request for resources has."""

    request_id: RequestId | None = None
    namespace: Label = "default"
    requests: Amounts = Field(default_factory=Amounts)  # type: ignore[valid-type]
    limits: Amounts = Field(default_factory=Amounts)  # type: ignore[valid-type]
    ttl_ms: Milliseconds | None = None

    def spec(self) -> ResourceSpec:
        """Return the resources as the ledger's value."""
        return ResourceSpec(
            OptionalResources(**vars(self.requests)), OptionalResources(**vars(self.limits))
        )


Published = Annotated[str, Field(pattern=SPELLED)]


class Waiting(Demanding):
    """What may wait where there is no room, and how urgently."""

    wait_for_capacity_ms: Milliseconds | None = None
    priority: Annotated[int, Field(ge=0, le=9)] | None = None

    def document(self) -> dict[str, Any]:
        """Return all that was asked for; what came later, and was left out, is not in it."""
        later = ("wait_for_capacity_ms", "priority", "parent")
        left_out = {name for name in later if getattr(self, name, None) is None}
        return self.model_dump(mode="json", exclude=left_out)


class RunRequest(Waiting):
    """Run one command in a sandbox."""

    command: Annotated[
        list[Text],
        Field(min_length=1, max_length=ARGV_ITEMS_LIMIT),
        AfterValidator(_command),
    ]
    env: Annotated[
        dict[Text, Text], Field(max_length=ENV_ITEMS_LIMIT), AfterValidator(_environment)
    ] = Field(default_factory=dict)
    cwd: Path = "/"
    template: TemplateName | None = None
    rootfs: Path | None = None
    rootfs_readonly: bool = False
    runtime_class: Literal["runsc", "runc"] | None = None
    user: Annotated[str, Field(pattern=USER), AfterValidator(_user)] | None = None
    labels: Labels = Field(default_factory=dict)
    timeout_ms: Milliseconds | None = None
    stdin: bool = False
    oom_kill_one: bool = False
    require: Annotated[list[Extension], Field(max_length=LABELS_LIMIT)] = Field(
        default_factory=list
    )
    network: Literal["none", "bridge", "host"] = "none"
    publish: Annotated[list[Published], Field(max_length=MOST_PORTS)] = Field(default_factory=list)


class TerminalSize(Body):
    """The size of a terminal, in characters."""

    rows: Annotated[int, Field(ge=1, le=LARGEST_ID)]
    columns: Annotated[int, Field(ge=1, le=LARGEST_ID)]


class ExecRequest(Body):
    """Add a process to a running sandbox; what is left out is as its first process has it."""

    command: Annotated[
        list[Text],
        Field(min_length=1, max_length=ARGV_ITEMS_LIMIT),
        AfterValidator(_command),
    ]
    env: Annotated[
        dict[Text, Text], Field(max_length=ENV_ITEMS_LIMIT), AfterValidator(_environment)
    ] = Field(default_factory=dict)
    cwd: Path | None = None
    user: Annotated[str, Field(pattern=USER), AfterValidator(_user)] | None = None
    kind: Literal["exec", "copy"] = "exec"
    stdin: bool = False
    terminal: TerminalSize | None = None


class SignalRequest(Body):
    """Send a process a signal, by its name without SIG."""

    signal: Literal["HUP", "INT", "QUIT", "KILL", "TERM", "USR1", "USR2"]


class ExplainRequest(RunRequest):
    """Ask how a run would be decided on; its command, which decides nothing, may be left out."""

    command: Annotated[
        list[Text],
        Field(min_length=1, max_length=ARGV_ITEMS_LIMIT),
        AfterValidator(_command),
    ] = Field(default_factory=list)


class PruneRequest(Body):
    """Remove runs that have ended: one's own, or those of all users; those that agree with all."""

    older_than_ms: Annotated[int, Field(ge=0, le=LONGEST_MS)] = 0
    namespace: Label | None = None
    statuses: Annotated[list[Literal["succeeded", "failed", "cancelled"]], Field(max_length=3)] = (
        Field(default_factory=list)
    )
    labels: LabelFilter = Field(default_factory=dict)
    all_users: bool = False
    dry_run: bool = False


class OwnerProcess(Body):
    """The process that a lease belongs to, as the daemon counts them; the one that asks if null."""

    pid: Annotated[int, Field(ge=1, le=2**22)] | None


class ReserveRequest(Waiting):
    """Hold resources without a sandbox, for as long as heartbeats renew the lease."""

    name: Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(_printable)] = ""
    max_lifetime_ms: Milliseconds | None = None
    parent: Annotated[str, Field(max_length=32)] | None = None
    owner_process: OwnerProcess | None = None


class TemplateSource(Body):
    """Where a template comes from: a path on the host; `reference` picks an image where needed."""

    kind: Literal["dir", "oci", "docker-archive"]
    path: Path
    reference: Annotated[str, Field(pattern=IMAGE_REFERENCE)] | None = None


class TemplateRequest(Body):
    """Import a root file system under a name that runs may use."""

    name: TemplateName
    source: TemplateSource


class StandingRequest(Body):
    """Drain or retire the node, for a reason that is told to whoever is refused."""

    reason: Annotated[str, Field(max_length=LONGEST_REASON)]


class HeartbeatRequest(Body):
    """Say that a lease's owner is alive, and how long from now the lease shall last."""

    token: Annotated[str, Field(max_length=LONGEST_TOKEN)]
    ttl_ms: Milliseconds | None = None


class ReleaseRequest(Body):
    """Release a lease as its holder: if somebody else holds it by now it stays."""

    token: Annotated[str, Field(max_length=LONGEST_TOKEN)] | None = None


Model = TypeVar("Model", bound=Body)


def parse(model: type[Model], body: dict[str, Any]) -> Model:
    """Return *body* as *model*.

    Raises:
        InvalidArgument: Names the first field that is wrong, and how many more are.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        first = errors[0]
        told = _told(first["loc"], first["type"], first.get("ctx", {}))
        raise InvalidArgument(f"{told}{more}") from None


def _told(loc: tuple[int | str, ...], kind: str, context: dict[str, Any]) -> str:
    """Return the field at *loc* and the rule that it breaks, in our own words."""
    path = [str(part)[:_SHOWN_LENGTH] for part in loc if part != _OF_A_KEY] or ["body"]
    unit, example = _UNITS.get(path[-1].rpartition("_")[2], ("", ""))
    rule = _RULES.get(kind, "it is not valid").format(
        **context,
        name=path[-1],
        unit=unit,
        example=example,
        rule=_PATTERN_RULES.get(context.get("pattern", "")),
    )
    return f"{'.'.join(path)}: {rule}"
