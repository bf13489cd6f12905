"""A light value behaves as the frozen dataclass that it stands for."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest

from ledger.frozen import frozen


@frozen
class Light:
    """One."""

    name: str
    size_bytes: int = 0

    @property
    def twice(self) -> int:
        return 2 * self.size_bytes


@dataclass(frozen=True, slots=True)
class Heavy:
    """The other."""

    name: str
    size_bytes: int = 0

    @property
    def twice(self) -> int:
        return 2 * self.size_bytes


@pytest.mark.parametrize("kind", [Light, Heavy])
def test_both_are_frozen_values(kind: Any) -> None:
    value = kind("a", size_bytes=3)
    assert (value.name, value.size_bytes, value.twice) == ("a", 3, 6)
    assert value == kind("a", 3) != kind("a")
    assert value != ("a", 3)
    assert len({value, kind("a", 3), kind("b")}) == 2
    assert repr(value) == f"{kind.__name__}(name='a', size_bytes=3)"
    assert copy.copy(kind) is kind
    with pytest.raises(AttributeError):
        value.name = "b"
    with pytest.raises(AttributeError):
        del value.name
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize("kind", [Light, Heavy])
@pytest.mark.parametrize(("positional", "named"), [((), {}), (("a", 1, 2), {}), (("a",), {"x": 1})])
def test_both_refuse_other_arguments(kind: Any, positional: Any, named: Any) -> None:
    with pytest.raises(TypeError):
        kind(*positional, **named)
