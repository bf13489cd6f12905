"""Which sandbox hit its storage limit: what the kernel told, and what nobody can know."""

from __future__ import annotations

from axern.daemon.limit_hits import LimitHits
from axern.host.quota_events import Heard

MINE, OTHER = 0x70000007, 0x70000008


class Kernel:
    """Says next what the test wants."""

    def __init__(self) -> None:
        self.told: set[int] = set()
        self.lost = False
        self.is_gone = False

    def hear(self, _: str) -> Heard:
        if self.is_gone:
            raise FileNotFoundError
        heard = Heard(frozenset(self.told), self.lost)
        self.told, self.lost = set(), False
        return heard


def listening() -> tuple[LimitHits, Kernel]:
    hits, kernel = LimitHits("/nowhere"), Kernel()
    hits._events = kernel  # type: ignore[assignment]
    return hits, kernel


def test_what_the_kernel_tells_is_known_once() -> None:
    hits, kernel = listening()
    hits.follow(MINE)
    hits.follow(OTHER)
    kernel.told = {MINE}
    assert [hits.end(each) for each in (OTHER, MINE, MINE)] == [False, True, None]


def test_what_an_earlier_sandbox_did_is_not_told_of_the_next() -> None:
    hits, kernel = listening()
    kernel.told = {MINE}
    hits.follow(MINE)
    assert hits.end(MINE) is False


def test_of_who_was_there_before_only_a_hit_is_known() -> None:
    hits, kernel = listening()
    assert hits.end(MINE) is None
    kernel.told = {MINE}
    assert hits.end(MINE) is True
    assert hits.end(None) is None


def test_where_the_kernel_told_too_much_a_hit_may_be_missing() -> None:
    hits, kernel = listening()
    for trouble in ("lost", "is_gone"):
        hits.follow(MINE)
        setattr(kernel, trouble, True)
        assert hits.end(MINE) is None


def test_without_a_kernel_that_tells_nothing_is_known() -> None:
    hits = LimitHits("/nowhere")
    hits.follow(MINE)
    assert hits.end(MINE) is None
