"""Tamper evidence: a ledger's head, to be kept elsewhere, and whether the ledger still leads to it.

Whoever can write the files can also make their sums and chain right again. What they can't change
is a head that was exported before: node, generation, chain hash and a digest of all rows.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from ledger import checkpoint as checkpoint_file
from ledger import codec
from ledger import contents as contents_of
from ledger.codec import Checkpoint, Commit
from ledger.contents import Contents, Present
from ledger.errors import LedgerCorrupt, LedgerTooNew
from ledger.files import Folder, translate
from ledger.past import Flaw, Past, gives_up, walk

VERIFIED = "verified"
CHAIN_ONLY = "chain-only"
NOT_KEPT = "not-kept"
OTHER_NODE = "other-node"
ROLLED_BACK = "rolled-back"
REWRITTEN = "rewritten"
GIVEN_UP = "given-up"

VERDICTS = (VERIFIED, CHAIN_ONLY, NOT_KEPT, OTHER_NODE, ROLLED_BACK, REWRITTEN, GIVEN_UP)
"""What can be said of a head: the ledger still leads to it (its rows too, or the chain alone), the
journal no longer goes back to it, or it does not."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where a ledger stood: `chain` is the hash of its last line, `content_sha256` of its rows.

    `schema` is the one that the rows were spelled in, `wall_ms` the time of the last commit.
    """

    node_id: str
    generation: int
    chain: str
    content_sha256: str
    schema: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a head: one of `VERDICTS`, and why; `generation` is that of the ledger now."""

    verdict: str
    message: str
    generation: int


def of(directory: str | os.PathLike[str]) -> Head:
    """Return the head of the ledger in *directory* as of its last commit; nothing is written.

    Raises:
        LedgerError: Its files can't be trusted.
        NotFound: There is none.
        PermissionDenied: This user may not read it.
    """
    path = os.path.abspath(directory)
    try:
        folder = Folder(path)
        try:
            present = contents_of.read(folder)
        finally:
            folder.close()
    except OSError as err:
        raise translate(err, path) from err
    return Head(
        present.base.node_id,
        present.contents.generation,
        present.chain,
        contents_of.digest(present.contents),
        codec.SCHEMA,
        present.clock.wall_ms,
    )


def verify(directory: str | os.PathLike[str], head: Head) -> Verdict:
    """Say whether the ledger in *directory* still leads to *head*; raises as `of` does."""
    path = os.path.abspath(directory)
    try:
        folder = Folder(path)
        try:
            present = contents_of.read(folder)
            return _Trial(folder, present, head).verdict()
        finally:
            folder.close()
    except OSError as err:
        raise translate(err, path) from err


class _Trial:
    """One head against one ledger: a walk from the newest known rows, past the head, to now."""

    def __init__(self, folder: Folder, present: Present, head: Head) -> None:
        self._folder = folder
        self._base = present.base
        self._now = present.contents.generation
        self._head = head
        self._last: int | None = None
        self._counted: Contents | None = None
        self._chain: str | None = None
        self._content: str | None = None
        self._chain_at_base: str | None = None

    def verdict(self) -> Verdict:
        """Return the verdict."""
        head = self._head
        if self._base.node_id != head.node_id:
            words = f"it is of node {self._base.node_id}, the head of {head.node_id}"
            return Verdict(OTHER_NODE, words, self._now)
        if self._now < head.generation:
            words = (
                f"the ledger ends at generation {self._now}, the head is of {head.generation}: an "
                "older copy was put back, or commits were taken away"
            )
            return Verdict(ROLLED_BACK, words, self._now)
        with Past(self._folder.path) as past:
            self._start(past)
            since = self._counted.generation if self._counted else head.generation
            for each in walk(past, since):
                found = self._flaw(each) if isinstance(each, Flaw) else self._commit(each[1])
                if found is not None:
                    return found
        return self._conclude()

    def _start(self, past: Past) -> None:
        """Begin with the newest rows that are known and not behind the head."""
        head, base = self._head, self._base
        if base.generation <= head.generation:
            self._counted = contents_of.of(base)
        elif (previous := self._previous()) and previous.generation <= head.generation:
            self._counted = contents_of.of(previous)
        elif past.firsts()[:1] == [1]:
            self._counted = contents_of.at_birth()
        if base.generation == head.generation:
            self._chain = self._chain_at_base = base.position.chain
        if self._counted and self._counted.generation == head.generation:
            self._content = contents_of.digest(self._counted)

    def _previous(self) -> Checkpoint | None:
        with contextlib.suppress(FileNotFoundError, LedgerCorrupt, LedgerTooNew):
            return checkpoint_file.read(self._folder, checkpoint_file.PREVIOUS)
        return None

    def _flaw(self, flaw: Flaw) -> Verdict | None:
        if self._head.generation < flaw.generation <= self._now:
            return self._rewritten(f"behind it, {flaw.place}: {flaw.rule}")
        self._counted = None
        return None

    def _commit(self, commit: Commit) -> Verdict | None:
        head, generation, counted = self._head, commit.generation, self._counted
        wanted = generation if self._last is None else self._last + 1
        if gives_up(commit, wanted) and wanted <= head.generation < generation:
            why = "; ".join(change.note for change in commit.changes)
            words = f"a repair gave up generations {wanted} to {generation - 1}: {why}"
            return Verdict(GIVEN_UP, words, self._now)
        self._last = generation
        if counted is not None and generation > counted.generation:
            if not counted.follows(commit):
                counted = self._counted = None
            else:
                counted.take(commit)
        if generation == head.generation:
            self._chain = commit.chain
            if counted is not None and counted.generation == generation:
                self._content = contents_of.digest(counted)
        if generation == self._base.generation:
            self._chain_at_base = commit.chain
            if counted is not None and _differ(counted, self._base):
                return self._rewritten("the checkpoint is not what the journal makes")
        return None

    def _conclude(self) -> Verdict:
        head, base = self._head, self._base
        if self._chain is None:
            words = f"the journal no longer goes back to generation {head.generation}"
            return Verdict(NOT_KEPT, words, self._now)
        if self._chain != head.chain:
            words = f"the chain there is {self._chain[:12]}… instead of {head.chain[:12]}…"
            return self._rewritten(words)
        if head.generation < base.generation and self._chain_at_base != base.position.chain:
            return self._rewritten("the checkpoint does not stand on the chain that follows")
        if self._content is None or head.schema != codec.SCHEMA:
            words = "the chain leads to it; what the rows were can't be told any more"
            return Verdict(CHAIN_ONLY, words, self._now)
        if self._content != head.content_sha256:
            return self._rewritten("the chain is the same, but the rows are others")
        return Verdict(VERIFIED, "the ledger leads to it, with the same rows", self._now)

    def _rewritten(self, why: str) -> Verdict:
        words = f"the history up to or behind generation {self._head.generation} was changed: {why}"
        return Verdict(REWRITTEN, words, self._now)


def _differ(counted: Contents, base: Checkpoint) -> bool:
    if counted.generation != base.generation:
        return False
    return any(True for _ in contents_of.differences(counted, contents_of.of(base)))
