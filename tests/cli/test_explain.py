"""`axern explain`, and `axern run --dry-run`, with the fake daemon."""

import json

import pytest

from tests.cli.command import Axern
from tests.cli.fake import DIMENSIONS, FakeDaemon

AMOUNTS = dict.fromkeys(DIMENSIONS, 0) | {"cpu_milli": 500, "memory_bytes": 4 * 1024**3}
FITS = {
    "admitted": True,
    "generation": 4711,
    "facts_sequence": 88,
    "run_id": None,
    "requests": AMOUNTS,
    "limits": dict.fromkeys(DIMENSIONS),
    "gpu_device": None,
    "refusal": None,
}
REFUSAL = {
    "code": "namespace_quota_exceeded",
    "diagnostic_code": "admission-blocked",
    "admission_summary": "namespace quota exceeded",
    "retryable": False,
    "retry_after_s": None,
    "generation": 4711,
    "facts_sequence": 88,
    "message": "namespace quota exceeded: …",
    "hint": "ask for less",
    "shortfalls": [
        {
            "gate": "namespace-quota",
            "dimension": "cpu_milli",
            "requested": 500,
            "committed": 900,
            "limit": 1000,
            "available": 100,
            "short_by": 400,
        }
    ],
    "reasons": [],
    "explained": True,
    "holders": [
        {
            "gate": "namespace-quota",
            "dimension": "cpu_milli",
            "kind": "reservation",
            "amount": 900,
            "count": 1,
            "id": "4f1c" * 8,
            "namespace": "team-a",
            "owner": {"kind": "run", "uid": 1000, "name": ""},
            "phase": "running",
            "expires_at": "2020-01-01T00:00:00.000Z",
        }
    ],
    "would_fit_if": [{"release": ["4f1c" * 8], "release_others": 0, "fewest": True}],
    "earliest_fit_at": "2020-01-01T00:00:00.000Z",
}
REFUSED = FITS | {"admitted": False, "refusal": REFUSAL}
IN_WORDS = """\
refused: namespace quota exceeded [namespace_quota_exceeded]
  namespace-quota CPU: 500m asked for, 100m left of 1, 400m short
  900m CPU held by 4f1c4f1c4f1c, team-a, uid 1000, running, ends now
  it fits once 4f1c4f1c4f1c has ended
  it fits now, unless leases are renewed
  hint: ask for less
"""


def test_what_fits(axern: Axern, fake: FakeDaemon) -> None:
    fake.decision = FITS
    done = axern.run("explain", "--request-memory", "4GiB", "--namespace", "team-a")
    assert done.returncode == 0
    assert done.stdout.decode() == (
        "it fits: CPU 500m, memory 4GiB\ndecided at generation 4711, on observation 88\n"
    )
    (_, path, body) = fake.requests[-1]
    assert path == "/v2/explain"
    assert body is not None
    assert (body["command"], body["namespace"]) == (["true"], "team-a")
    assert body["requests"] == {"memory_bytes": 4 * 1024**3}


@pytest.mark.parametrize(
    ("words", "code"), [(("explain",), 4), (("run", "--dry-run", "--", "true"), 125)]
)
def test_what_does_not_fit(
    axern: Axern, fake: FakeDaemon, words: tuple[str, ...], code: int
) -> None:
    fake.decision = REFUSED
    done = axern.run(*words)
    assert (done.returncode, done.stdout.decode(), done.stderr) == (code, IN_WORDS, b"")
    assert not fake.runs
    words = (words[0], "-o", "json", *words[1:])
    done = axern.run(*words)
    assert done.returncode == code
    assert json.loads(done.stdout) == {"decision": REFUSED}


def test_a_run_that_is_refused_says_the_same(axern: Axern, fake: FakeDaemon) -> None:
    fake.refusal = (403, REFUSAL)
    done = axern.run("run", "--", "true")
    assert done.returncode == 125
    assert done.stderr.decode() == f"axern: {IN_WORDS}"


def test_what_the_host_lacks_has_no_numbers(axern: Axern, fake: FakeDaemon) -> None:
    lacks = REFUSAL | {"code": "node_selection_error", "message": "no x", "shortfalls": []}
    fake.decision = REFUSED | {"refusal": lacks}
    done = axern.run("explain")
    assert done.returncode == 3
    assert done.stdout.decode().splitlines()[0] == "refused: no x [node_selection_error]"


def test_mistakes_are_told_as_by_run(axern: Axern, fake: FakeDaemon) -> None:
    assert axern.run("explain", "--request-memory", "1G").returncode == 2
    assert axern.run("run", "--dry-run", "--request-memory", "1G", "true").returncode == 125
    assert axern.run("run", "--dry-run").returncode == 125
    fake.decision = FITS | {"run_id": "ab" * 16}
    done = axern.run("explain", "--request-id", "a")
    assert done.stdout.decode() == f"this request id was granted already: run {'ab' * 16}\n"
