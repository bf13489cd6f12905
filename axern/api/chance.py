"""Random bytes of the kernel, asked for 4 KiB at a time: a call for each costs as much as a commit.

Nothing is given out twice: what is taken is gone from the pool, threads take whole pieces, and a
forked child begins with an empty one.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode

PIECE_BYTES = 16
"""128 bits: an id or a token."""
_POOL_BYTES = 4096

_pool: list[bytes] = []
os.register_at_fork(after_in_child=_pool.clear)


def piece() -> bytes:
    """Return `PIECE_BYTES` that nobody has seen."""
    while True:
        try:
            return _pool.pop()  # of two threads each gets another one
        except IndexError:
            fresh = os.urandom(_POOL_BYTES)
            _pool.extend(
                [fresh[at : at + PIECE_BYTES] for at in range(0, _POOL_BYTES, PIECE_BYTES)]
            )


def identity() -> str:
    """Return 32 hexadecimal digits, as an id has them."""
    return piece().hex()


def token() -> str:
    """Return 22 characters that stand for an owner, as `secrets.token_urlsafe` spells them."""
    return urlsafe_b64encode(piece())[:22].decode("ascii")


def request_id() -> str:
    """Return 16 hexadecimal digits."""
    return piece()[:8].hex()
