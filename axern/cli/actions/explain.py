"""What `axern explain` does, and `axern run --dry-run`: ask how a run would be decided on."""

from __future__ import annotations

from axern.cli.actions.request import RunOptions, run_body
from axern.cli.output import amounts, put, put_json, visible
from axern.cli.refusal import is_known, lines
from ledger.errors import CODES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]

_ANY_COMMAND = ("true",)
"""Where neither flags nor a file name one."""


def explain(
    where: Where,
    *,
    command: tuple[str, ...],
    file: str | None,
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
    """Say how a run of these flags would be decided on; the exit code is that of the refusal."""
    options = RunOptions(
        command=command if command or file is not None else _ANY_COMMAND,
        resources=resources,
        file=file,
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
    return tell(where, run_body(options), as_json=output == "json")


def tell(where: Where, body: Json, *, as_json: bool) -> int:
    """Ask about *body*, show the answer, and return 0 if it would be admitted."""
    with where.reach() as client:
        answer = client.request("POST", "/v2/explain", body)
    decision = answer["decision"]
    if as_json:
        put_json(answer)
    else:
        put("\n".join(_shown(decision)))
    refusal = decision["refusal"]
    if refusal is None:
        return 0
    row = CODES.get(refusal["code"])
    return row.exit_code if row else 1


def _shown(decision: Json) -> list[str]:
    refusal = decision["refusal"]
    if decision["run_id"]:
        return [f"this request id was granted already: run {decision['run_id']}"]
    if refusal is None:
        return [f"it fits: {amounts(decision['requests'])}", _basis(decision)]
    if is_known(refusal):
        return lines(refusal, "refused: ")
    return [f"refused: {visible(refusal['message'])} [{refusal['code']}]", _basis(decision)]


def _basis(decision: Json) -> str:
    return (
        f"decided at generation {decision['generation']}, "
        f"on observation {decision['facts_sequence']}"
    )
