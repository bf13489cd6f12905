"""Who has which rights: the configuration's words, looked up once, and what the kernel says."""

from __future__ import annotations

import grp
import logging
import pwd
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger import rights
from ledger.rights import Caller

if TYPE_CHECKING:
    from collections.abc import Iterable

    from axern.api.messages import Peer
    from axern.settings import Settings

EVERYBODY = "*"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Those:
    """Some users, by their ids and by those of their groups."""

    everybody: bool = False
    uids: set[int] = field(default_factory=set)
    gids: set[int] = field(default_factory=set)

    def add(self, who: str) -> bool:
        """Add *who*, as the configuration spells it; return False if the host has no such name."""
        ids = self.gids if who.startswith("@") else self.uids
        name = who.removeprefix("@")
        try:
            if who == EVERYBODY:
                self.everybody = True
            elif name.isdecimal():
                ids.add(int(name))
            elif ids is self.gids:
                ids.add(grp.getgrnam(name).gr_gid)
            else:
                ids.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            return False
        return True

    def has(self, peer: Peer) -> bool:
        """Tell whether *peer* is among them."""
        if self.everybody or peer.uid in self.uids or peer.gid in self.gids:
            return True
        return not self.gids.isdisjoint(peer.groups)


class Grants:
    """The rights that a configuration gives.

    Names are looked up here and never again: a directory service that is slow or gone must not
    stand between a client and its answer.
    """

    def __init__(self, settings: Settings) -> None:
        self.unknown: list[str] = []
        self._rights = {
            right: self._those(getattr(settings, f"may_{right}")) for right in rights.RIGHTS
        }
        owners: dict[str, list[str]] = {}
        for pair in settings.namespace_owners:
            namespace, _, who = pair.partition("=")
            owners.setdefault(namespace, []).append(who)
        self._owners = {name: self._those(words) for name, words in owners.items()}
        if self.unknown:
            _log.warning(
                "axern.toml gives rights to whom this host does not know: %s; they count from the "
                "next start on",
                ", ".join(self.unknown),
            )

    def _those(self, words: Iterable[str]) -> _Those:
        those = _Those()
        self.unknown += [who for who in words if not those.add(who)]
        return those

    def caller(self, peer: Peer) -> Caller:
        """Return who *peer* is and what they may; root may everything, whatever is configured."""
        if peer.uid == 0:
            return rights.ROOT
        namespaces = frozenset(name for name, those in self._owners.items() if those.has(peer))
        given = {right for right, those in self._rights.items() if those.has(peer)}
        if namespaces:
            given.add(rights.READ)
        return Caller(peer.uid, rights.with_implied(given), namespaces)
