"""Everything that can be wrong with a ledger's files, as findings; nothing is written.

Structure, chain, accounts and invariants are recomputed without the code that made them.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from ledger import checkpoint as checkpoint_file
from ledger import contents as contents_of
from ledger import invariants
from ledger.archive import ARCHIVE
from ledger.blank import BALLAST
from ledger.codec import Checkpoint, Commit
from ledger.contents import Contents, Present
from ledger.errors import LedgerCorrupt, LedgerTooNew
from ledger.files import Folder, translate
from ledger.findings import DAMAGE, PROBLEM, WARNING, Finding
from ledger.journal import first_generation
from ledger.past import DAMAGED, MISSING, REPAIR, UNCHAINED, Flaw, Past, walk
from ledger.recovery import NODE_ID

CHECKPOINT_MISSING = "checkpoint-missing"
CHECKPOINT_DAMAGED = "checkpoint-damaged"
CHECKPOINT_DIFFERS = "checkpoint-differs"
JOURNAL_DAMAGED = "journal-damaged"
TORN_LINE = "torn-line"
CONTRADICTION = "contradiction"
OUT_OF_BALANCE = "out-of-balance"
UNBALANCED_OPERATION = "unbalanced-operation"
CHAIN_BROKEN = "chain-broken"
ARCHIVE_DAMAGED = "archive-damaged"
ARCHIVE_GAP = "archive-gap"
PREVIOUS_DAMAGED = "previous-damaged"
PREVIOUS_NEWER = "previous-newer"
NODE_ID_MISSING = "node-id-missing"
NODE_ID_DIFFERS = "node-id-differs"
FOREIGN_FILE = "foreign-file"
UNSAFE_MODE = "unsafe-mode"

CODES = {
    CHECKPOINT_MISSING: DAMAGE,
    CHECKPOINT_DAMAGED: DAMAGE,
    CHECKPOINT_DIFFERS: PROBLEM,
    JOURNAL_DAMAGED: DAMAGE,
    TORN_LINE: WARNING,
    CONTRADICTION: DAMAGE,
    OUT_OF_BALANCE: DAMAGE,
    UNBALANCED_OPERATION: PROBLEM,
    CHAIN_BROKEN: PROBLEM,
    ARCHIVE_DAMAGED: WARNING,
    ARCHIVE_GAP: WARNING,
    PREVIOUS_DAMAGED: WARNING,
    PREVIOUS_NEWER: PROBLEM,
    NODE_ID_MISSING: WARNING,
    NODE_ID_DIFFERS: DAMAGE,
    FOREIGN_FILE: WARNING,
    UNSAFE_MODE: PROBLEM,
}
"""Each kind of finding with its severity."""

_REPAIR = "axern ledger repair"
_COMPARE = "axern ledger verify-head FILE, with the newest head that was exported"
_NAMES = frozenset(  # not taken from `lock`, which needs more than this may need
    {
        checkpoint_file.CHECKPOINT,
        checkpoint_file.PREVIOUS,
        ARCHIVE,
        NODE_ID,
        BALLAST,
        "ledger.lock",
        "ledger.holder",
    }
)
_UNSAFE_BITS = 0o027
_MOST_NAMED = 5
_FLAWS = {DAMAGED: ARCHIVE_DAMAGED, MISSING: ARCHIVE_GAP, UNCHAINED: CHAIN_BROKEN}


@dataclass(slots=True)
class Report:
    """What was found; `present` is None where the files can't be trusted."""

    findings: list[Finding] = field(default_factory=list)
    present: Present | None = None

    def add(self, code: str, name: str, found: str, remedy: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(code, CODES[code], name, found, remedy))


def examine(directory: str | os.PathLike[str]) -> Report:
    """Return everything that is wrong with the ledger in *directory*; a daemon may use it.

    Raises:
        LedgerTooNew: A newer program wrote it.
        LedgerBusy: It changes too fast to be read.
        NotFound: There is none.
        PermissionDenied: This user may not read it.
    """
    path = os.path.abspath(directory)
    try:
        return _examine(path)
    except OSError as err:
        raise translate(err, path) from err


