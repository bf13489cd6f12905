"""What `axern whoami` does: show what the daemon lets this user do."""

from __future__ import annotations

from axern.cli.output import put_fields, put_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from axern.cli.actions.where import Where


def whoami(where: Where, *, output: str) -> None:
    """Show the rights of whoever asks, and the namespaces that they own."""
    with where.reach() as client:
        answer = client.request("GET", "/v2/whoami")
    if output == "json":
        put_json(answer)
        return
    you = answer["you"]
    put_fields(
        [
            ("uid", you["uid"]),
            ("rights", ", ".join(you["rights"]) or "none"),
            ("owner of", ", ".join(you["namespaces"])),
        ]
    )
