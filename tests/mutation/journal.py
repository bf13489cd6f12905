"""Faults of the journal, its segments and the checkpoint: lost lines, and damage taken for none."""

from __future__ import annotations

from tests.mutation.fault import Fault

_JOURNAL = "ledger/journal.py"
_CODEC = "ledger/codec.py"

FAULTS = (
    Fault(
        _JOURNAL,
        "            os.fdatasync(self._fd)\n",
        "",
        "A commit is answered before it is durable.",
    ),
    Fault(
        _JOURNAL,
        "self.failed = err\n            raise self._dead() from err\n        self.position",
        "raise self._dead() from err\n        self.position",
        "A segment is written to after its flush has failed.",
    ),
    Fault(
        _JOURNAL,
        "if self.position.offset + len(line) > self._room:",
        "if self.position.offset + len(line) > self._room + END_BYTES:",
        "The last line of a full segment overwrites its end mark.",
    ),
    Fault(
        _JOURNAL,
        "            self._folder.rename(blank.name, following)\n            self._folder.sync()\n",
        "            self._folder.rename(blank.name, following)\n",
        "A new segment has no durable name when its first line is answered.",
    ),
    Fault(
        _JOURNAL,
        "end_mark(self._room + END_BYTES, goes_on=True), self._room)",
        "end_mark(self._room + END_BYTES), self._room)",
        "A full segment does not say that another one follows.",
    ),
    Fault(
        _JOURNAL,
        "        if following is None and mark == goes_on:\n",
        "        if False:\n",
        "A segment that is missing at the end is not missed.",
    ),
    Fault(
        _JOURNAL,
        "if mark not in (end_mark(len(data)), goes_on) or offset > len(lines):",
        "if offset > len(lines):",
        "A segment that was cut or has grown is read as if it were whole.",
    ),
    Fault(
        _JOURNAL,
        "while self.generation + 1 != following:",
        "while lines[offset : offset + 1].strip(b'\\0') or following is None:",
        "A line that was answered as not done is read from a dead segment.",
    ),
    Fault(
        _JOURNAL,
        "        if not looks_torn(lines, offset):\n            self._damaged(offset, rule)\n",
        "",
        "Damage to an answered line is taken for a torn one, and dropped.",
    ),
    Fault(
        _JOURNAL,
        '    if b"\\n" in tail[:-1] or _verifies(tail[:-1] + b"\\n"):\n',
        '    if b"\\n" in tail[:-1]:\n',
        "A last line whose line break was damaged is dropped.",
    ),
    Fault(
        _JOURNAL,
        'elif written % SECTOR_BYTES and b\'"chain":"\' in tail:',
        'elif b\'"chain":"\' in tail:',
        "A line that was torn within its seal keeps the ledger from opening.",
    ),
    Fault(
        _JOURNAL,
        'if b"\\0" in sector and sector.strip(b"\\0"):',
        'if b"\\0" in sector and not sector:',
        "A byte that became zero in an answered line makes it a torn one.",
    ),
    Fault(
        _JOURNAL,
        "if spare.size >= least_bytes + END_BYTES:",
        "if spare.size >= least_bytes:",
        "A line as long as the segment overwrites its end mark.",
    ),
    Fault(
        _JOURNAL,
        "self._enter(segment_name(self.generation + 1), blank)\n        self.failed = None\n",
        "self._enter(segment_name(self.generation + 1), blank)\n",
        "After one failed flush no commit is ever taken again.",
    ),
    Fault(
        _JOURNAL,
        "blank = self._ballast.take(least_bytes) if may_take_ballast else None",
        "blank = self._ballast.take(least_bytes)",
        "New work uses up the room that is kept for giving back.",
    ),
    Fault(
        _JOURNAL,
        "            raise\n        self.short = None\n",
        "            raise\n",
        "A disk that has room again is full for ever.",
    ),
    Fault(
        "ledger/blank.py",
        "        os.fsync(fd)\n",
        "",
        "A new segment may be torn where its lines are to be.",
    ),
    Fault(
        "ledger/blank.py",
        "if size < least_bytes or not is_blank(data):",
        "if size < least_bytes:",
        "A ballast with something in it becomes a segment.",
    ),
    Fault(
        "ledger/checkpoint.py",
        "codec.encode_checkpoint(checkpoint))\n        os.fsync(fd)\n",
        "codec.encode_checkpoint(checkpoint))\n",
        "A checkpoint has its name before its content is durable.",
    ),
    Fault(
        "ledger/checkpoint.py",
        "    folder.rename(name, CHECKPOINT)\n    folder.sync()\n",
        "    folder.rename(name, CHECKPOINT)\n",
        "A ledger is answered as born before its checkpoint has a durable name.",
    ),
    Fault(
        "ledger/checkpoint.py",
        "        folder.link(CHECKPOINT, PREVIOUS)\n",
        "",
        "The checkpoint before is not kept.",
    ),
    Fault(
        "ledger/checkpoint.py",
        "        write_all(fd, content, 0)\n        os.fsync(fd)\n",
        "        write_all(fd, content, 0)\n",
        "The file with the node's id may be empty after a power cut.",
    ),
    Fault(
        "ledger/archive.py",
        "if first < here]",
        "if first <= here]",
        "The segment in use is moved to the archive.",
    ),
    Fault(
        "ledger/archive.py",
        "os.ftruncate(fd, lines_end(target.read(name)))",
        "lines_end(target.read(name))",
        "Segments in the archive keep their zeros.",
    ),
    Fault(
        "ledger/archive.py",
        "            target.sync()\n",
        "",
        "A segment may be gone from the ledger before it is in the archive.",
    ),
    Fault(
        "ledger/archive.py",
        "        if total > ARCHIVE_BYTES:\n",
        "        if total > ARCHIVE_BYTES and aged:\n",
        "The archive grows without bound.",
    ),
    Fault(
        "ledger/archive.py",
        "            aged = name\n",
        "            target.unlink(name)\n",
        "A wall clock that leaps for a moment takes the whole past.",
    ),
    Fault(
        _CODEC,
        "    if again != body:\n",
        "    if not again:\n",
        "A line that is spelled another way is taken for ours.",
    ),
    Fault(
        _CODEC,
        "    if crc != int(seal[2]):\n",
        "    if not crc:\n",
        "The CRC of a line is not looked at.",
    ),
    Fault(
        _CODEC,
        "        if chain != expected:\n",
        "        if not chain:\n",
        "A line that was cut out of the middle is not missed.",
    ),
    Fault(
        _CODEC,
        "if trailer is not None and trailer[1].decode() != digest:",
        "if trailer is not None and not digest:",
        "The sum of a checkpoint is not looked at.",
    ),
    Fault(
        _CODEC,
        "    _require_same(data, encode_checkpoint(checkpoint))\n",
        "",
        "A checkpoint that is spelled another way is taken for ours.",
    ),
)
