"""What to say of a bug, or of an answer that is whole but not what was promised."""

from __future__ import annotations

from ledger.errors import AxernError


def explained(error: Exception) -> AxernError:
    """Return *error* with its place, as an error that a user may see."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}" if trace else "nowhere"
    return AxernError(
        f"unexpected {type(error).__name__} in {place}: {str(error)[:200]}",
        hint="daemon and command line may be of different versions: axern version",
    )
