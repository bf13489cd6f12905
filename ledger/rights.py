"""Who may do what: four rights, one table of verbs, and the one function that decides.

Pure: who somebody is, and which rights the configuration gives them, `axern.daemon.grants` knows.
Every route of the API names its verb here, and every use case that looks at an owner asks `may` or
`require`. Source: docs/decisions/0033-rights.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.errors import PermissionDenied
from ledger.quick import quick

READ, RESERVE, LAUNCH, ADMIN = "read", "reserve", "launch", "admin"
RIGHTS = (READ, RESERVE, LAUNCH, ADMIN)
_IMPLIED = {RESERVE: {READ}, LAUNCH: {READ}, ADMIN: {READ, RESERVE, LAUNCH}}

OWNER, NAMESPACE_OWNER, TOKEN = "owner", "namespace owner", "token"
"""Whose a thing must be: the caller's own, in a namespace of theirs, or the token fits."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who asks: their rights, and the namespaces that they own."""

    uid: int
    rights: frozenset[str]
    namespaces: frozenset[str] = frozenset()

    @property
    def is_admin(self) -> bool:
        """Tell whether they may do all that needs no token."""
        return ADMIN in self.rights


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing to do: the right that it takes, and whose what it is done to must be.

    `right` is None where none is needed. `whose` is empty where it is done to nothing that anybody
    owns; else one of them is enough, and an admin needs none, except where a token is the fence.
    """

    name: str
    words: str
    right: str | None
    whose: tuple[str, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Thing:
    """What a verb is done to, and whose it is; `uid` and `namespace` are None where unknown."""

    name: str
    uid: int | None = None
    namespace: str | None = None
    token_fits: bool = False


_THEIRS = (OWNER, NAMESPACE_OWNER)

HEAR = Verb("hear", "ask how the daemon is, and who one is", None)
SEE = Verb("see", "look at the node and all that is on it", READ)
EXPLAIN = Verb("explain", "ask how a run would be decided on", READ)
RUN = Verb("run", "run a command in a sandbox", LAUNCH)
RUN_ROOTFS = Verb("run-rootfs", "run from a root file system of one's own", ADMIN)
RUN_HOST_NETWORK = Verb("run-host-network", "run in the host's own network", ADMIN)
WRITE_INPUT = Verb("write-input", "write to the standard input of a run", LAUNCH, (OWNER,))
EXEC = Verb("exec", "add a command to a running sandbox", LAUNCH, _THEIRS)
STEER = Verb(
    "steer", "follow, signal or end a command that was added, also with its token", None, _THEIRS
)
TELL_RUN = Verb("tell-run", "read the command, message and output of a run", READ, _THEIRS)
CANCEL = Verb("cancel", "cancel a run", None, _THEIRS)
PRUNE = Verb("prune", "remove runs that have ended", READ, _THEIRS)
HOLD = Verb("hold", "hold resources without a sandbox", RESERVE)
RENEW = Verb("renew", "say that the owner of a lease lives, and renew it", RESERVE, (TOKEN,))
HURRY = Verb("hurry", "wait with a priority above the usual one", ADMIN)
LEAVE_QUEUE = Verb("leave-queue", "wait for a grant, or leave the queue", None, _THEIRS)
REST = Verb("rest", "pause and resume the queue", ADMIN)
RELEASE = Verb("release", "release a reservation, by force too", None, _THEIRS)
NAME_HOLDER = Verb("name-holder", "see by name, and not summed, who holds what", READ, _THEIRS)
SET_DEFAULTS = Verb(
    "set-defaults", "set what a request in a namespace gets that says nothing", READ,
    (NAMESPACE_OWNER,),
)  # fmt: skip
GOVERN = Verb("govern", "make, bound and delete namespaces, set quotas and claims", ADMIN)
STAND = Verb("stand", "drain, undrain and retire the node", ADMIN)
ADD_TEMPLATE = Verb("add-template", "add and remove templates", ADMIN)

TABLE = (
    HEAR, SEE, EXPLAIN, RUN, RUN_ROOTFS, RUN_HOST_NETWORK, WRITE_INPUT, EXEC, STEER, TELL_RUN,
    CANCEL, PRUNE, HOLD, RENEW, HURRY, LEAVE_QUEUE, REST, RELEASE, NAME_HOLDER, SET_DEFAULTS,
    GOVERN, STAND, ADD_TEMPLATE,
)  # fmt: skip
"""Every verb there is."""


def with_implied(rights: frozenset[str] | set[str]) -> frozenset[str]:
    """Return *rights* and those that go with them: whoever may hold or launch may read."""
    return frozenset(rights).union(*(_IMPLIED.get(right, ()) for right in rights))


ROOT = Caller(0, frozenset(RIGHTS))


def by_default(uid: int) -> Caller:
    """Return the user *uid* as they are where nothing is configured: root is the one admin."""
    return ROOT if uid == 0 else Caller(uid, frozenset({READ, RESERVE, LAUNCH}))


def has_right(verb: Verb, caller: Caller) -> bool:
    """Tell whether *caller* has the right that *verb* takes, whatever it is done to."""
    return verb.right is None or verb.right in caller.rights


def may(
    verb: Verb,
    caller: Caller,
    uid: int | None = None,
    namespace: str | None = None,
    *,
    token_fits: bool = False,
) -> bool:
    """Tell whether *caller* may do *verb* to what the user *uid* owns in *namespace*."""
    if not has_right(verb, caller):
        return False
    if not verb.whose:
        return True
    if TOKEN in verb.whose:
        return token_fits
    if caller.is_admin or (OWNER in verb.whose and uid == caller.uid):
        return True
    return NAMESPACE_OWNER in verb.whose and namespace in caller.namespaces


def require_right(verb: Verb, caller: Caller) -> None:
    """Raise PermissionDenied unless *caller* has the right that *verb* takes."""
    if has_right(verb, caller):
        return
    have = ", ".join(right for right in RIGHTS if right in caller.rights) or "none"
    if verb.right == ADMIN:
        rule = f"only an admin may {verb.words}, and you are uid {caller.uid} with the rights"
    else:
        rule = f"to {verb.words} takes the right {verb.right}, and uid {caller.uid} has"
    raise PermissionDenied(
        f"{rule}: {have}",
        hint=f"may_{verb.right} in axern.toml says who has it; axern whoami shows what you may do",
    )


def require(verb: Verb, caller: Caller, thing: Thing) -> None:
    """Raise PermissionDenied unless *caller* may do *verb* to *thing*."""
    require_right(verb, caller)
    if may(verb, caller, thing.uid, thing.namespace, token_fits=thing.token_fits):
        return
    if TOKEN in verb.whose:
        raise wrong_token(verb, thing.name)
    raise PermissionDenied(
        f"{thing.name} {_belongs(verb, thing)}, and you are uid {caller.uid}",
        hint=f"to {verb.words} is for {_those(verb, thing)}; axern whoami shows what you may do",
    )


def wrong_token(verb: Verb, name: str) -> PermissionDenied:
    """Return the error for a token that is not, or no longer, the one of *name*."""
    return PermissionDenied(
        f"the token does not belong to {name}",
        hint=f"to {verb.words} takes the token that the last answer to its reserve had",
    )


def _belongs(verb: Verb, thing: Thing) -> str:
    if OWNER not in verb.whose:
        return "is not yours"
    where = "" if thing.namespace is None else f" in namespace {thing.namespace}"
    whose = "nobody that is remembered" if thing.uid is None else f"uid {thing.uid}"
    return f"belongs to {whose}{where}"


def _those(verb: Verb, thing: Thing) -> str:
    those = []
    if OWNER in verb.whose and thing.uid is not None:
        those.append("its owner")
    if NAMESPACE_OWNER in verb.whose and thing.namespace is not None:
        those.append(f"an owner of the namespace {thing.namespace}")
    return " or ".join([*those, "an admin"])


def table() -> str:
    """Return the Markdown table of all verbs, the right that each takes, and whose it must be."""
    rows = ["| to | right | whose |", "| --- | --- | --- |"]
    for verb in TABLE:
        whose = " or ".join(_NAMES[each] for each in verb.whose) or "–"
        rows.append(f"| {verb.words} | {verb.right or '–'} | {whose} |")
    return "\n".join(rows)


_NAMES = {
    OWNER: "one's own",
    NAMESPACE_OWNER: "in a namespace of one's own",
    TOKEN: "who has its token, and nobody else",
}
