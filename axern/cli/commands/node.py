"""`axern node`: what there is to run on."""

from __future__ import annotations

from axern.cli.commands.common import OUTPUT
from axern.cli.grammar import Command, Group, text

NODE = Group(
    "node",
    "show this node",
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
