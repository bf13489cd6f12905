"""`axern exec`: one more command in a running sandbox, with our pipes or our terminal."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from axern.cli.actions.added import Added, NotStarted
from axern.cli.actions.copying import copy
from axern.cli.actions.environment import environment
from axern.cli.actions.target import checked_id
from axern.cli.actions.wording import in_flags
from axern.cli.grammar import OWN_FAILURE
from axern.cli.output import put, report, say
from axern.cli.unexpected import explained
from ledger.errors import AxernError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Left(Exception):
    """A signal tells us to go; `exit_code` is what a shell shows for it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def start(
    where: Where,
    *,
    run_id: str,
    command: tuple[str, ...],
    interactive: bool,
    tty: bool,
    env: tuple[str, ...],
    env_files: tuple[str, ...],
    cwd: str | None,
    user: str | None,
) -> int:
    """Add a command to a run and return its exit code, or 125 to 127 and 130 for ours."""
    try:
        word = checked_id(run_id)
        body = _body(command, environment(env, env_files), cwd, user)
        return _run(where, word, body, interactive=interactive, has_terminal=tty)
    except NotStarted as error:
        report(error, as_json=False)
        return error.exit_code
    except AxernError as error:
        report(in_flags(error), as_json=False)
        return OWN_FAILURE
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        report(explained(error), as_json=False)
        return OWN_FAILURE


def revoke(where: Where, *, run_id: str, exec_id: str | None) -> None:
    """Kill one command that was added to a run, or all."""
    target = f"/v2/runs/{checked_id(run_id)}/execs"
    with where.reach() as client:
        known = [each["id"] for each in client.request("GET", target)["execs"]]
        for word in [exec_id] if exec_id else known:
            client.request("DELETE", f"{target}/{word}")
            put(f"{word} revoked")


def _body(command: tuple[str, ...], env: dict[str, str], cwd: str | None, user: str | None) -> Json:
    words = list(command[1:] if command[0] == "--" else command)
    if not words:
        raise InvalidArgument("COMMAND is missing", hint="for example: axern exec ID -- sh")
    if words[0].startswith("-") and command[0] != "--":
        raise InvalidArgument(f"{words[0]!r} stands behind the ID", hint="flags come before it")
    return {"command": words, "env": env, "cwd": cwd, "user": user}


def _run(where: Where, run_id: str, body: Json, *, interactive: bool, has_terminal: bool) -> int:
    if not has_terminal:
        with Added.begin(where, run_id, body | {"stdin": interactive}) as added:
            try:
                with _passed_on(added):
                    copy(added, reads=interactive)
            except Left as left:
                return left.exit_code
            return added.exit_code()
    from axern.cli.actions import terminal

    if interactive:
        terminal.require_terminal()
    rows, columns = terminal.size()
    body["env"] = {"TERM": os.environ.get("TERM") or "xterm"} | body["env"]
    body["terminal"] = {"rows": rows, "columns": columns}
    with Added.begin(where, run_id, body) as added:
        lent = terminal.lent(lambda: terminal.resize(added.ends.get("terminal")))
        try:
            with _leaving(), lent if interactive else contextlib.nullcontext():
                copy(added, reads=interactive)
        except Left as left:
            return left.exit_code
        return added.exit_code()


@contextlib.contextmanager
def _handled(handle: Any) -> Iterator[None]:
    """Let *handle* hear the signals that ask for an end; who ignored one before still does."""
    before = {
        number: signal.signal(number, handle)
        for number in _SIGNALS
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leaving() -> contextlib.AbstractContextManager[None]:
    """Leave at any signal: the terminal hangs up on its process, as one does."""

    def leave(number: int, _: FrameType | None) -> None:
        raise Left(number)

    return _handled(leave)


def _passed_on(added: Added) -> contextlib.AbstractContextManager[None]:
    """Pass the first signal on; at the second, or a hang-up, kill the process and leave."""
    came: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        is_last = bool(came) or number == signal.SIGHUP
        came.append(number)
        try:
            if is_last:
                added.revoke()
            else:
                added.send(signal.Signals(number).name.removeprefix("SIG"))
        except AxernError as error:
            say(f"axern: the signal did not get there: {error.message} [{error.code}]")
        if is_last:
            raise Left(number)

    return _handled(pass_on)
