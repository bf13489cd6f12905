"""What `axern node setup` does: gives this host a filestore that enforces limits."""

from __future__ import annotations

from axern.cli.output import put, put_json, visible
from ledger.units import format_bytes, format_short, parse_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from axern.cli.actions.where import Where


def setup(where: Where, *, filestore_size: str | None, output: str) -> None:
    """Make the filestore, or say that it is there."""
    size = None if filestore_size is None else parse_bytes(filestore_size, "--filestore-size")
    from axern.config import load
    from axern.runtime.setup import set_up

    found = set_up(load(where.config), size)
    if output == "json":
        put_json(
            {
                "filestore": {
                    "path": found.path,
                    "image": found.image,
                    "made": found.made,
                    "size_bytes": found.size_bytes,
                    "free_bytes": found.free_bytes,
                }
            }
        )
        return
    size_text = format_short(found.size_bytes, format_bytes)
    free_text = format_short(found.free_bytes, format_bytes)
    where_text = f", in {found.image}" if found.image else ""
    word = "made" if found.made else "is there"
    put(
        visible(
            f"filestore {found.path} {word}: XFS with project quotas{where_text}, "
            f"{size_text}, {free_text} free"
        )
    )
