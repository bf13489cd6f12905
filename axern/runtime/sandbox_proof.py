"""Proves that a runtime runs a sandbox here, from its birth to its burial."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from axern.errors import RuntimeFailure
from axern.runtime import self_test

if TYPE_CHECKING:
    from axern.runtime.layout import Layout

_EXIT_CODE = 7


def prove(runtime: str, layout: Layout) -> str:
    """Let a sandbox of *runtime* end with a code, and return how long that took.

    Raises:
        AxernError: It was not started, did not end, or the code did not come through.
    """
    name = f"probe-sandbox-{runtime}-{secrets.token_hex(4)}"
    spec = self_test.spec_of(runtime, layout, name, ("sh", "-c", f"exit {_EXIT_CODE}"))
    begun_s = time.monotonic()
    with self_test.running(spec, layout) as paths:
        ended = self_test.wait_ended(f"a {runtime} sandbox", paths, self_test.TIMEOUT_S)
        took_ms = (time.monotonic() - begun_s) * 1000
    if ended.exit_code != _EXIT_CODE:
        raise RuntimeFailure(f"a {runtime} sandbox ended with {ended.exit_code}, not {_EXIT_CODE}")
    return f"a {runtime} sandbox was started, ended and buried; {took_ms:.0f} ms to its end"
