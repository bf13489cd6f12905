"""`axern ledger`: is it sound, who did what, would it decide the same again, and repairs."""

from __future__ import annotations

from axern.cli.commands.common import LIST_OUTPUT, ONLY_NAMESPACE, OUTPUT
from axern.cli.grammar import CHOICE, Argument, Command, Group, Option, flag, text

OPERATIONS = (
    "reserve",
    "start",
    "run",
    "stop",
    "retire",
    "release",
    "renew",
    "replace-token",
    "beat",
    "forget-requests",
    "observe-node",
    "rebase",
    "drain",
    "undrain",
    "retire-node",
    "namespace-create",
    "namespace-update",
    "namespace-delete",
    "quota-set",
    "quota-unset",
    "claim-create",
    "claim-update",
    "claim-release",
    "wait",
    "bypass",
    "hold",
    "grant",
    "ticket-end",
    "queue-pause",
    "queue-resume",
    "repair",
)
"""What stands in the journal; a test compares it with the code that writes it."""

LEDGER = Group(
    "ledger",
    "check the ledger, read its log, decide it again, repair it",
    detail="All of it reads the ledger's files, whether a daemon runs or not, and is for whoever "
    "may read them. Only repair --apply writes to a ledger.",
    example="axern ledger check",
    commands=(
        Command(
            "check",
            "verify the ledger and compare it with the host",
            detail="Verifies structure, chain and invariants, computes every account anew, and "
            "compares with control groups, mounts, project ids, processes and run folders, both "
            "ways. Exits with 0 in order, 1 for warnings, 3 for a problem, 7 where the ledger is "
            "damaged. Without a daemon only root compares with the host.",
            example="axern ledger check",
            action="axern.cli.actions.ledger_check:check",
            options=(OUTPUT,),
        ),
        Command(
            "log",
            "show who did what, when and why",
            detail="Goes back as far as the archive. Heartbeats are shown where --kind names them.",
            example="axern ledger log --since 2h --kind reserve --kind release",
            action="axern.cli.actions.ledger_log:log",
            arguments=(
                Argument(
                    "reservation_id",
                    "[ID]",
                    "only this one: an id, or the beginning of one",
                    required=False,
                    source="reservations",
                ),
            ),
            options=(
                ONLY_NAMESPACE,
                Option(
                    "--kind",
                    f"only this operation: {', '.join(OPERATIONS)}; may be repeated",
                    kind=CHOICE,
                    choices=OPERATIONS,
                    metavar="OPERATION",
                    repeats=True,
                ),
                text("--since", "TIME", "only from then on: a duration ago, or a time"),
                flag("--follow -f", "go on with what is added, until interrupted"),
                LIST_OUTPUT,
            ),
        ),
        Command(
            "dump",
            "print all that the ledger says, as JSON",
            example="axern ledger dump",
            action="axern.cli.actions.ledger_log:dump",
        ),
        Command(
            "replay",
            "decide everything again, and name the first difference",
            detail="Every grant is decided again on what was there before it, with the facts that "
            "the journal has of it and the caps of the configuration; accounts and phases are "
            "followed. Exits with 0 where all comes out the same, 1 where only today's caps would "
            "refuse a grant, 3 at a difference.",
            example="axern ledger replay --to 2026-01-31T12:00:00Z",
            action="axern.cli.actions.ledger_replay:replay",
            options=(
                text("--to", "GEN|TIME", "stop behind this generation, or at this time"),
                OUTPUT,
            ),
        ),
        Command(
            "repair",
            "make a copy of a damaged ledger that opens, and show the plan",
            detail="Keeps every commit that verifies from a checkpoint on. The copy lies beside "
            "the ledger, to be looked at; nothing else is touched. With --apply it takes the "
            "ledger's place, and the damaged files are kept beside it; a daemon that serves reads "
            "goes on with it. For root. Exits with 0 where nothing is to be done or it is done, 1 "
            "where a plan waits to be applied.",
            example="axern ledger repair --apply --reason 'bad sector on nvme0'",
            action="axern.cli.actions.ledger_repair:repair",
            options=(
                flag("--apply", "put the copy in the ledger's place; needs --reason"),
                text("--reason", "TEXT", "why; stands in the journal behind the repair"),
                OUTPUT,
            ),
        ),
        Command(
            "export-head",
            "print where the ledger stands, to be kept elsewhere",
            detail="Generation, chain hash and a digest of all rows. Whoever changes the ledger's "
            "files can make them look whole again, but not lead to a head that lies elsewhere.",
            example="axern ledger export-head -o json >head.json",
            action="axern.cli.actions.ledger_head:export_head",
            options=(OUTPUT,),
        ),
        Command(
            "verify-head",
            "say whether the ledger still leads to an exported head",
            detail="Finds an older copy that was put back, and a history that was changed. Exits "
            "with 0 where it is verified, 1 where the files no longer go back far enough to tell "
            "all, 3 where the ledger does not lead to it.",
            example="axern ledger verify-head head.json",
            action="axern.cli.actions.ledger_head:verify_head",
            arguments=(
                Argument("path", "FILE", "what export-head -o json wrote; - is standard input"),
            ),
            options=(OUTPUT,),
        ),
    ),
)
