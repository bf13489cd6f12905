"""Where the daemon and its files are, as the global options and the configuration say."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from axern.api.client import Client
    from axern.config import Locations


class Where:
    """The global options; `config` is the path of the configuration, `socket` overrides its key."""

    __slots__ = ("config", "socket")

    def __init__(self, config: str | None = None, socket: str | None = None) -> None:
        self.config = config
        self.socket = socket

    def client(self) -> Client:
        """Return a client of the daemon, not connected yet."""
        from axern.api.client import Client

        return Client(self.socket or self._located().socket)

    def reach(self) -> Client:
        """Return a client of a daemon that has just answered; say so if its ledger is not well.

        Raises:
            DaemonUnreachable: No socket, nobody behind it, or no answer within two seconds.
        """
        client = self.client()
        ledger = client.health().get("ledger", {})
        if ledger.get("reason"):
            from axern.cli.output import say, visible

            say(visible(f"the ledger is {ledger['state']}: {ledger['reason']}"))
            if ledger["remedy"]:
                say(visible(ledger["remedy"]))
        return client

    @property
    def ledger_dir(self) -> str:
        """Return the ledger's folder."""
        return self._located().ledger_dir

    def _located(self) -> Locations:
        from axern.config import locate

        return locate(self.config)
