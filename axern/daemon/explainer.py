"""Explains refusals on the event loop, within a share of its time: commits go first.

An explanation looks at every entry. Where many are refused at once, those that come too soon after
each other have the numbers alone, which the decision has found already; whoever asks for an
explanation itself waits for its turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ledger import why

if TYPE_CHECKING:
    from ledger.refusal import Refusal
    from ledger.why import Case

SHARE = 0.05
"""The part of the loop's time that explanations may take."""
CREDIT_S = 0.1
"""What may be taken at once after a while without any."""
_LONGEST_WAIT_S = 5.0
_A_LITTLE_S = 0.01


class Explainer:
    """Explains as long as the share lasts; *clock* in seconds, never set back."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._credit_s = CREDIT_S
        self._counted_at_s = clock()

    @property
    def has_time(self) -> bool:
        """Tell whether the share lasts for one more."""
        return self._left_s() > 0

    def explain(self, case: Case, refusal: Refusal) -> Refusal:
        """Return *refusal* with its explanation, or as it is where the share is used up."""
        if not self.has_time:
            return refusal
        started_s = self._clock()
        explanation = why.explain(case, refusal)
        self._credit_s -= self._clock() - started_s
        return replace(refusal, explanation=explanation)

    async def turn(self) -> None:
        """Wait until there is time for one; at most a few seconds."""
        wait_s = -self._left_s() / SHARE
        if wait_s >= 0:
            await asyncio.sleep(min(_LONGEST_WAIT_S, wait_s + _A_LITTLE_S))

    def _left_s(self) -> float:
        now_s = self._clock()
        earned_s = SHARE * (now_s - self._counted_at_s)
        self._counted_at_s = now_s
        self._credit_s = min(CREDIT_S, self._credit_s + earned_s)
        return self._credit_s