def _examine(path: str) -> Report:
    folder = Folder(path)
    try:
        report = Report()
        _examine_names(folder, report)
        base = _read_base(folder, report)
        if base is not None:
            report.present = _read_present(folder, report)
        if report.present is not None:
            base = report.present.base
            _examine_accounts(report.present, report)
        if base is not None:
            _examine_node_id(folder, base, report)
            _examine_past(folder, base, report)
        return report
    finally:
        folder.close()


def examine_present(folder: Folder, present: Present) -> list[Finding]:
    """Return everything that is wrong with *present*, which was read, and beside it."""
    report = Report(present=present)
    _examine_accounts(present, report)
    _examine_node_id(folder, present.base, report)
    _examine_past(folder, present.base, report)
    return report.findings


def _examine_names(folder: Folder, report: Report) -> None:
    """Look at what lies in the folder: its names, kinds and modes."""
    for name in folder.names():
        try:
            mode = os.stat(name, dir_fd=folder.fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue
        path = os.path.join(folder.path, name)
        ours = name in _NAMES or first_generation(name) is not None or name.endswith(".tmp")
        wanted = stat.S_ISDIR if name == ARCHIVE else stat.S_ISREG
        if not ours or not wanted(mode):
            report.add(
                FOREIGN_FILE,
                name,
                f"{path} is {'no file of a ledger' if not ours else 'a link, a pipe or a folder'}",
                f"find out who put it there, then move it away: mv {path} /root/",
            )
        elif mode & _UNSAFE_BITS:
            words = f"{path} has mode {stat.S_IMODE(mode):04o}: more than its group may touch it"
            remedy = f"chmod {'0750' if stat.S_ISDIR(mode) else '0640'} {path}"
            report.add(UNSAFE_MODE, name, words, remedy)


def _read_base(folder: Folder, report: Report) -> Checkpoint | None:
    try:
        return checkpoint_file.read(folder)
    except LedgerCorrupt as err:
        report.add(CHECKPOINT_DAMAGED, checkpoint_file.CHECKPOINT, err.message, _REPAIR)
    except FileNotFoundError:
        if not any(name in _NAMES or first_generation(name) for name in folder.names()):
            raise
        words = f"{folder.path} has files of a ledger, but {checkpoint_file.CHECKPOINT} is missing"
        report.add(CHECKPOINT_MISSING, checkpoint_file.CHECKPOINT, words, _REPAIR)
    return None


def _read_present(folder: Folder, report: Report) -> Present | None:
    try:
        return contents_of.read(folder)
    except LedgerCorrupt as err:
        report.add(JOURNAL_DAMAGED, "journal", err.message, _REPAIR)
    return None


def _examine_accounts(present: Present, report: Report) -> None:
    if present.torn is not None:
        words = (
            f"{present.torn}: a torn line, which was never answered; the next start of axernd "
            "drops it"
        )
        report.add(TORN_LINE, present.torn, words, "none")
    contents = present.contents
    for each in contents.imbalances:
        report.add(
            UNBALANCED_OPERATION,
            f"generation {each.generation}",
            f"generation {each.generation}: {each.operation} is off by {each.total} in {each.pool}",
            f"axern ledger replay --to {each.generation}",
        )
    closing, unbalanced = invariants.trial_balance(contents.balances, ())
    for violation in unbalanced:
        report.add(OUT_OF_BALANCE, "accounts", f"trial balance: {violation.message}", _REPAIR)
    for violation in invariants.check(contents.tables, closing):
        report.add(CONTRADICTION, violation.code, violation.message, _REPAIR)


def _examine_node_id(folder: Folder, base: Checkpoint, report: Report) -> None:
    try:
        marked = folder.read(NODE_ID).decode(errors="replace").strip()
    except FileNotFoundError:
        words = f"the file {NODE_ID} is missing; the next start of axernd makes it again"
        report.add(NODE_ID_MISSING, NODE_ID, words, "none")
        return
    except LedgerCorrupt as err:
        marked = err.message
    if marked != base.node_id:
        words = f"the file {NODE_ID} names another node than {base.node_id}"
        report.add(NODE_ID_DIFFERS, NODE_ID, words, "put the right ledger back")


def _examine_past(folder: Folder, base: Checkpoint, report: Report) -> None:
    """Verify every line up to *base*, and count again from birth, or the checkpoint before it."""
    recount = _Recount(base, _read_previous(folder, base, report), report)
    chain: str | None = None
    with Past(folder.path) as past:
        if past.firsts()[:1] == [1]:
            recount.begin_at_birth()
        for each in walk(past):
            if isinstance(each, Flaw):
                if each.generation > base.generation:
                    break
                code = _FLAWS.get(each.kind, ARCHIVE_DAMAGED)
                remedy = _COMPARE if code == CHAIN_BROKEN else "none: what holds now is not touched"
                report.add(code, each.place, f"{each.place}: {each.rule}", remedy)
                recount.lose()
                continue
            _, commit = each
            if commit.generation > base.generation:
                break
            recount.take(commit)
            chain = commit.chain if commit.generation == base.generation else None
    if chain not in (None, base.position.chain):
        words = f"the checkpoint does not stand on the chain of generation {base.generation}"
        report.add(CHAIN_BROKEN, checkpoint_file.CHECKPOINT, words, _COMPARE)
    recount.end()


def _read_previous(folder: Folder, base: Checkpoint, report: Report) -> Checkpoint | None:
    name = checkpoint_file.PREVIOUS
    try:
        found = checkpoint_file.read(folder, checkpoint_file.PREVIOUS)
    except FileNotFoundError:
        return None
    except (LedgerCorrupt, LedgerTooNew) as err:
        report.add(PREVIOUS_DAMAGED, name, err.message, "none: the next checkpoint replaces it")
        return None
    if found.generation > base.generation:
        words = (
            f"{name} is of generation {found.generation}, {checkpoint_file.CHECKPOINT} of "
            f"{base.generation}: an older one was put in its place"
        )
        report.add(PREVIOUS_NEWER, name, words, _COMPARE)
        return None
    return found


class _Recount:
    """The rows and accounts that follow from a start and the commits behind it."""

    def __init__(self, base: Checkpoint, previous: Checkpoint | None, report: Report) -> None:
        self._base = base
        self._previous = previous
        self._report = report
        self._contents: Contents | None = None

    def begin_at_birth(self) -> None:
        """Start with nothing, since the archive goes back to the first commit."""
        self._contents = contents_of.at_birth()

    def lose(self) -> None:
        """Give up until the next checkpoint, since something in between is not known."""
        self._contents = None

    def take(self, commit: Commit) -> None:
        """Add *commit*, behind the checkpoint before it where there is one."""
        self._meet_previous(commit.generation)
        if self._contents is not None and not self._contents.follows(commit):
            self.lose()
        if self._contents is not None:
            self._contents.take(commit)
        if any(change.operation == REPAIR for change in commit.changes):
            self.lose()

    def end(self) -> None:
        """Compare with what the checkpoint says."""
        self._meet_previous(self._base.generation + 1)
        self._compare(self._base, checkpoint_file.CHECKPOINT)

    def _meet_previous(self, following: int) -> None:
        previous = self._previous
        if previous is not None and previous.generation < following:
            self._compare(previous, checkpoint_file.PREVIOUS)
            self._contents = contents_of.of(previous)
            self._previous = None

    def _compare(self, checkpoint: Checkpoint, name: str) -> None:
        counted = self._contents
        if counted is None or counted.generation != checkpoint.generation:
            return
        found = list(contents_of.differences(counted, contents_of.of(checkpoint)))
        if found:
            more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            words = (
                f"{name}, generation {checkpoint.generation}, is not what the journal before it "
                f"makes: {', '.join(found[:_MOST_NAMED])}{more}"
            )
            self._report.add(CHECKPOINT_DIFFERS, name, words, _COMPARE)
