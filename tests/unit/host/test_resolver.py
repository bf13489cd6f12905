"""What a sandbox's resolver is told: no name server that it can't reach, and everybody by name."""

import os
from pathlib import Path

from axern.host import resolver

STUB = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch lan\n"
REAL = "# of ours\nnameserver 192.0.2.53\nnameserver 127.0.0.1\nnameserver fe80::1%e\nsearch lan\n"


def files(tmp_path: Path, *texts: str) -> list[str]:
    paths = []
    for number, text in enumerate(texts):
        (tmp_path / str(number)).write_text(text, encoding="utf-8")
        paths.append(str(tmp_path / str(number)))
    return paths


def test_a_stub_on_loopback_gives_way_to_what_it_asks(tmp_path: Path) -> None:
    found = resolver.conf((), files(tmp_path, STUB, REAL))
    assert found == "nameserver 192.0.2.53\nsearch lan\n"


def test_named_ones_stand_in_for_the_hosts(tmp_path: Path) -> None:
    found = resolver.conf(("192.0.2.1",), files(tmp_path, REAL))
    assert found == "nameserver 192.0.2.1\nsearch lan\n"


def test_without_any_it_says_so(tmp_path: Path) -> None:
    for paths in (files(tmp_path, STUB), [str(tmp_path / "missing")], []):
        assert resolver.conf((), paths) == "# no name server but the host's own\n"


def test_everybody_has_a_line_with_all_names() -> None:
    found = resolver.hosts([("10.192.0.2", ("4f1c", "web")), ("10.192.0.3", ("aa",))])
    assert found.splitlines() == [
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost",
        "10.192.0.2\t4f1c web",
        "10.192.0.3\taa",
    ]


def test_it_stays_the_same_file_and_is_written_only_when_it_changes(tmp_path: Path) -> None:
    path = str(tmp_path / "hosts")
    resolver.rewrite(path, "a long text\n")
    first = os.stat(path)
    resolver.rewrite(path, "a long text\n")
    assert os.stat(path).st_mtime_ns == first.st_mtime_ns
    resolver.rewrite(path, "short\n")
    assert (tmp_path / "hosts").read_text(encoding="utf-8") == "short\n"
    assert os.stat(path).st_ino == first.st_ino
