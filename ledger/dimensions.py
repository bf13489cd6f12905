"""The resource dimensions, listed once; whatever shows, sums or checks amounts iterates over them.

Apart from the vectors because every command loads this.
"""

from __future__ import annotations

from collections.abc import Callable

from ledger.errors import InvalidArgument
from ledger.frozen import frozen
from ledger.units import format_bytes, format_cpu_milli, parse_bytes, parse_cpu_milli


@frozen
class Dimension:
    """Describe one dimension: its field name with the unit, its words, and how text becomes it.

    `label` stands in sentences, `heading` over a column.
    """

    name: str
    label: str
    heading: str
    flag: str
    parse: Callable[[str, str], int]
    format: Callable[[int], str]
    per_device: bool = False


def parse_count(text: str, field: str) -> int:
    """Return the whole number that *text* names, 0 to 2**53 - 1; a count has no unit."""
    if not text.strip(" ").isdecimal():
        raise InvalidArgument(
            f"{field}: {text[:64]!r} is not valid: it must be a whole number", hint="for example 10"
        )
    return parse_bytes(text, field)


DIMENSIONS = (
    Dimension("cpu_milli", "CPU", "CPU", "cpu", parse_cpu_milli, format_cpu_milli),
    Dimension("memory_bytes", "memory", "MEMORY", "memory", parse_bytes, format_bytes),
    Dimension(
        "ephemeral_storage_bytes",
        "ephemeral storage",
        "STORAGE",
        "ephemeral-storage",
        parse_bytes,
        format_bytes,
    ),
    Dimension(
        "gpu_memory_bytes",
        "GPU memory",
        "GPU",
        "gpu-memory",
        parse_bytes,
        format_bytes,
        per_device=True,
    ),
    Dimension("sandbox_slots", "sandbox slots", "SLOTS", "sandbox-slots", parse_count, str),
)
BY_NAME = {dimension.name: dimension for dimension in DIMENSIONS}
