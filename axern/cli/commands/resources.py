"""One flag for each request and limit that a user may set, made from the ledger's dimensions."""

from __future__ import annotations

from axern.cli.grammar import Option, text
from ledger.dimensions import DIMENSIONS, Dimension
from ledger.units import parse_cpu_milli

_ALWAYS_ONE = "sandbox_slots"


class ResourceFlag:
    """One flag of a dimension; `side` is the key of the body that it fills."""

    __slots__ = ("dimension", "flag", "parameter", "side")

    def __init__(self, side: str, dimension: Dimension) -> None:
        self.side = side
        self.dimension = dimension
        self.flag = f"--{side.removesuffix('s')}-{dimension.flag}"
        self.parameter = self.flag.removeprefix("--").replace("-", "_")

    def option(self) -> Option:
        """Return the flag as a row of the table."""
        in_cores = self.dimension.parse is parse_cpu_milli
        metavar, example = ("CORES", "500m or 1.5") if in_cores else ("BYTES", "512MiB")
        label = self.dimension.label
        what = f"{label} to reserve" if self.side == "requests" else f"most {label} it may use"
        return text(self.flag, metavar, f"{what}, e.g. {example}")


FLAGS = tuple(
    ResourceFlag(side, dimension)
    for dimension in DIMENSIONS
    if dimension.name != _ALWAYS_ONE
    # GPU memory has no limit.
    for side in (("requests",) if dimension.per_device else ("requests", "limits"))
)
"""Every resource flag, in the order of the dimensions."""
RESOURCE_OPTIONS = tuple(flag.option() for flag in FLAGS)
