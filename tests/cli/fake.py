"""A daemon that keeps the API's promises without sandboxes: commands run on the host itself."""

import base64
import contextlib
import json
import os
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

Json = dict[str, Any]

DIMENSIONS = "cpu_milli memory_bytes ephemeral_storage_bytes gpu_memory_bytes sandbox_slots".split()
AT = "2026-01-02T03:04:05.678Z"
WELL = {"state": "ok", "accepts": "everything", "reason": None, "remedy": None, "since": None}


@dataclass
class Run:
    """One command, its output so far as (stream, bytes), and its JSON object."""

    view: Json
    process: subprocess.Popen[bytes] | None = None
    log: list[tuple[str, bytes]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def over(self) -> bool:
        return self.view["finished_at"] is not None

    def end(self, status: str, **fields: object) -> None:
        with self.changed:
            self.view |= {"status": status, "finished_at": AT, **fields}
            self.changed.notify_all()

    def append(self, stream: str, data: bytes) -> None:
        with self.changed:
            self.log.append((stream, data))
            self.changed.notify_all()

    def records(self, offset: int, *, wait: bool) -> Iterator[tuple[str, bytes, int]]:
        """Yield (stream, data, offset behind it) from *offset* on, until the run is over."""
        index, position = 0, 0
        while True:
            with self.changed:
                while index >= len(self.log) and not self.over and wait:
                    self.changed.wait()
                if index >= len(self.log):
                    return
                stream, data = self.log[index]
            index += 1
            position += len(data)
            if position > offset:
                yield stream, data[max(0, len(data) - (position - offset)) :], position


class FakeDaemon:
    """Serve the API at *path*; what it shall do wrong is set in its attributes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.runs: dict[str, Run] = {}
        self.by_request: dict[str, Run] = {}
        self.reservations: list[Json] = []
        self.closely: Json = {"history": {"steps": [], "omitted": 0, "damage": []}}
        self.findings: list[Json] = []
        self.checks: list[Json] = []
        self.releases: dict[str, list[tuple[int, Json]]] = {}
        self.requests: list[tuple[str, str, Json | None]] = []
        self.refusal: tuple[int, Json] | None = None
        self.decision: Json = {}
        self.canned: dict[str, Json] = {}  # answers to GET, by path
        self.events: list[Json] = []  # what /v2/events tells, by `kind` and `sequence`
        self.lease: Json = {}
        self.lose_answers = 0  # to POST: that many are carried out and then not answered
        self.cut_streams: list[int] = []  # each stream ends after that many bytes, without an end
        self.silent = False
        self.may_answer = threading.Event()  # POST waits for it before it does anything
        self.may_answer.set()
        self.enforced = True
        self._server: socketserver.ThreadingUnixStreamServer | None = None
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for run in self.runs.values():
            if run.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run.process.pid, 9)
                run.process.wait()

    def start(self) -> None:
        daemon = self

        class Bound(Handler):
            fake = daemon

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *_: object) -> None:
                """Say nothing: clients that leave are part of the tests."""

        self._server = Server(self.path, Bound)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Leave as a killed daemon does: connections break, runs and their output stay."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        os.unlink(self.path)
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def find(self, prefix: str) -> Run | None:
        found = [run for run_id, run in self.runs.items() if run_id.startswith(prefix)]
        return found[0] if len(found) == 1 else None

    def launch(self, body: Json) -> Run:
        if body["request_id"] in self.by_request:
            return self.by_request[body["request_id"]]
        run_id = os.urandom(16).hex()
        amounts = dict.fromkeys(DIMENSIONS, 0) | {"sandbox_slots": 1}
        run = Run(
            {
                "id": run_id,
                "namespace": body["namespace"],
                "status": "running",
                "exit_code": None,
                "cli_exit_code": None,
                "diagnostic_code": None,
                "message": None,
                "command": body["command"],
                "labels": body["labels"],
                "user": body["user"],
                "timeout_ms": body["timeout_ms"],
                "ttl_ms": body["ttl_ms"],
                "stdin": body["stdin"],
                "oom_kill_one": body["oom_kill_one"],
                "require": body["require"],
                "runtime_class": body["runtime_class"] or "runsc",
                "template": body["template"] or "busybox",
                "rootfs": body["rootfs"],
                "rootfs_readonly": body["rootfs_readonly"],
                "requests": amounts | body["requests"],
                "limits": dict.fromkeys(DIMENSIONS) | body["limits"],
                "enforced": self.enforced,
                "enforced_limits": None,
                "created_at": AT,
                "started_at": AT,
                "finished_at": None,
                "owner": {"uid": os.getuid()},
            }
        )
        self.runs[run_id] = self.by_request[body["request_id"]] = run
        try:
            run.process = subprocess.Popen(
                body["command"],
                env={"PATH": os.environ["PATH"], **body["env"]},
                cwd=body["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126
            why = "not found" if code == 127 else "not executable"
            run.end(
                "failed",
                cli_exit_code=code,
                diagnostic_code="runtime-start-error",
                message=f"{body['command'][0]}: {why}",
            )
        else:
            threading.Thread(target=self._attend, args=(run, run.process), daemon=True).start()
        return run

    def _attend(self, run: Run, process: subprocess.Popen[bytes]) -> None:
        def copy(name: str, pipe: Any) -> None:
            while data := pipe.read1(65536):
                run.append(name, data)
            pipe.close()

        pipes = (("stdout", process.stdout), ("stderr", process.stderr))
        copiers = [threading.Thread(target=copy, args=pair, daemon=True) for pair in pipes]
        for copier in copiers:
            copier.start()
        for copier in copiers:
            copier.join()
        code = process.wait()
        code = 128 - code if code < 0 else code
        cancelled = run.view["status"] == "stopping"
        status = "cancelled" if cancelled else "failed" if code else "succeeded"
        run.end(
            status, exit_code=code, cli_exit_code=code, diagnostic_code="process-exited", message=""
        )

    def cancel(self, run: Run, grace_ms: int) -> None:
        if run.process is None or run.over:
            return
        run.view["status"] = "stopping"
        group = run.process.pid

        def signal_group(number: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)

        if grace_ms:
            signal_group(15)
            timer = threading.Timer(grace_ms / 1000, signal_group, (9,))
            timer.daemon = True
            timer.start()
        else:
            signal_group(9)

    def node(self) -> Json:
        numbers = dict.fromkeys(
            (
                "capacity system_reserve allocatable effective_allocatable committed held claimed "
                "retiring headroom exposure"
            ).split(),
            3 * 1024**3,
        )
        return {
            "node_id": "node-1",
            "version": "0.0.1",
            "ledger": WELL,
            "generation": 41,
            "boot_id": "b",
            "cgroup_enforcement": "required",
            "entries": 0,
            "standing": {"state": "open", "reason": None, "by": None, "since": None},
            "capabilities": [{"key": "runtime/runc", "status": "present", "message": "1.1.5"}],
            "runtimes": [{"name": "runc", "path": "/usr/bin/runc", "version": "1.1.5"}],
            "dimensions": [
                {"name": name, "label": name, **numbers, "devices": []} for name in DIMENSIONS
            ],
        }


class Handler(BaseHTTPRequestHandler):
    """One connection of the fake daemon."""

    fake: FakeDaemon
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def setup(self) -> None:
        super().setup()
        self.fake._connections.add(self.connection)

    def finish(self) -> None:
        self.fake._connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def answer(self, status: int, value: Json) -> None:
        content = json.dumps(value).encode()
        kind = "application/json" if status < 400 else "application/problem+json"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def refuse(self, status: int, code: str, message: str, **fields: object) -> None:
        error = {"code": code, "message": message, "hint": None, "retryable": False, **fields}
        self.answer(status, {"type": "about:blank", "status": status, "error": error})

    def do_GET(self) -> None:
        self.handle_request(None)

    def do_DELETE(self) -> None:
        self.handle_request(None)

    def do_POST(self) -> None:
        self.handle_request(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def handle_request(self, body: Json | None) -> None:
        fake = self.fake
        while fake.silent:
            threading.Event().wait(0.05)
        fake.requests.append((self.command, self.path, body))
        url = urlsplit(self.path)
        words = url.path.split("/")[2:]
        query = dict(parse_qsl(url.query))
        if self.command == "GET" and url.path in fake.canned:
            self.answer(200, fake.canned[url.path])
        elif words == ["events"]:
            self.tell_events()
        elif words[:2] == ["runs", "prune"]:
            self.prune(body or {})
        elif words == ["runs"] and self.command == "GET":
            self.page(int(query.get("limit", 100)), int(query.get("cursor", 0)))
        elif words[0] == "runs" and len(words) > 1:
            self.one_run(words[1], query, stream=len(words) > 2)
        elif words == ["reservations"] and self.command == "POST":
            self.answer(201, fake.lease)
        elif words == ["explain"]:
            self.answer(200, {"decision": fake.decision})
        elif self.command == "POST":
            self.post_run(body or {})
        elif words == ["node", "doctor"]:
            self.answer(200, {"checks": self.fake.checks, "generation": 41, "source": "daemon"})
        elif len(words) == 1:
            self.answer(200, self.lists()[words[0]])
        else:
            self.one_reservation(words[1])

    def one_reservation(self, prefix: str) -> None:
        """Show the reservation, or answer a release with the next of the planned answers."""
        fake = self.fake
        if self.command == "GET":
            self.answer(200, {"reservation": fake.reservations[0], **fake.closely})
        elif fake.releases.get(prefix):
            status, answer = fake.releases[prefix].pop(0)
            self.answer(status, answer)
        else:
            self.refuse(404, "not_found", f"no reservation has an id that begins with {prefix}")

    def lists(self) -> dict[str, Json]:
        """Return the answers that are always there, by the word after /v2/."""
        fake = self.fake
        template = {
            "name": "busybox",
            "path": "/t/busybox",
            "users": 1,
            "bytes": None,
            "entries": None,
            "source": None,
            "digest": None,
            "created_at": None,
        }
        runs = [run.view for run in fake.runs.values()]
        held = {"reservations": fake.reservations, "generation": 41, "source": "daemon"}
        return {
            "health": {"status": "ok", "generation": 41, "ledger": WELL},
            "runs": {"runs": runs, "next_cursor": None, "generation": 41},
            "reservations": held,
            "node": {"node": fake.node(), "source": "daemon"},
            "templates": {"templates": [template]},
            "doctor": {"findings": fake.findings, "generation": 41, "source": "daemon"},
        }

    def page(self, limit: int, start: int) -> None:
        """Answer with *limit* runs; the cursor is a number here."""
        runs = [run.view for run in self.fake.runs.values()]
        behind = start + limit
        cursor = str(behind) if behind < len(runs) else None
        self.answer(200, {"runs": runs[start:behind], "next_cursor": cursor, "generation": 41})

    def prune(self, body: Json) -> None:
        over = [run_id for run_id, run in self.fake.runs.items() if run.over]
        pruned = {"count": len(over), "disk_bytes": 4096 * len(over), "run_ids": over}
        self.answer(200, {"pruned": pruned | {"dry_run": body["dry_run"]}})

    def one_run(self, prefix: str, query: dict[str, str], *, stream: bool) -> None:
        run = self.fake.find(prefix)
        if run is None:
            self.refuse(404, "not_found", f"no run has the id {prefix}")
        elif stream:
            self.stream(run, int(query.get("from", "0")), wait=query["follow"] == "true")
        elif self.command == "DELETE":
            self.fake.cancel(run, int(query.get("grace_ms", 10_000)))
            self.answer(202, {"run": run.view})
        else:
            log = {"kept_bytes": len(run.log), "dropped_bytes": 0, "dropped_records": 0}
            self.answer(200, {"run": run.view, "log": log, "execs": []})

    def post_run(self, body: Json) -> None:
        self.fake.may_answer.wait()
        if self.fake.refusal is not None:
            status, error = self.fake.refusal
            self.answer(status, {"status": status, "error": error})
            return
        run = self.fake.launch(body)
        if self.fake.lose_answers:
            self.fake.lose_answers -= 1
            self.close_connection = True
            return
        self.answer(201, {"run": run.view})

    def stream(self, run: Run, offset: int, *, wait: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.left = self.fake.cut_streams.pop(0) if self.fake.cut_streams else None
        self.chunk(b": waiting\n\n")
        self.event("start", {"run": run.view, "records": None}, offset)
        behind = offset
        for name, data, behind in run.records(offset, wait=wait):
            text = base64.b64encode(data).decode()
            event = f"id: {behind}\nevent: {name}\ndata: {text}\n\n".encode()
            # Cut anywhere, so that nobody relies on an event being in one chunk.
            middle = len(event) * 2 // 3
            self.chunk(event[:middle])
            self.chunk(event[middle:])
        if run.over:
            self.event("exit", {"run": run.view}, behind)
        self.wfile.write(b"0\r\n\r\n")

    def tell_events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.left = self.fake.cut_streams.pop(0) if self.fake.cut_streams else None
        for event in self.fake.events:
            self.event(event["kind"], event, event.get("sequence", ""))
        self.wfile.write(b"0\r\n\r\n")

    def event(self, name: str, data: Json, offset: int | str) -> None:
        self.chunk(f"id: {offset}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode())

    def chunk(self, data: bytes) -> None:
        if self.left is not None:
            data, self.left = data[: self.left], self.left - len(data)
        if data:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        if self.left is not None and self.left <= 0:
            self.connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
