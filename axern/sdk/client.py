"""The blocking client: every call returns when it is done; a lease is kept by a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from axern.api import client as transport
from axern.config import locate
from axern.sdk import asking, steps
from axern.sdk.holding import Holding
from axern.sdk.results import Granted, NotHeld, RunResult
from axern.sdk.steps import PATIENCE_S, Ask, Follow, Pause
from ledger.errors import AxernError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self, TypeVar, Unpack

    from axern.api.term import Term
    from axern.sdk.asking import AskedOptions, Duration, LeaseOptions, RunOptions
    from axern.sdk.steps import Steps

    Json = dict[str, Any]
    Result = TypeVar("Result")


class Client:
    """Ask the daemon of this host; may be used from many threads.

    Args:
        socket: Path of its socket; where the configuration has it, if None.
        config: Path of the configuration; /etc/axern/axern.toml if None.
        patience: How long a daemon may be away or busy, once something was sent to it.
    Raises:
        InvalidArgument: The configuration can't be read.
    """

    def __init__(
        self,
        socket: str | None = None,
        *,
        config: str | None = None,
        patience: Duration = PATIENCE_S,
    ) -> None:
        self._path = socket or locate(config).socket
        self.patience_s = asking.seconds(patience, "patience")

    def lease(self, **options: Unpack[LeaseOptions]) -> Lease:
        """Return a lease to be entered: `with client.lease(cpu="2", memory="8GiB") as lease: …`.

        See `axern.sdk.asking.LeaseOptions`. It is held, heard from and renewed in the block, and
        given up behind it.
        """
        retry_for_s = asking.seconds(options.pop("retry_for", None), "retry_for")
        # The daemon knows our process by the socket: when it is gone the lease is, however it went.
        body = asking.lease_body(options) | {"owner_process": {"pid": None}}
        return Lease(self, body, retry_for_s)

    def reserve(self, **options: Unpack[LeaseOptions]) -> Granted:
        """Hold a lease that nobody keeps: it lasts for its `ttl` unless `renew` is called.

        Raises:
            Refused: It does not fit.
            AxernError: As the daemon says.
        """
        retry_for_s = asking.seconds(options.pop("retry_for", None), "retry_for")
        body = asking.lease_body(options)
        return self.do(steps.reserve(body, self.patience_s, retry_for_s))[0]

    def renew(self, lease_id: str, token: str, ttl: Duration) -> float:
        """Let a lease last for *ttl* from now, within its lifetime; return for how many seconds.

        Raises:
            PermissionDenied: The token is worth nothing any more.
            NotFound: The lease has ended.
        """
        body = {"token": token, "ttl_ms": round(asking.seconds(ttl, "ttl") * 1000)}
        answer = self._ask("POST", f"/v2/reservations/{lease_id}/heartbeat", body)
        return float(answer["expires_in_ms"]) / 1000

    def release(self, reservation_id: str) -> Json:
        """Give up a lease, or what does not run; return the proof that it is gone.

        Raises:
            StateConflict: It runs.
            NotFound: Nothing remembers it.
        """
        return self._ask("DELETE", f"/v2/reservations/{reservation_id}")

    def run(self, command: Sequence[str], **options: Unpack[RunOptions]) -> RunResult:
        """Run *command* in a sandbox and return how it ended, and what it wrote.

        See `axern.sdk.asking.RunOptions`. Whatever ends this call before, such as
        KeyboardInterrupt, cancels the run.

        Raises:
            Refused: It does not fit.
            AxernError: As the daemon says.
        """
        on_output, capture = options.pop("on_output", None), options.pop("capture", True)
        retry_for_s = asking.seconds(options.pop("retry_for", None), "retry_for")
        return self.do(
            steps.run(
                asking.run_body(command, options),
                on_output,
                capture=capture,
                patience_s=self.patience_s,
                retry_for_s=retry_for_s,
            )
        )

    def explain(self, command: Sequence[str] = ("true",), **options: Unpack[AskedOptions]) -> Json:
        """Return how a run of these options would be decided on now; nothing is changed."""
        body = asking.run_body(command, options)
        decision: Json = self._ask("POST", "/v2/explain", body)["decision"]
        return decision

    def reservations(self, namespace: str | None = None, phase: str | None = None) -> list[Json]:
        """Return who holds what, as the API has it."""
        rows: list[Json] = self._ask("GET", asking.listing(namespace, phase))["reservations"]
        return rows

    def _ask(self, method: str, target: str, body: Json | None = None) -> Json:
        return self.do(steps.ask(Ask(method, target, body), self.patience_s))

    def do(self, work: Steps[Result], stop: threading.Event | None = None) -> Result:
        """Perform *work* effect by effect; *stop* ends its pauses."""
        result: Any = None
        failed: BaseException | None = None
        while True:
            try:
                effect = work.send(result) if failed is None else work.throw(failed)
            except StopIteration as end:
                found: Result = end.value
                return found
            try:
                result, failed = self._perform(effect, stop), None
            except BaseException as error:  # noqa: BLE001 - it is the work's to handle, or to raise
                failed = error

    def _perform(self, effect: Ask | Pause | Follow, stop: threading.Event | None) -> object:
        match effect:
            case Pause():
                if stop is not None:
                    return stop.wait(effect.seconds)
                time.sleep(effect.seconds)
                return False
            case Follow():
                with transport.Client(self._path) as connection:
                    found = map(effect.take, connection.events(effect.target))
                    return next((end for end in found if end is not None), None)
            case Ask():
                with transport.Client(self._path) as connection:
                    return connection.request(
                        effect.method, effect.target, effect.body, timeout_s=effect.timeout_s
                    )


class Lease(Holding):
    """A lease that is held inside of its `with` block, by a thread that is heard from.

    `lost` is set when it is over, or about to be in ten seconds (a tenth of a shorter `ttl`);
    whatever relies on it must have ended by then. `granted` is what the daemon answered.
    """

    def __init__(self, client: Client, body: Json, retry_for_s: float) -> None:
        super().__init__(threading.Event())
        self.lost: threading.Event
        self._client = client
        self._body = body
        self._retry_for_s = retry_for_s
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Hold it.

        Raises:
            Refused: It does not fit.
            AxernError: As the daemon says.
        """
        if self._held is not None:
            raise NotHeld("a lease is entered once: ask the client for another one")
        self._held = self._client.do(
            steps.reserve(self._body, self._client.patience_s, self._retry_for_s)
        )
        name = f"lease {self.id[:8]}"
        self._keeper = threading.Thread(target=self._keep, args=self._held, name=name, daemon=True)
        self._keeper.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Give it up.

        Raises:
            LeaseLost: It was lost, and nothing else is raised already.
            AxernError: The daemon could not be told; the lease ends by its time.
        """
        self._stop.set()
        if self._keeper is not None:
            self._keeper.join()
        try:
            self._client.do(steps.release(self.granted, self._client.patience_s))
        except AxernError:
            if kind is None:
                raise
        if kind is None:
            self.check()

    def _keep(self, granted: Granted, term: Term) -> None:
        try:
            why = self._client.do(steps.keep(granted, term), self._stop)
        except Exception as error:  # noqa: BLE001 - whoever relies on it must hear of any end
            why = f"lease {granted.id} is kept no more: {error!r}"
        if why is not None:
            self._why = why
            self.lost.set()
