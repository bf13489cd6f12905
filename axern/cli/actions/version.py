"""What `axern version` does; it asks nobody."""

from __future__ import annotations

from axern import __version__
from axern.cli.output import put, put_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from axern.cli.actions.where import Where


def version(_where: Where, *, output: str) -> None:
    """Show the version of this program; the daemon is not asked."""
    if output == "json":
        put_json({"version": __version__})
    else:
        put(f"axern {__version__}")
