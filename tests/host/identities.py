"""Users with rights of different kinds, and what each is answered by a real daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tests.host.daemon import DaemonLab

SOCKET_GROUP = 65534
"""The group `nogroup`: who is in it may connect, and that gives no right."""
OPS, READERS, LAUNCHERS, LEADS = 7001, 7002, 7003, 7004
KEYS = {
    "socket_group": "nogroup",
    "may_admin": [f"@{OPS}"],
    "may_read": [f"@{READERS}"],
    "may_reserve": [f"@{LAUNCHERS}"],
    "may_launch": [f"@{LAUNCHERS}"],
    "namespace_owners": [f"team-a=@{LEADS}"],
}

# Only what is built in: another user may not be able to read anything else.
ASK = """
import json, os, socket, sys
path, uid, gid, groups, requests = json.loads(sys.stdin.read())
os.setgroups(groups)
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
for method, target, body in requests:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\\r\\nconnection: close\\r\\ncontent-length: {len(data)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        connection.sendall(head.encode() + b"\\r\\n\\r\\n" + data)
        wire = b""
        while part := connection.recv(65536):
            wire += part
    head, _, content = wire.partition(b"\\r\\n\\r\\n")
    whole = b"chunked" not in head.lower()
    print(json.dumps([int(head.split()[1]), json.loads(content) if whole else content.decode()]))
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """A user, by the groups that the daemon sees."""

    name: str
    uid: int
    groups: tuple[int, ...] = ()

    def ask(self, lab: DaemonLab, *requests: tuple[str, str, Any]) -> list[tuple[int, Any]]:
        """Return (status, answer) to each of *requests*, which are (method, target, body)."""
        given = json.dumps([lab.socket, self.uid, SOCKET_GROUP, self.groups, requests])
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", ASK],
            input=given.encode(),
            capture_output=True,
            check=False,
            timeout=120,
            cwd="/",
            env={"PATH": os.defpath},
        )
        assert done.returncode == 0, done.stderr
        return [tuple(json.loads(line)) for line in done.stdout.splitlines()]

    def with_groups(self, *groups: int) -> Identity:
        """Return the same user when they had other groups."""
        return Identity(self.name, self.uid, groups)


IDENTITIES = (
    Identity("root", 0),
    Identity("admin", 2001, (OPS,)),
    Identity("lead", 2002, (LEADS,)),
    Identity("member", 2003, (LAUNCHERS,)),
    Identity("reader", 2004, (9, READERS)),
    Identity("nobody", 2005),
)
OTHER = Identity("other", 2999, (LAUNCHERS,))
