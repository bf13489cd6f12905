"""What `axern run` and its subcommands do."""

from __future__ import annotations

from axern.cli.actions.foreground import (
    Interrupted,
    Interrupts,
    Pipe,
    RunFailed,
    goes_on,
    insist,
    outcome,
    submit,
)
from axern.cli.actions.foreground import follow as follow_run
from axern.cli.actions.request import RunOptions, run_body
from axern.cli.actions.runs import words
from axern.cli.actions.target import checked_id, query
from axern.cli.actions.wording import in_flags
from axern.cli.grammar import OWN_FAILURE
from axern.cli.output import (
    ABSENT,
    OutputFailed,
    amounts,
    counted,
    put,
    put_fields,
    put_json,
    report,
    say,
)
from axern.cli.unexpected import explained
from axern.cli.when import moment_ms
from ledger.errors import AxernError, InvalidArgument
from ledger.units import format_bytes, format_duration_ms, format_short, parse_duration_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]


def start(
    where: Where,
    *,
    command: tuple[str, ...],
    file: str | None,
    interactive: bool,
    detach: bool,
    dry_run: bool,
    template: str | None,
    rootfs: str | None,
    rootfs_readonly: bool,
    runtime_class: str | None,
    env: tuple[str, ...],
    env_files: tuple[str, ...],
    cwd: str | None,
    user: str | None,
    namespace: str | None,
    labels: tuple[str, ...],
    oom_kill_one: bool,
    require: tuple[str, ...],
    network: str | None,
    publish: tuple[str, ...],
    timeout: str | None,
    ttl: str | None,
    wait_for_capacity: str | None,
    priority: int | None,
    request_id: str | None,
    output: str,
    **resources: str | None,
) -> int:
    """Run a command and return the exit code: the workload's, or 125 to 127, 130 or 143 of ours."""
    options = RunOptions(
        command=command,
        resources=resources,
        file=file,
        interactive=interactive,
        env=env,
        env_files=env_files,
        cwd=cwd,
        user=user,
        namespace=namespace,
        labels=labels,
        oom_kill_one=oom_kill_one,
        require=require,
        network=network,
        publish=publish,
        timeout=timeout,
        template=template,
        rootfs=rootfs,
        rootfs_readonly=rootfs_readonly,
        runtime_class=runtime_class,
        ttl=ttl,
        wait_for_capacity=wait_for_capacity,
        priority=priority,
        request_id=request_id,
    )
    if dry_run:
        return _dry_run(where, options, as_json=output == "json")
    return _run(where, options, detach=detach, as_json=output == "json")


def _dry_run(where: Where, options: RunOptions, *, as_json: bool) -> int:
    from axern.cli.actions.explain import tell

    try:
        return OWN_FAILURE if tell(where, run_body(options), as_json=as_json) else 0
    except AxernError as error:
        report(in_flags(error), as_json=as_json)
        return OWN_FAILURE


def _run(where: Where, options: RunOptions, *, detach: bool, as_json: bool) -> int:
    pipe = Pipe()
    try:
        if detach and options.interactive:
            raise InvalidArgument("-i and --detach exclude each other: nobody would hand it on")
        if detach and options.wait_for_capacity:
            raise InvalidArgument(
                "--detach and --wait-for-capacity exclude each other: who goes away gives up",
                hint="leave --detach out, and put the command in the background",
            )
        body = run_body(options)
        if detach:
            _show_detached(submit(where, body), as_json=as_json)
            return 0
        with Interrupts(where) as interrupts:
            return _foreground(where, body, pipe, interrupts)
    except AxernError as error:
        report(in_flags(error), as_json=as_json and not pipe.stdout_used)
        return error.exit_code if isinstance(error, RunFailed) else OWN_FAILURE
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # An answer that is not what was promised, and no exit code of the workload's.
        report(explained(error), as_json=as_json and not pipe.stdout_used)
        return OWN_FAILURE


def _admitted(where: Where, body: Json, interrupts: Interrupts) -> Json:
    """Return the run that *body* asks for, once it is admitted."""
    answer = insist(where, "/v2/runs", body)
    if "ticket" in answer:
        from axern.cli.actions.queueing import until_granted

        interrupts.watch(answer["ticket"]["id"])
        answer = until_granted(where, answer["ticket"], interrupts.settle)
    run: Json = answer["run"]
    return run


def _foreground(where: Where, body: Json, pipe: Pipe, interrupts: Interrupts) -> int:
    try:
        run = _admitted(where, body, interrupts)
        say(f"Run: {run['id']}")
        _warn_unenforced(run)
        interrupts.watch(run["id"])
        if body["stdin"]:
            from axern.cli.actions import pump

            pump.begin(where, run["id"])
        ended = follow_run(where, run["id"], pipe, interrupts.settle)
    except Interrupted:
        return interrupts.exit_code or OWN_FAILURE
    except AxernError as error:
        if interrupts.exit_code is None:
            if isinstance(error, OutputFailed):
                error.hint = goes_on(run["id"])
            raise
        report(error, as_json=False)
        return interrupts.exit_code
    return outcome(ended, pipe) if interrupts.exit_code is None else interrupts.exit_code


