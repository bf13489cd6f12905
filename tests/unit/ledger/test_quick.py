"""Tests that a quick dataclass is the same as one without."""

import copy
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from inspect import signature
from typing import Any

import pytest

from ledger.admission import Admitted, Demand
from ledger.clock import Now
from ledger.facts import Facts
from ledger.quick import quick
from ledger.reservation import Owner, Reservation
from ledger.resources import OptionalResources, Resources
from ledger.spec import ResolvedSpec, ResourceSpec
from ledger.state import Change, Put
from ledger.tables import RequestRecord
from ledger.transitions import Proposal

QUICK = (Admitted, Change, Demand, Facts, Now, OptionalResources, Owner, Proposal, Put)
QUICK += (RequestRecord, Reservation, ResolvedSpec, Resources, ResourceSpec)  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Slow:
    """Two fields, one with a default."""

    first: int
    second: str = "two"


@quick
@dataclass(frozen=True, slots=True)
class Fast:
    """The same, made quickly."""

    first: int
    second: str = "two"


@pytest.mark.parametrize("kind", QUICK)
def test_every_field_gets_its_own_argument(kind: Any) -> None:
    names = [one.name for one in fields(kind)]
    made = kind(*names)
    assert [getattr(made, name) for name in names] == names
    assert kind(**{name: name for name in names}) == made
    assert type(made) is kind
    with pytest.raises(FrozenInstanceError):
        setattr(made, names[0], "other")


@pytest.mark.parametrize("kind", QUICK)
def test_defaults_are_the_fields_own(kind: Any) -> None:
    parameters = signature(kind).parameters
    for one in fields(kind):
        default = parameters[one.name].default
        assert (default is parameters[one.name].empty) == (one.default is not default)


def test_it_is_what_a_slow_one_is() -> None:
    fast, slow = Fast(1), Slow(1)
    assert repr(fast) == repr(slow).replace("Slow", "Fast")
    assert hash(fast) == hash(slow)
    assert replace(fast, second="x") == Fast(1, "x")
    assert copy.deepcopy(fast) == fast
    assert not hasattr(fast, "__dict__")
    for arguments in ((), (1, "a", "b")):
        with pytest.raises(TypeError):
            Fast(*arguments)
    with pytest.raises(TypeError):
        Fast(1, third=3)  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True)
class Anew:
    """A default made anew."""

    rows: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Open:
    """No slots."""

    first: int


@dataclass(frozen=True, slots=True)
class Derived(Slow):
    """A base."""

    third: int = 3


@dataclass(frozen=True, slots=True)
class After:
    """Work after `__init__`."""

    first: int

    def __post_init__(self) -> None:
        """Do it."""


@pytest.mark.parametrize("kind", [Anew, Open, Derived, After])
def test_what_it_cannot_do_is_refused(kind: type) -> None:
    with pytest.raises(TypeError, match=kind.__name__):
        quick(kind)
