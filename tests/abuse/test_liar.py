"""A daemon that lies, babbles or stands still: the command line says so in time, and no more."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from axern.api import client as client_module
from axern.api.client import Client
from axern.api.decoding import ChunkedDecoder, EventParser
from axern.cli import dispatch
from axern.errors import ProtocolError
from ledger.errors import AxernError
from tests.abuse.generate import ODD, TEXTS, _bent
from tests.host.daemon import daemon_lab

LIES = 5_000 if os.environ.get("AXERN_LONG") == "1" else 400
VIEW = {
    "id": "0" * 32, "namespace": "default", "status": "running", "exit_code": None,
    "cli_exit_code": None, "started_at": None, "finished_at": None, "created_at": "x",
    "message": None, "diagnostic_code": None, "owner": {"kind": "run", "uid": 0},
}  # fmt: skip


def whole(value: object, status: int = 200) -> bytes:
    """Return an honest answer."""
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %d OK\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


def chunked(body: bytes) -> bytes:
    """Return an honest stream of one chunk."""
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return head + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"


HEALTH = whole({"status": "ok"})
EVENTS = b"".join(
    b"id: 4\nevent: %s\ndata: %s\n\n" % (name, data)
    for name, data in (
        (b"start", json.dumps({"run": VIEW}).encode()),
        (b"stdout", b"aGVsbG8="),
        (b"exit", json.dumps({"run": {**VIEW, "status": "succeeded"}}).encode()),
    )
)
HONEST = (
    whole({"run": VIEW}, 201),
    whole({"runs": [VIEW], "generation": 1}),
    whole({"reservations": [], "generation": 1, "source": "daemon"}),
    whole({"error": {"code": "busy", "message": "m", "hint": None, "retryable": True}}, 503),
    chunked(EVENTS),
)


@contextmanager
def lying(path: str, *answers: bytes, then: bytes = b"") -> Iterator[None]:
    """Answer request number n with *answers*[n], whatever it asks, and *then* for ever after."""
    left = list(answers)

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(10)
            while connection.recv(65536):
                connection.sendall(left.pop(0) if left else then)
                if not left:
                    return

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    serve(listener.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_any_bytes_are_the_same_events_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    parser = EventParser()
    found = [
        event for start, end in itertools.pairwise(places) for event in parser.feed(data[start:end])
    ]
    assert found == EventParser().feed(data)


@given(
    st.lists(st.binary(max_size=40) | st.sampled_from((b"5\r\n", b"\r\n", b"0\r\n\r\n", b"f" * 99)))
)
def test_any_bytes_are_chunks_or_refused(parts: list[bytes]) -> None:
    decoder = ChunkedDecoder()
    with contextlib.suppress(ProtocolError):
        for part in parts:
            decoder.feed(part)


def feed_often(parser: EventParser, part: bytes) -> None:
    for _ in range(20):
        parser.feed(part)


def test_an_event_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("axern.api.decoding.EVENT_LIMIT_BYTES", 1000)
    for part in (b"x" * 100, b"data: x\n" * 12, b": a comment\n" * 9):
        with pytest.raises(ProtocolError, match="event without an end"):
            feed_often(EventParser(), part)


def test_what_is_too_large_is_given_up(short_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER_LIMIT_BYTES", 1000)
    endless = chunked(b"x" * 2000).replace(b"text/event-stream", b"application/json")
    for answer in (endless, whole("x" * 2000)):
        path = f"{short_root}/{len(answer)}"
        with (
            lying(path, answer),
            Client(path) as client,
            pytest.raises(ProtocolError, match="1000"),
        ):
            client.request("GET", "/")


def test_an_answer_that_drips_is_given_up_in_time(short_root: Path) -> None:
    path = f"{short_root}/s"
    over = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while not over.wait(0.05):
                connection.send(b"x")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=drip)
        thread.start()
        begun = time.monotonic()
        with Client(path) as client, pytest.raises(AxernError, match="no answer in time"):
            client.request("GET", "/", timeout_s=0.5)
        assert time.monotonic() - begun < 5
        over.set()
        thread.join()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_the_client_survives_every_answer(short_root: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = f"{short_root}/{seed}"
    lie = _bent(rng, rng.choice(HONEST))
    with lying(path, lie), Client(path, timeout_s=5) as client, contextlib.suppress(AxernError):
        if seed % 2:
            list(client.events("/"))
        else:
            client.request("GET", "/")


COMMANDS = (
    ("run", "--", "true"),
    ("run", "--detach", "--", "true"),
    ("run", "list"),
    ("run", "get", "0" * 32),
    ("run", "cancel", "0" * 32),
    ("reservations",),
    ("node", "status"),
    ("node", "capacity"),
    ("template", "list"),
)


def twisted(rng: random.Random) -> object:
    """Return an answer of the right form, the values of which are not."""
    odd = (*ODD, *TEXTS, 10**30, {"run": None}, [1] * 3, {"code": []}, VIEW)
    field = rng.choice(
        ("run", "runs", "reservations", "node", "templates", "error", "reservation", "source")
    )
    value = rng.choice(odd)
    if isinstance(value, dict) and rng.random() < 0.5:
        value = {**VIEW, **value, rng.choice(list(VIEW)): rng.choice(odd)}
    return {field: rng.choice((value, [value], [VIEW, value]))}


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # in life its process ends with it
def test_the_command_line_survives_every_answer(
    short_root: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr("axern.cli.actions.foreground.RECONNECT_S", 0.2)
    seed = random.randrange(2**32) if LIES > 1000 else 1
    for number in range(LIES):
        rng = random.Random(f"{seed}/{number}")
        lie = whole(twisted(rng), rng.choice((200, 201, 400, 503, 507)))
        if rng.random() < 0.4:
            lie = _bent(rng, rng.choice((*HONEST, lie)))
        words = ["--socket", f"{short_root}/{number}", *rng.choice(COMMANDS)]
        if rng.random() < 0.3 and "--" not in words:
            words += ["-o", "json"]
        with lying(words[1], HEALTH, lie, then=rng.choice((lie, b"", chunked(EVENTS)))):
            code = dispatch.answer(words)
        out, err = capfdbinary.readouterr()
        told = (seed, number, lie[:300], words, code, out[:300], err[:300])
        assert 0 <= code <= 255, told
        assert b"Traceback" not in err, told
        assert code == 0 or err or out, told
        assert words[2] != "run" or words[3] not in ("--", "--detach") or code in (0, 125), told
        assert not set(err) & set(range(0x20)) - {0x0A}, told


@pytest.mark.host
def test_a_daemon_that_stands_still_is_noticed_in_time() -> None:
    with daemon_lab() as lab:
        daemon = lab.start()
        run_id = lab.detach("runc", "sleep", "100")
        lab.wait_status(run_id, "running")
        daemon.send_signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            done = lab.axern("run", "--", "true")
            assert (done.returncode, time.monotonic() - begun < 15) == (125, True)
            assert b"[daemon_unreachable]" in done.stderr
            done = lab.axern("run", "cancel", run_id)
            assert done.returncode == 6
            assert b"[daemon_unreachable]" in done.stderr
            done = lab.axern("reservations", "-o", "json")
            assert done.returncode == 0
            assert [row["id"] for row in json.loads(done.stdout)["reservations"]] == [run_id]
        finally:
            daemon.send_signal(signal.SIGCONT)
        assert lab.run(run_id)["status"] == "running"


@pytest.mark.host
def test_a_run_outlives_a_daemon_that_stood_still_or_died() -> None:
    with daemon_lab() as lab:
        daemon = lab.start()
        with lab.popen(
            "run", "--runtime-class", "runc", "--", "sh", "-c", "echo a; sleep 4; echo b; exit 9"
        ) as run:
            assert run.stdout
            assert run.stderr
            assert run.stdout.readline() == b"a\n"
            daemon.send_signal(signal.SIGSTOP)
            time.sleep(1)
            daemon.send_signal(signal.SIGCONT)
            lab.kill(daemon)
            lab.start()
            out, _ = run.communicate(timeout=60)
        assert (out, run.returncode) == (b"b\n", 9)


def test_a_folder_or_a_file_is_no_daemon(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path, tmp_path / "file", tmp_path / "none", tmp_path / ("x" * 200)):
        done = subprocess.run(
            [sys.executable, "-m", "axern", "--socket", str(path), "run", "list"],
            capture_output=True,
            check=False,
        )
        assert done.returncode in (2, 6), done
        assert b"Traceback" not in done.stderr
        assert done.stderr.startswith(b"axern: ")