def _show_detached(run: Json, *, as_json: bool) -> None:
    _warn_unenforced(run)
    if as_json:
        put_json({"run": run})
    else:
        put(run["id"])


def _warn_unenforced(run: Json) -> None:
    if run["enforced"] is False:
        say("axern: the resources of this run are charged but not enforced on this node")


def get(where: Where, *, run_id: str, output: str) -> None:
    """Show one run."""
    with where.reach() as client:
        answer = client.request("GET", f"/v2/runs/{checked_id(run_id)}")
    if output == "json":
        put_json(answer)
        return
    run, log = answer["run"], answer["log"]
    put_fields(
        [
            ("id", run["id"]),
            ("namespace", run["namespace"]),
            ("owner", f"uid {run['owner']['uid']}"),
            ("status", run["status"]),
            ("exit code", run["exit_code"]),
            ("diagnostic", run["diagnostic_code"]),
            ("message", run["message"]),
            ("command", words(run["command"])),
            ("labels", _labels(run["labels"])),
            ("user", run["user"]),
            ("timeout", _time(run["timeout_ms"])),
            ("time to live", _time(run["ttl_ms"])),
            ("runtime class", run["runtime_class"]),
            ("root file system", _root(run)),
            ("requests", amounts(run["requests"])),
            ("limits", amounts(run["limits"])),
            ("enforced", _enforced(run)),
            ("created", run["created_at"]),
            ("started", run["started_at"]),
            ("finished", run["finished_at"]),
            ("log", _log_size(log)),
            ("added", _added(answer["execs"])),
        ]
    )


def cancel(where: Where, *, run_id: str, grace: str | None, output: str) -> None:
    """Ask for a run's end: TERM, and KILL after *grace*."""
    grace_ms = None if grace is None else parse_duration_ms(grace, "--grace")
    with where.reach() as client:
        target = query(f"/v2/runs/{checked_id(run_id)}", grace_ms=grace_ms)
        answer = client.request("DELETE", target)
    if output == "json":
        put_json(answer)
        return
    run = answer["run"]
    put(f"{run['id']} {run['status']}")


def logs(
    where: Where,
    *,
    run_id: str,
    follow: bool,
    offset: int | None = None,
    since: str | None = None,
    tail: int | None = None,
    timestamps: bool = False,
) -> None:
    """Write what a run has written: from some place on, so far or until it ends."""
    word = checked_id(run_id)
    begin = _begin(offset, since, tail)
    pipe = Pipe(offset or 0, timestamps=timestamps)
    if not follow:
        target = query(f"/v2/runs/{word}/stream", **begin, follow="false")
        for event in where.reach().events(target):
            pipe.take(event)
        return
    where.reach().close()
    try:
        follow_run(where, word, pipe, begin=begin)
    except KeyboardInterrupt:
        say(f"axern: to go on from here: axern run logs -f --from {pipe.offset} {word}")
        raise


def _begin(offset: int | None, since: str | None, tail: int | None) -> dict[str, int | None]:
    """Return where to begin, as the stream's parameters.

    Raises:
        InvalidArgument: The flags contradict each other, or *since* is no time.
    """
    if offset is not None and (since is not None or tail is not None):
        raise InvalidArgument("--from says where to begin, so it excludes --since and --tail")
    since_ms = None if since is None else moment_ms(since, "--since")
    return {"from": offset, "tail": tail, "since_ms": since_ms}


def _log_size(log: Json) -> str:
    """Return how much of the output is kept, and how much is not any more."""
    kept = format_short(log["kept_bytes"], format_bytes)
    if not log["dropped_bytes"]:
        return kept
    lines = log["dropped_records"]
    lost = "an unknown amount" if lines is None else counted(lines, "line")
    return f"{kept}, and {lost} dropped before"


def _added(execs: list[Json]) -> str | None:
    """Return the ids of what `axern exec` has added and still runs, and whose each is."""
    shown = (f"{each['id']} ({each['kind']}, uid {each['owner']['uid']})" for each in execs)
    return ", ".join(shown) or None


def _labels(labels: dict[str, str]) -> str | None:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or None


def _time(duration_ms: int | None) -> str | None:
    return None if duration_ms is None else format_duration_ms(duration_ms)


def _enforced(run: Json) -> str | bool:
    """Return what the kernel holds, which is rounded down from what was asked for."""
    held = run["enforced_limits"]
    if held is None:
        return False
    most = amounts({name: held[name] for name in run["limits"] if name in held})
    return f"{most}, {held['pids']} tasks"


def _root(run: Json) -> str:
    source = f"template {run['template']}" if run["template"] else run["rootfs"] or ABSENT
    return f"{source} (read-only)" if run["rootfs_readonly"] else source
