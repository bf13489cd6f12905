"""What the SDK does, effect by effect: retries, Retry-After, heartbeats, and how a run is ended."""

from __future__ import annotations

from typing import Any

import pytest

from axern.api.decoding import Event
from axern.api.term import Term
from axern.api.wire import ApiError, ConnectionLost
from axern.errors import DaemonUnreachable
from axern.sdk import steps
from axern.sdk.results import Granted, Refused
from axern.sdk.steps import Ask, Follow, Pause
from ledger.errors import NotFound, PermissionDenied

Json = dict[str, Any]
NODE_FULL = "node_memory_capacity_exhausted"


class Clock:
    """The time of both clocks, which only pauses move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("axern.sdk.steps.boottime_s", made)
    monkeypatch.setattr("axern.sdk.steps.monotonic", made)
    return made


def refusal(code: str, *, retryable: bool = False, after_s: int | None = None) -> ApiError:
    error = {"code": code, "message": "no", "hint": None, "retryable": retryable}
    return ApiError(500, error | ({} if after_s is None else {"retry_after_s": after_s}))


class Drive:
    """Perform steps by a script: what each Ask or Follow is answered with, or raises."""

    def __init__(self, clock: Clock, *script: object) -> None:
        self.clock = clock
        self.script = list(script)
        self.asked: list[Ask | Follow] = []
        self.pauses: list[float] = []
        self.stop_after_s: float | None = None

    def __call__(self, work: Any) -> Any:
        result: Any = None
        failed: BaseException | None = None
        while True:
            try:
                effect = work.send(result) if failed is None else work.throw(failed)
            except StopIteration as end:
                return end.value
            result, failed = None, None
            if isinstance(effect, Pause):
                self.pauses.append(effect.seconds)
                self.clock.now_s += effect.seconds
                result = self.stop_after_s is not None and self.clock.now_s >= self.stop_after_s
                continue
            self.asked.append(effect)
            assert self.script, "nothing more was expected to be asked"
            answer = self.script.pop(0)
            if isinstance(answer, BaseException):
                failed = answer
            elif isinstance(effect, Follow) and isinstance(answer, list):
                found = (effect.take(event) for event in answer)
                result = next((end for end in found if end is not None), None)
            else:
                result = answer


LOST, GONE = ConnectionLost("lost"), DaemonUnreachable("gone")
BODY = {"request_id": "a"}


def post() -> Ask:
    return Ask("POST", "/v2/reservations", BODY)


def test_what_may_have_arrived_is_sent_again_under_its_request_id(clock: Clock) -> None:
    drive = Drive(clock, LOST, GONE, GONE, {"done": 1})
    assert drive(steps.ask(post(), 60.0)) == {"done": 1}
    assert [each.body for each in drive.asked if isinstance(each, Ask)] == [BODY] * 4
    assert drive.pauses == [0.1, 0.2, 0.4]


def test_nobody_there_from_the_start_is_told_at_once_or_insisted_on(clock: Clock) -> None:
    with pytest.raises(DaemonUnreachable):
        Drive(clock, GONE)(steps.ask(post(), 60.0))
    assert Drive(clock, GONE, {})(steps.ask(post(), 60.0, insists=True)) == {}


def test_patience_ends(clock: Clock) -> None:
    began_s = clock.now_s
    with pytest.raises(DaemonUnreachable):
        Drive(clock, *[LOST] * 100)(steps.ask(post(), 10.0))
    assert clock.now_s - began_s <= 10.0


def test_busy_waits_as_long_as_the_daemon_says(clock: Clock) -> None:
    drive = Drive(clock, refusal("busy", retryable=True, after_s=7), {})
    drive(steps.ask(post(), 60.0))
    assert drive.pauses == [7.0]


def test_a_full_node_is_no_reason_to_wait_unless_that_was_asked_for(clock: Clock) -> None:
    full = refusal(NODE_FULL, retryable=True, after_s=12)
    with pytest.raises(Refused) as caught:
        Drive(clock, full)(steps.ask(post(), 60.0))
    assert (caught.value.code, caught.value.retry_after_s) == (NODE_FULL, 12)
    drive = Drive(clock, full, full, {})
    drive(steps.ask(post(), 60.0, 30.0))
    assert drive.pauses == [12.0, 12.0]
    with pytest.raises(Refused):  # the next attempt would be too late
        Drive(clock, full, full, full)(steps.ask(post(), 60.0, 30.0))


@pytest.mark.parametrize("code", ["namespace_quota_exceeded", "request_exceeds_node"])
def test_what_no_waiting_helps_is_told_at_once(clock: Clock, code: str) -> None:
    with pytest.raises(Refused):
        Drive(clock, refusal(code))(steps.ask(post(), 60.0, 3600.0))


@pytest.mark.parametrize(
    ("code", "kind"), [("not_found", NotFound), ("permission_denied", PermissionDenied)]
)
def test_errors_are_of_their_kind(clock: Clock, code: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Drive(clock, refusal(code))(steps.ask(post(), 60.0))


GRANTED = Granted("4f" * 16, "secret", 30.0, {})


def test_a_lease_counts_from_the_attempt_that_was_answered(clock: Clock) -> None:
    full = refusal(NODE_FULL, retryable=True, after_s=20)
    answer = {"reservation": {"id": "4f"}, "token": "t", "expires_in_ms": 30_000}
    granted, term = Drive(clock, full, answer)(steps.reserve(BODY, 60.0, 60.0))
    assert (granted.id, granted.token) == ("4f", "t")
    assert term.deadline_s == 1000.0 + 20 + 30


def kept(clock: Clock, *script: object, stop_after_s: float | None = None) -> tuple[Any, Drive]:
    drive = Drive(clock, *script)
    drive.stop_after_s = stop_after_s
    return drive(steps.keep(GRANTED, Term(clock.now_s, 30_000))), drive


def test_a_lease_is_heard_from_and_renewed_until_somebody_stops(clock: Clock) -> None:
    why, drive = kept(clock, *[{"expires_in_ms": 30_000}] * 3, stop_after_s=1040.0)
    assert why is None
    assert drive.pauses == [10.0] * 4
    (first, *_) = drive.asked
    assert isinstance(first, Ask)
    assert first.target == f"/v2/reservations/{GRANTED.id}/heartbeat"
    assert first.body == {"token": "secret", "ttl_ms": 30_000}


def test_a_daemon_that_is_away_is_asked_again_until_the_last_call(clock: Clock) -> None:
    why, drive = kept(clock, *[GONE, LOST, refusal("busy", retryable=True)] * 6)
    assert why == f"the time of lease {GRANTED.id} is over"
    assert clock.now_s == pytest.approx(1000.0 + 30 - 3)
    assert max(drive.pauses[1:]) <= 2.0


@pytest.mark.parametrize("code", ["not_found", "permission_denied"])
def test_a_lease_that_is_gone_is_lost_at_once(clock: Clock, code: str) -> None:
    why, _ = kept(clock, refusal(code))
    assert why == f"lease {GRANTED.id} is lost: no"


@pytest.mark.parametrize("error", [refusal("not_found"), refusal("permission_denied")])
def test_to_give_up_what_is_gone_is_no_failure(clock: Clock, error: ApiError) -> None:
    drive = Drive(clock, GONE, error)
    drive(steps.release(GRANTED, 60.0))
    assert [each.body for each in drive.asked if isinstance(each, Ask)] == [{"token": "secret"}] * 2


def exit_event(**fields: object) -> Event:
    import json

    record = {
        "exit_code": 3,
        "status": "failed",
        "diagnostic_code": "process-exited",
        "message": "",
    }
    return Event("exit", json.dumps({"run": record | fields}).encode(), "9")


def started(clock: Clock, *script: object, on_output: Any = None) -> tuple[Any, Drive]:
    drive = Drive(clock, {"run": {"id": "4f"}}, *script)
    work = steps.run(BODY, on_output, capture=True, patience_s=60.0, retry_for_s=0.0)
    return drive(work), drive


def test_a_run_goes_on_where_its_stream_broke(clock: Clock) -> None:
    first = [Event("start", b"{}", "0"), Event("stdout", b"b25l", "3")]
    second = [Event("stderr", b"dHdv", "6"), exit_event()]
    result, drive = started(clock, first, GONE, second)
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"one", b"two")
    assert result.complete
    targets = [each.target for each in drive.asked[1:]]
    assert targets == [f"/v2/runs/4f/stream?from={place}&follow=true" for place in (0, 3, 3)]


def test_output_that_was_dropped_is_told(clock: Clock) -> None:
    result, _ = started(clock, [Event("dropped", b"{}", "500"), exit_event(exit_code=None)])
    assert (result.complete, result.exit_code) == (False, None)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("of the caller's own")])
def test_whoever_leaves_cancels_the_run(clock: Clock, error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    drive = Drive(clock, {"run": {"id": "4f"}}, [Event("stdout", b"b25l", "3")], GONE)
    work = steps.run(BODY, fail, capture=True, patience_s=60.0, retry_for_s=0.0)
    with pytest.raises(type(error)):
        perform(drive, work)
    last = drive.asked[-1]
    assert isinstance(last, Ask)
    assert (last.method, last.target) == ("DELETE", "/v2/runs/4f")


def perform(drive: Drive, work: Any) -> None:
    """Drive *work* as a client does: what fails in a stream is thrown into the steps."""
    plain: list[Any] = list(drive.script)
    drive.script = plain[:1]
    effect = next(work)
    assert isinstance(effect, Ask)
    follow = work.send(plain[0])
    assert isinstance(follow, Follow)
    try:
        for event in plain[1]:
            follow.take(event)
    except BaseException as error:  # noqa: BLE001 - whatever it is
        cancel = work.throw(error)
        drive.asked.append(cancel)
        work.throw(plain[2])
