"""A program for inside of a sandbox: makes the system calls of a list and tells what came of each.

It is a static ELF file of x86-64, some hundred bytes and the list itself, so that it needs neither
a compiler here nor a library there.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass, field

# asm/unistd_64.h
WRITE, OPEN, CAPSET, MKDIR, IOCTL, FILE_SETATTR = 1, 2, 126, 83, 16, 469
LINK, RENAME, FTRUNCATE, PWRITE = 86, 82, 77, 18

_CODE = bytes.fromhex(
    "488d1d4a000000"  # lea table(%rip), %rbx
    "488b034885c0781f"  # next: mov (%rbx), %rax; test %rax, %rax; js done
    "488b7b08488b7310488b53184c8b53204c8b4328"  # mov 8…40(%rbx), %rdi, %rsi, %rdx, %r10, %r8
    "0f054889034883c330ebd9"  # syscall; mov %rax, (%rbx); add $48, %rbx; jmp next
    "b801000000bf01000000488d3512000000488b53080f05"  # done: write(1, table, 8(%rbx))
    "b83c00000031ff0f05909090"  # exit(0); table:
)
_BASE = 0x400000
_HEADERS = 64 + 56
_ROW = struct.Struct("=6Q")
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Buffer:
    """A place in the program's memory."""

    offset: int
    size: int


@dataclass(slots=True)
class Program:
    """System calls in order; a buffer stands for its address."""

    rows: list[tuple[int | Buffer, ...]] = field(default_factory=list)
    memory: bytearray = field(default_factory=bytearray)

    def buffer(self, data: bytes) -> Buffer:
        """Put *data* into the program's memory."""
        place = Buffer(len(self.memory), len(data))
        self.memory += data
        return place

    def text(self, text: str) -> Buffer:
        """Put a string into the program's memory."""
        return self.buffer(text.encode() + b"\0")

    def call(self, number: int, *arguments: int | Buffer) -> int:
        """Add a call of at most five arguments and return its place in the results."""
        self.rows.append((number, *arguments, *[0] * (5 - len(arguments))))
        return len(self.rows) - 1

    def elf(self) -> bytes:
        """Return the program."""
        table = _BASE + _HEADERS + len(_CODE)
        memory = table + _ROW.size * (len(self.rows) + 1)
        body = b"".join(
            _ROW.pack(
                *(
                    (memory + each.offset if isinstance(each, Buffer) else each) & _MASK
                    for each in row
                )
            )
            for row in self.rows
        )
        body += _ROW.pack(
            _MASK, _ROW.size * len(self.rows) + _ROW.size + len(self.memory), *[0] * 4
        )
        body = _CODE + body + bytes(self.memory)
        size = _HEADERS + len(body)
        ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        head = struct.pack(
            "=HHIQQQIHHHHHH", 2, 62, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0
        )
        segment = struct.pack("=IIQQQQQQ", 1, 7, 0, _BASE, _BASE, size, size, 0x1000)
        return ident + head + segment + body

    def results(self, output: bytes) -> Results:
        """Read what the program has written."""
        end = _ROW.size * len(self.rows)
        values = [struct.unpack_from("=q", output, at)[0] for at in range(0, end, _ROW.size)]
        return Results(values, output[end + _ROW.size :])


@dataclass(frozen=True, slots=True)
class Results:
    """What each call returned, an error as its negative number, and the memory afterwards."""

    values: list[int]
    memory: bytes

    def error(self, place: int) -> str | None:
        """Return the name of the error of the call at *place*, None if it had none."""
        value = self.values[place]
        return errno.errorcode[-value] if value < 0 else None

    def buffer(self, place: Buffer) -> bytes:
        """Return what a buffer holds."""
        return self.memory[place.offset : place.offset + place.size]
