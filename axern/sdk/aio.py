"""The client for asyncio: the same as `axern.sdk.client`, with a task where that has a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from axern.config import locate
from axern.sdk import asking, async_transport, steps
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


class AsyncClient:
    """Ask the daemon of this host; see `axern.sdk.client.Client` for what each call does.

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

    def lease(self, **options: Unpack[LeaseOptions]) -> AsyncLease:
        """Return a lease to be entered: `async with client.lease(cpu="2") as lease: …`."""
        retry_for_s = asking.seconds(options.pop("retry_for", None), "retry_for")
        # The daemon knows our process by the socket: when it is gone the lease is, however it went.
        body = asking.lease_body(options) | {"owner_process": {"pid": None}}
        return AsyncLease(self, body, retry_for_s)

    async def reserve(self, **options: Unpack[LeaseOptions]) -> Granted:
        """Hold a lease that nobody keeps."""
        retry_for_s = asking.seconds(options.pop("retry_for", None), "retry_for")
        body = asking.lease_body(options)
        return (await self.do(steps.reserve(body, self.patience_s, retry_for_s)))[0]

    async def renew(self, lease_id: str, token: str, ttl: Duration) -> float:
        """Let a lease last for *ttl* from now; return for how many seconds it does."""
        body = {"token": token, "ttl_ms": round(asking.seconds(ttl, "ttl") * 1000)}
        answer = await self._ask("POST", f"/v2/reservations/{lease_id}/heartbeat", body)
        return float(answer["expires_in_ms"]) / 1000

    async def release(self, reservation_id: str) -> Json:
        """Give up a lease, or what does not run; return the proof that it is gone."""
        return await self._ask("DELETE", f"/v2/reservations/{reservation_id}")

    async def run(self, command: Sequence[str], **options: Unpack[RunOptions]) -> RunResult:
        """Run *command* in a sandbox; cancelling this call cancels the run."""
        on_output, capture = options.pop("on_output", None), options.pop("capture", True)
        retry_for_s = asking.seconds(options.pop("retry_for", None), "retry_for")
        return await self.do(
            steps.run(
                asking.run_body(command, options),
                on_output,
                capture=capture,
                patience_s=self.patience_s,
                retry_for_s=retry_for_s,
            )
        )

    async def explain(
        self, command: Sequence[str] = ("true",), **options: Unpack[AskedOptions]
    ) -> Json:
        """Return how a run of these options would be decided on now; nothing is changed."""
        body = asking.run_body(command, options)
        decision: Json = (await self._ask("POST", "/v2/explain", body))["decision"]
        return decision

    async def reservations(
        self, namespace: str | None = None, phase: str | None = None
    ) -> list[Json]:
        """Return who holds what, as the API has it."""
        answer = await self._ask("GET", asking.listing(namespace, phase))
        rows: list[Json] = answer["reservations"]
        return rows

    async def _ask(self, method: str, target: str, body: Json | None = None) -> Json:
        return await self.do(steps.ask(Ask(method, target, body), self.patience_s))

    async def do(self, work: Steps[Result]) -> Result:
        """Perform *work* effect by effect; a cancellation is thrown into it."""
        result: Any = None
        failed: BaseException | None = None
        while True:
            try:
                effect = work.send(result) if failed is None else work.throw(failed)
            except StopIteration as end:
                found: Result = end.value
                return found
            try:
                result, failed = await self._perform(effect), None
            except BaseException as error:  # noqa: BLE001 - it is the work's to handle, or to raise
                failed = error

    async def _perform(self, effect: Ask | Pause | Follow) -> object:
        match effect:
            case Pause():
                await asyncio.sleep(effect.seconds)
                return False
            case Follow():
                stream = async_transport.events(self._path, effect.target)
                async with contextlib.aclosing(stream) as found:
                    async for event in found:
                        end = effect.take(event)
                        if end is not None:
                            return end
                return None
            case Ask():
                return await async_transport.request(
                    self._path, effect.method, effect.target, effect.body, effect.timeout_s
                )


class AsyncLease(Holding):
    """A lease that is held inside of its `async with` block, by a task that is heard from.

    `lost` is set when it is over, or about to be: see `axern.sdk.client.Lease`.
    """

    def __init__(self, client: AsyncClient, body: Json, retry_for_s: float) -> None:
        super().__init__(asyncio.Event())
        self.lost: asyncio.Event
        self._client = client
        self._body = body
        self._retry_for_s = retry_for_s
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Hold it; raises as `Lease.__enter__`."""
        if self._held is not None:
            raise NotHeld("a lease is entered once: ask the client for another one")
        self._held = await self._client.do(
            steps.reserve(self._body, self._client.patience_s, self._retry_for_s)
        )
        self._keeper = asyncio.create_task(self._keep(*self._held), name=f"lease {self.id[:8]}")
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        """Give it up; raises as `Lease.__exit__`."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
        try:
            await self._client.do(steps.release(self.granted, self._client.patience_s))
        except AxernError:
            if kind is None:
                raise
        if kind is None:
            self.check()

    async def _keep(self, granted: Granted, term: Term) -> None:
        try:
            why = await self._client.do(steps.keep(granted, term))
        except Exception as error:  # noqa: BLE001 - whoever relies on it must hear of any end
            why = f"lease {granted.id} is kept no more: {error!r}"
        if why is not None:
            self._why = why
            self.lost.set()
