"""PostgreSQL as a peer: a guarded counter and an insert, in one prepared call of a function."""

import contextlib
import os
import pwd
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping

from bench.peers import service
from bench.peers.load import CPU_MILLI, DOCUMENT, ID, MEMORY_BYTES, STORAGE_BYTES, Target
from bench.peers.tools import program

_READY_WITHIN_S = 60
SCHEMA = f"""
create table node(used_cpu bigint, used_memory bigint, used_storage bigint) with (fillfactor = 10);
insert into node values(0, 0, 0);
create table reservation(id text primary key, document text);
create function reserve(text, text) returns boolean language plpgsql as $$ begin
    update node set used_cpu = used_cpu + {CPU_MILLI}, used_memory = used_memory + {MEMORY_BYTES},
        used_storage = used_storage + {STORAGE_BYTES}
    where used_cpu + {CPU_MILLI} <= 1e15 and used_memory + {MEMORY_BYTES} <= 1e15
        and used_storage + {STORAGE_BYTES} <= 1e15;
    if not found then return false; end if;
    insert into reservation values($1, $2);
    return true;
end $$;
create function release(text) returns boolean language plpgsql as $$ begin
    update node set used_cpu = used_cpu - {CPU_MILLI}, used_memory = used_memory - {MEMORY_BYTES},
        used_storage = used_storage - {STORAGE_BYTES};
    delete from reservation where id = $1;
    return found;
end $$;
"""  # noqa: S608 - the numbers are ours


@contextlib.contextmanager
def peer(folder: str, environment: Mapping[str, str]) -> Iterator[Target]:
    """Run PostgreSQL and yield its target.

    Raises:
        Missing: It is not installed and can't be.
    """
    server = program("postgres", "postgresql")
    data, path, log = f"{folder}/pg", f"{folder}/.s.PGSQL.5432", f"{folder}/pg.log"
    user = None
    if os.geteuid() == 0:  # it refuses to run as root
        user = _user()
        os.makedirs(data, 0o700)
        shutil.chown(data, user, user)
        os.chmod(folder, 0o777)  # noqa: S103 - its socket and lock come to lie here
    initdb = [program("initdb", "postgresql"), "-D", data, "-A", "trust", "-U", "bench", "-N"]
    subprocess.run(initdb, check=True, user=user, group=user, cwd="/", capture_output=True)
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": folder,
        "max_connections": "300",
        "shared_buffers": "256MB",
        "max_wal_size": "4GB",
    }
    argv = [server, "-D", data]
    for name, value in settings.items():
        argv += ["-c", f"{name}={value}"]
    stop = signal.SIGINT  # its own word for: disconnect everybody, in good order
    with service.running(argv, path, log, environment, user=user, stop=stop):
        _wait_until_ready(folder)
        psql = [program("psql", "postgresql-client"), "-h", folder, "-U", "bench", "postgres"]
        subprocess.run(
            [*psql, "-v", "ON_ERROR_STOP=1", "-q"], input=SCHEMA.encode(), check=True, cwd="/"
        )
        yield Target(
            "pg",
            path,
            reserve=_call(b"reserve", ID, DOCUMENT.encode()),
            release=_call(b"release", ID),
            greeting=_greeting(),
        )


def _wait_until_ready(folder: str) -> None:
    """Wait till it takes connections: it listens while it still starts up."""
    argv = [program("pg_isready", "postgresql-client"), "-q", "-h", folder]
    deadline_s = time.monotonic() + _READY_WITHIN_S
    while subprocess.run(argv, check=False, cwd="/").returncode:
        assert time.monotonic() < deadline_s, "PostgreSQL does not start up"
        time.sleep(0.1)


def _user() -> str:
    """Return a user to run as who is not root."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


def _greeting() -> bytes:
    """Return what opens a connection and prepares both calls; it is answered by two `Z`.

    Source: PostgreSQL's documentation, Frontend/Backend Protocol, Message Formats.
    """
    start = struct.pack(">I", 3 << 16) + b"user\0bench\0database\0postgres\0\0"
    prepared = b"".join(
        _message(b"P", name + b"\0select " + name + b"(" + places + b")\0\0\0")
        for name, places in ((b"reserve", b"$1, $2"), (b"release", b"$1"))
    )
    return struct.pack(">I", len(start) + 4) + start + prepared + _message(b"S", b"")


def _call(name: bytes, *arguments: bytes) -> bytes:
    """Return a call of the prepared statement *name*: bind, execute, sync."""
    values = b"".join(struct.pack(">I", len(argument)) + argument for argument in arguments)
    bind = b"\0" + name + b"\0" + struct.pack(">HH", 0, len(arguments)) + values + b"\0\0"
    return _message(b"B", bind) + _message(b"E", b"\0\0\0\0\0") + _message(b"S", b"")
