"""Faults of opening and recovery: what is taken for a ledger, and what a crash left unfinished."""

from __future__ import annotations

from tests.mutation.fault import Fault

_RECOVERY = "ledger/recovery.py"
_STORE = "ledger/store.py"
_FILES = "ledger/files.py"

FAULTS = (
    Fault(
        _RECOVERY,
        "        _require_unborn(folder)\n",
        "",
        "Where the checkpoint is missing a new, empty ledger is born over the old one.",
    ),
    Fault(
        _RECOVERY,
        "if not is_blank(folder.read(name))]",
        "]",
        "A birth that was cut short can't be tried again.",
    ),
    Fault(
        _RECOVERY,
        "    if violations:\n",
        "    if len(violations) > 9:\n",
        "A ledger that contradicts itself is opened.",
    ),
    Fault(
        _RECOVERY,
        "    if scan.torn or is_old:\n",
        "    if is_old:\n",
        "The next commit is written over a torn line, whose rest stays behind it.",
    ),
    Fault(
        _RECOVERY,
        "        _require_newest(folder, state.generation, least(base.node_id))\n",
        "",
        "An older copy that was put back is opened.",
    ),
    Fault(
        _RECOVERY,
        "        _require_newest(folder, 0, least(node_id))\n",
        "",
        "Where the ledger was removed within a boot a new one is born.",
    ),
    Fault(
        _RECOVERY,
        "    if generation < least:\n",
        "    if generation < least - 1:\n",
        "A copy that is older by one commit is opened.",
    ),
    Fault(
        _RECOVERY,
        '(wanted, "this node")):',
        '(marked, "this node")):',
        "The ledger of another node is opened.",
    ),
    Fault(
        _RECOVERY,
        '((marked, f"the file {NODE_ID}"),',
        '((wanted, f"the file {NODE_ID}"),',
        "A checkpoint that does not belong to its folder is opened.",
    ),
    Fault(
        _RECOVERY,
        '        checkpoint_file.write_small(folder, NODE_ID, f"{node_id}\\n".encode())\n',
        "",
        "Nothing marks the folder as that of a ledger.",
    ),
    Fault(
        _RECOVERY,
        "    folder.rename(blank.name, following)\n    folder.sync()\n",
        "    folder.rename(blank.name, following)\n",
        "The segment that a recovery begins has no durable name.",
    ),
    Fault(
        _RECOVERY,
        "return Position(following, 0, position.chain)",
        "return Position(following, 0, codec.NO_CHAIN)",
        "The chain of lines begins anew after a recovery.",
    ),
    Fault(
        "ledger/replay.py",
        "state.generation, state.clock = commit.generation, commit.clock",
        "state.generation = commit.generation",
        "After a reboot deadlines are counted from the checkpoint, not from the last commit.",
    ),
    Fault(
        _STORE,
        "                if ledger.state.clock.boot_id != now.boot_id:\n",
        "                if False:\n",
        "Deadlines of the boot before are not carried over.",
    ),
    Fault(
        _STORE,
        "                folder.sweep()\n",
        "",
        "Temporary files that a crash left pile up.",
    ),
    Fault(
        _STORE,
        "            require_local(path)\n",
        "",
        "A ledger is opened on a network file system.",
    ),
    Fault(
        _STORE,
        "        parent.sync()\n",
        "        pass\n",
        "The folder of a new ledger has no durable name.",
    ),
    Fault(
        _STORE,
        "self._ended = EndedRequests.of(loaded.state)",
        "self._ended = EndedRequests()",
        "Request records of ended entries are not bounded after a restart.",
    ),
    Fault(
        _STORE,
        "self._written = loaded.replayed_bytes",
        "self._written = 0",
        "What was replayed does not count for the next checkpoint.",
    ),
    Fault(
        _STORE,
        "if checkpoint and (dead or self.checkpoint_generation != self.generation):",
        "if checkpoint and dead:",
        "A clean stop leaves a checkpoint that is not complete.",
    ),
    Fault(
        _FILES,
        "_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK",
        "_OPEN = os.O_CLOEXEC | os.O_NONBLOCK",
        "A planted link redirects what root reads and writes.",
    ),
    Fault(
        _FILES,
        "        if not stat.S_ISREG(os.fstat(fd).st_mode):\n",
        "        if False:\n",
        "A planted pipe is read as a file of the ledger.",
    ),
    Fault(
        _FILES,
        "        rest = rest[count:]\n",
        "        rest = rest[len(rest) :]\n",
        "What a short write did not take is not written.",
    ),
    Fault(
        _FILES,
        "NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})",
        "NO_ROOM = frozenset({errno.ENOSPC})",
        "Where a quota is used up nothing can be given back.",
    ),
    Fault(
        "ledger/remembered.py",
        "if note and note[2] == boot_id.encode() else 0",
        "if note else 0",
        "What an earlier boot has seen keeps an older ledger from being put back.",
    ),
    Fault(
        "ledger/lock.py",
        "    undo.callback(lock.release)\n",
        "",
        "An opening that fails keeps the lock.",
    ),
)
