"""Every configuration key: its type, unit and default; docs/operating.md is made from this file."""

from __future__ import annotations

from functools import cache
from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from axern.config import DEFAULT_RUN_DIR, DEFAULT_STATE_DIR, EXTENSION, NAMESPACE, TEMPLATE_NAME
from ledger.errors import InvalidArgument
from ledger.exposure import LIMITED
from ledger.reservation import SANDBOX_LANES
from ledger.spec import SMALLEST_LIMITS
from ledger.units import parse_bytes, parse_cpu_milli, parse_duration_ms, parse_ratio


def _duration(value: object) -> object:
    return _parsed(parse_duration_ms, value)


def _bytes(value: object) -> object:
    return _parsed(parse_bytes, value)


def _cpu(value: object) -> object:
    return _parsed(parse_cpu_milli, value)


def _ratio(value: object) -> object:
    _parsed(parse_ratio, value)
    return value


def _maybe_ratio(value: object) -> object:
    return None if value is None else _ratio(value)


def _once_each(words: list[str]) -> list[str]:
    keys = [word.partition("=")[0] for word in words]
    if len(set(keys)) < len(keys):
        raise ValueError("each DOMAIN/NAME may stand there once")
    return words


def _named(words: list[str]) -> list[str]:
    if "*" in words:
        raise ValueError("an admin is as good as root: name who is one")
    return words


