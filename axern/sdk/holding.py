"""What a lease knows of itself, whether a thread or a task keeps it."""

from __future__ import annotations

from axern.api.term import boottime_s
from axern.errors import LeaseLost
from axern.sdk.results import NotHeld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Event as TaskEvent
    from threading import Event as ThreadEvent

    from axern.api.term import Term
    from axern.sdk.results import Granted


class Holding:
    """A lease as it was granted, and whether it is lost; the kinds of it say how it is kept."""

    def __init__(self, lost: ThreadEvent | TaskEvent) -> None:
        self._held: tuple[Granted, Term] | None = None
        self._why = ""
        self.lost = lost

    @property
    def granted(self) -> Granted:
        """Return the lease as it was granted; raises NotHeld before that."""
        return self._both()[0]

    @property
    def id(self) -> str:
        """Return the id of the reservation."""
        return self.granted.id

    @property
    def token(self) -> str:
        """Return what stands for the holder; whoever has it may renew the lease."""
        return self.granted.token

    @property
    def expires_in_s(self) -> float:
        """Return how long it lasts for certain, if it is renewed no more."""
        return max(0.0, self._both()[1].deadline_s - boottime_s())

    def check(self) -> None:
        """Raise LeaseLost if it is lost."""
        if self.lost.is_set():
            raise LeaseLost(self._why)

    def _both(self) -> tuple[Granted, Term]:
        if self._held is None:
            raise NotHeld("the lease is not held: enter it by a with block")
        return self._held
