"""`axern node`: what there is to run on."""

from __future__ import annotations

from axern.cli.commands.common import OUTPUT
from axern.cli.grammar import Command, Group, flag, text

_REASON = text("--reason", "TEXT", "why; kept in the journal and told to whoever is refused")
NODE = Group(
    "node",
    "show this node, and say whether it takes new work",
    example="axern node capacity",
    commands=(
        Command(
            "status",
            "show the daemon, its runtimes and what this host can enforce",
            example="axern node status",
            action="axern.cli.actions.show:node_status",
            options=(OUTPUT,),
        ),
        Command(
            "capacity",
            "show what the node has, and who holds how much",
            detail="Amounts are rounded down.",
            example="axern node capacity -o json",
            action="axern.cli.actions.show:node_capacity",
            options=(OUTPUT,),
        ),
        Command(
            "doctor",
            "check what this host can enforce, and what is wrong with it",
            detail="One line a check, and below them each remedy once. Status absent is what the "
            "node lacks and need not have. Exits with 0, 1 for warnings, 3 for an error. "
            "Without a daemon root proves everything here. --probe is for root: it runs a sandbox "
            "of each runtime, and the self-tests of limits.",
            example="axern node doctor",
            action="axern.cli.actions.node_doctor:doctor",
            options=(flag("--probe", "run a real sandbox of each runtime, too"), OUTPUT),
        ),
        Command(
            "drain",
            "admit nothing new; what runs goes on",
            detail="It outlives restarts. Whoever is refused is told the reason, and that it is no "
            "use to try again. Without a daemon, root drains under the ledger's lock.",
            example="axern node drain --reason 'new kernel on Monday'",
            action="axern.cli.actions.standing:drain",
            options=(_REASON, OUTPUT),
        ),
        Command(
            "undrain",
            "take new work again",
            example="axern node undrain",
            action="axern.cli.actions.standing:undrain",
            options=(OUTPUT,),
        ),
        Command(
            "retire",
            "take no work ever again",
            detail="Only when nothing is left on the node. Its identity never comes back: no "
            "daemon serves on its ledger again, which stays to be read.",
            example="axern node retire --reason 'the host goes back'",
            action="axern.cli.actions.standing:retire",
            options=(_REASON, OUTPUT),
        ),
        Command(
            "setup",
            "make the filestore, where limits on storage hold",
            detail="Makes a file of this size, an XFS inside, and mounts it with project quotas; "
            "the daemon mounts it again after a boot. Where the filestore has project quotas "
            "already nothing is changed: repeat it freely. No daemon may run meanwhile.",
            example="axern node setup --filestore-size 100GiB",
            action="axern.cli.actions.setup:setup",
            options=(
                text("--filestore-size", "SIZE", "how large, 512MiB or more; taken at once"),
                OUTPUT,
            ),
        ),
    ),
)