def _parsed(parse: object, value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("it must be a text with a unit")  # noqa: TRY004 - pydantic reads ValueError
    try:
        return parse(value, "value")  # type: ignore[operator]
    except InvalidArgument as error:
        raise ValueError(f"{error.message} ({error.hint})") from error


def _range(text: str) -> str:
    if text:
        found = IPv4Network(text)
        if found.prefixlen > LONGEST_PREFIX or not found.is_private:
            raise ValueError(f"it must be private, and /{LONGEST_PREFIX} or larger")
    return text


def _address(text: str) -> str:
    return str(IPv4Address(text))


LONGEST_PREFIX = 19
"""A range has an address for each of the 4,096 lanes, and one for the host."""
LONGEST_MS = 10 * 365 * 86_400_000
"""Ten years: a bound that keeps every date that is shown within the calendar."""
LOG_MAX_LEAST_BYTES = 4 * 1024**2
"""With less a monitor could fill a file before anybody can look."""
LOG_MAX_MOST_BYTES = 1024**4
Duration = Annotated[int, BeforeValidator(_duration), Field(ge=1, le=LONGEST_MS)]
Grace = Annotated[int, BeforeValidator(_duration), Field(ge=0, le=LONGEST_MS)]
Count = Annotated[int, Field(strict=True)]
Bytes = Annotated[int, BeforeValidator(_bytes)]
IPv4Text = Annotated[str, AfterValidator(_address)]
Cpu = Annotated[int, BeforeValidator(_cpu)]
MaybeRatio = Annotated[str | None, BeforeValidator(_maybe_ratio)]
WHO = r"(\*|@?[^\s=,@*]{1,64})"
"""A user or `@group`, by name or number, or `*`, whoever may use the socket."""
Who = Annotated[list[Annotated[str, Field(pattern=f"^{WHO}$")]], Field(max_length=256)]
AbsolutePath = Annotated[str, Field(pattern=r"^(/[^/\x00\n]+)+$")]


def _quantity(default: str, *, alias: str, description: str, least: int = 0) -> Any:
    """Declare a key whose value and default are texts with a unit, and whose attribute is not."""
    return Field(default, alias=alias, ge=least, description=description)


class Settings(BaseModel):
    """The daemon's configuration, frozen; attributes carry the unit that the key's text names."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    state_dir: AbsolutePath = Field(
        DEFAULT_STATE_DIR, description="ledger, runs, templates and the filestore live below it"
    )
    filestore: str = Field(
        "",
        pattern=r"^(/[^/\x00\n]+)*$",
        description="what sandboxes write; limits need XFS with prjquota there, which "
        "`axern node setup` makes; empty: `state_dir`/filestore",
    )
    run_dir: AbsolutePath = Field(
        DEFAULT_RUN_DIR, description="socket, bundles, mounts and exit records; lost at a reboot"
    )
    socket: str = Field("", description="path of the API socket; empty: `run_dir`/axernd.sock")
    socket_group: str = Field("axern", description="group that may use the socket, where it exists")
    may_read: Who = Field(
        ["*"],
        description="who may look at all that is on the node: users and `@groups`, by name or "
        "number; `*`: whoever may use the socket",
    )
    may_reserve: Who = Field(
        ["*"], description="who may hold resources without a sandbox; they may read, too"
    )
    may_launch: Who = Field(["*"], description="who may run sandboxes; they may read, too")
    may_admin: Annotated[Who, AfterValidator(_named)] = Field(
        [], description="who may do everything besides root, and so is as good as root"
    )
    namespace_owners: Annotated[
        list[Annotated[str, Field(pattern=f"^{NAMESPACE}={WHO}$")]], Field(max_length=1024)
    ] = Field(
        [],
        description="`NAMESPACE=WHO`: who may see, cancel and release what others have in it, and "
        "set its defaults; they may read, too",
    )
    node_id: str = Field("", description="name of this node; empty: made once and kept")
    cgroup_enforcement: Literal["required", "disabled_dev"] = Field(
        "required",
        description="`required`: what the kernel can't enforce is refused; `disabled_dev`: nothing "
        "is enforced, explicit limits are refused, for machines without cgroup v2 controllers",
    )
    cgroup_root: str = Field(
        "",
        description="cgroup folder of Axern; empty: what systemd has delegated to the service, "
        "else `axern` below the cgroup2 mount",
    )
    pids_max: Count = Field(
        4096, ge=64, le=4_000_000, description="most tasks of a sandbox; runsc has 256 more"
    )
    memory_high_percent: Count = Field(
        0, ge=0, le=100, description="slow a sandbox down from this part of its memory limit; 0: no"
    )
    extension_capabilities: Annotated[
        list[Annotated[str, Field(pattern=EXTENSION)]],
        Field(max_length=64),
        AfterValidator(_once_each),
    ] = Field(
        [],
        description="what this node has besides, as `DOMAIN/NAME` or `DOMAIN/NAME=VALUE`, for "
        "`axern run --require`",
    )
    io_read_max_bytes_s: Bytes | None = Field(
        None,
        alias="io_read_max",
        ge=1,
        description="most a sandbox reads from the filestore's disk in 1 s",
    )
    io_write_max_bytes_s: Bytes | None = Field(
        None,
        alias="io_write_max",
        ge=1,
        description="most a sandbox writes to the filestore's disk in 1 s",
    )
    network_bridge: str = Field(
        "axern0",
        pattern=r"^[a-z][a-z0-9-]{0,14}$",
        description="name of the bridge that sandboxes with a network are on, and of its firewall "
        "table; no two daemons on one host may use the same",
    )
    network_range: Annotated[str, AfterValidator(_range)] = Field(
        "",
        description="private range of the bridge, a /19 or larger such as `10.192.0.0/19`; empty: "
        "one that no address or route of the host meets",
    )
    nameservers: Annotated[list[IPv4Text], Field(max_length=3)] = Field(
        [],
        description="name servers of sandboxes on the bridge; empty: the host's, without those on "
        "its loopback, which they can't reach",
    )
    cpu_overcommit_ratio: Annotated[str, BeforeValidator(_ratio)] = Field(
        "1", description="exact decimal > 0; effective CPU = floor(allocatable × ratio)"
    )
    max_exposure_cpu: MaybeRatio = Field(
        None,
        description="most that the CPU limits of all sandboxes may be together, as a multiple of "
        "effective CPU; one without a limit counts as the whole; unset: no bound",
    )
    max_exposure_memory: MaybeRatio = Field(
        None, description="the same for memory, as a multiple of allocatable memory"
    )
    max_exposure_ephemeral_storage: MaybeRatio = Field(
        None, description="the same for storage, as a multiple of allocatable storage"
    )
    system_reserve_cpu_milli: Cpu = _quantity(
        "0", alias="system_reserve_cpu", description="CPU kept"
    )
    system_reserve_memory_bytes: Bytes | None = Field(
        None,
        alias="system_reserve_memory",
        description="memory kept; unset: max(512MiB, 5 %)",
    )
    system_reserve_storage_bytes: Bytes | None = Field(
        None,
        alias="system_reserve_storage",
        description="filestore space kept; unset: 5 % of one of its own, else max(1GiB, 5 %)",
    )
    max_sandboxes: Count = Field(
        1000,
        ge=1,
        le=SANDBOX_LANES,
        description="sandbox slots of the node",
    )
    entry_cap: Count = Field(10_000, ge=1, description="most ledger entries")
    namespace_entry_cap: Count = Field(
        1_000, ge=1, description="most ledger entries of a namespace"
    )
    queue_depth: Count = Field(1_000, ge=1, description="most requests that wait")
    namespace_queue_depth: Count = Field(
        500, ge=1, description="most requests of a namespace that wait"
    )
    queue_longest_ms: Duration = _quantity(
        "24h", alias="queue_longest", description="longest time that a request may wait"
    )
    default_request_cpu_milli: Cpu = _quantity(
        "500m",
        alias="default_request_cpu",
        least=1,
        description="CPU request where none is given",
    )
    default_request_memory_bytes: Bytes = _quantity(
        "4GiB",
        alias="default_request_memory",
        least=1,
        description="memory request where none is given",
    )
    default_limit_storage_bytes: Bytes = _quantity(
        "256MiB",
        alias="default_limit_ephemeral_storage",
        least=SMALLEST_LIMITS["ephemeral_storage_bytes"],
        description="storage limit of a writable root where none is given",
    )
    default_runtime: Literal["runsc", "runc"] = Field("runsc", description="runtime class")
    default_template: str = Field(
        "busybox", pattern=TEMPLATE_NAME, description="root file system of a run"
    )
    template_max_bytes: Bytes = _quantity(
        "20GiB", alias="template_max", description="most that a new template may hold"
    )
    template_max_entries: Count = Field(
        2_000_000, ge=1, description="most files, folders and links of a new template"
    )
    template_timeout_ms: Duration = _quantity(
        "30m", alias="template_timeout", description="longest import of a template"
    )
    stop_grace_ms: Grace = _quantity(
        "10s", alias="stop_grace", description="from TERM to KILL when a sandbox is stopped"
    )
    runtime_timeout_ms: Duration = _quantity(
        "30s", alias="runtime_timeout", description="longest call of a runtime"
    )
    tick_ms: Duration = _quantity(
        "10s", alias="tick", description="observe, plan, apply this often"
    )
    facts_every_ms: Duration = _quantity(
        "1s", alias="facts_every", description="how often the host is sampled for admission"
    )
    facts_stale_after_ms: Duration = _quantity(
        "15s", alias="facts_stale_after", description="older observations refuse admission"
    )
    stale_after_ms: Duration = _quantity(
        "120s", alias="stale_after", description="silence after which an owner is stale"
    )
    legacy_window_ms: Duration = _quantity(
        "45m", alias="legacy_window", description="age at which an entry that never beat expires"
    )
    lease_ttl_ms: Duration = _quantity(
        "10m", alias="lease_ttl", description="first deadline of an external lease"
    )
    lease_max_lifetime_ms: Duration = _quantity(
        "24h", alias="lease_max_lifetime", description="ceiling on all renewals of a lease"
    )
    runs_kept_ms: Duration = _quantity(
        "7d", alias="runs_kept", description="how long spec, exit record and log of a run are kept"
    )
    runs_max: Count = Field(
        10_000, ge=1, le=1_000_000, description="most ended runs kept; the oldest go first"
    )
    runs_disk_max_bytes: Bytes = _quantity(
        "10GiB",
        alias="runs_disk_max",
        description="most disk space of ended runs; the oldest go first",
    )
    log_max_bytes: Annotated[Bytes, Field(ge=LOG_MAX_LEAST_BYTES, le=LOG_MAX_MOST_BYTES)] = (
        _quantity(
            "256MiB",
            alias="log_max",
            description="most that the log of one run takes; the oldest goes",
        )
    )
    launch_workers: Count = Field(
        4, ge=1, le=64, description="sandboxes that are started or buried at the same time"
    )
    conmon: str = Field("", description="path of conmon; empty: searched in the system's folders")
    runc: str = Field("", description="path of runc; empty: searched")
    runsc: str = Field("", description="path of runsc; empty: searched")

    @property
    def socket_path(self) -> str:
        """Return the path of the API socket."""
        return self.socket or f"{self.run_dir}/axernd.sock"

    @property
    def max_exposure(self) -> tuple[tuple[str, int, int], ...]:
        """Return the bounds on limits together: (dimension, numerator, denominator)."""
        return _bounds(
            self.max_exposure_cpu, self.max_exposure_memory, self.max_exposure_ephemeral_storage
        )

    @property
    def ledger_dir(self) -> str:
        """Return the ledger's folder."""
        return f"{self.state_dir}/ledger"


@cache
def _bounds(*ratios: str | None) -> tuple[tuple[str, int, int], ...]:
    """Return the bounds that *ratios*, in the order of `LIMITED`, are; read once, used often."""
    exact = {
        name: parse_ratio(ratio)
        for name, ratio in zip(LIMITED, ratios, strict=True)
        if ratio is not None
    }
    return tuple((name, each.numerator, each.denominator) for name, each in exact.items())


def keys_table() -> str:
    """Return the Markdown table of every key, its default and what it is."""
    rows = ["| key | default | what |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = "unset" if field.default is None else f"`{field.default}`"
        if field.default == "":
            default = "empty"
        rows.append(f"| `{field.alias or name}` | {default} | {field.description} |")
    return "\n".join(rows)
