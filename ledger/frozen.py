"""Frozen values for what every command loads, as `dataclass(frozen=True, slots=True)` makes them.

Importing `dataclasses` and letting it write the code of six classes is half of a start; this is a
tenth of it. Type checkers take the one for the other. Elsewhere a dataclass is the right word.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar, dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_: object) -> object:
        """Stand for the decorator that only type checkers read."""
        return lambda decorator: decorator


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Return *cls* with its annotated names as slots that are set once, when a value is made.

    Raises:
        TypeError: When a value is made: an argument is missing, unknown or one too many.
    """
    names = tuple(cls.__annotations__)
    body = {
        key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__")
    }
    defaults = {name: body.pop(name) for name in names if name in body}

    def initialise(self: object, *positional: Any, **named: Any) -> None:
        values = {**defaults, **dict(zip(names, positional, strict=False)), **named}
        if len(positional) > len(names) or values.keys() != set(names):
            raise TypeError(f"{cls.__name__} is made of {', '.join(names)}")
        for name in names:
            object.__setattr__(self, name, values[name])

    def refuse(_self: object, name: str, _value: object = None) -> None:
        raise AttributeError(f"{cls.__name__}.{name} can't be changed")

    def values_of(value: object) -> tuple[object, ...]:
        return tuple(getattr(value, name) for name in names)

    def equals(self: object, other: object) -> bool:
        return type(self) is type(other) and values_of(self) == values_of(other)

    def shown(self: object) -> str:
        pairs = zip(names, values_of(self), strict=True)
        return f"{cls.__name__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    body |= {
        "__slots__": names,
        "__init__": initialise,
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__eq__": equals,
        "__hash__": lambda self: hash(values_of(self)),
        "__repr__": shown,
    }
    return type(cls.__name__, cls.__bases__, body)
