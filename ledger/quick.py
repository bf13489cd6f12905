"""A quicker `__init__` for frozen dataclasses of which each commit makes several.

A frozen dataclass sets each field through `object.__setattr__`, a call a field: 3 us for a
reservation. Here a value is of a class without that bar while it is being made, whose fields are
set as any attribute is, in a fifth of the time. Nothing else of the dataclass changes: it is as
frozen as before once it is made. Source: docs/decisions/0037-quick-values.md.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def quick(cls: type[T]) -> type[T]:
    """Return *cls*, a frozen dataclass with slots, with an `__init__` that is quicker.

    Raises:
        TypeError: It has what this can't do: a base, a default that is made anew for each value,
            fields that are named only or left out of `__init__`, or a `__post_init__`.
    """
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    plain = (
        cls.__bases__ == (object,)
        and list(cls.__dict__.get("__slots__", ())) == names
        and not hasattr(cls, "__post_init__")
        and all(
            field.init and not field.kw_only and field.default_factory is MISSING
            for field in fields(cls)  # type: ignore[arg-type]
        )
    )
    if not plain or not names:
        raise TypeError(f"{cls.__name__} is no plain frozen dataclass with slots")
    open_class = type(cls.__name__, (), {"__slots__": tuple(names)})
    scope: dict[str, Any] = {
        "_set": object.__setattr__,
        "_open": open_class,
        "_closed": cls,
        "_defaults": {field.name: field.default for field in fields(cls)},  # type: ignore[arg-type]
    }
    arguments = [
        field.name if field.default is MISSING else f"{field.name}=_defaults[{field.name!r}]"
        for field in fields(cls)  # type: ignore[arg-type]
    ]
    lines = [
        f"def __init__(self, {', '.join(arguments)}):",
        "    _set(self, '__class__', _open)",
        *(f"    self.{name} = {name}" for name in names),
        "    self.__class__ = _closed",
    ]
    exec("\n".join(lines), scope)  # noqa: S102 - as dataclasses does, from field names alone
    made = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    made.__annotations__ = cls.__init__.__annotations__
    cls.__init__ = made  # type: ignore[method-assign]
    return cls
