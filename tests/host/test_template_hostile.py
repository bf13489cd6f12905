"""Thousands of drawn names, paths, trees and archives: nothing outside is touched, all is told.

The CI form draws 1,000 hostile things, the long form 10,000 new ones; the seed is in each failure.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from axern.config import TEMPLATE_NAME
from axern.errors import TemplateRefused
from axern.host import filestore
from axern.runtime import template
from axern.runtime.template_meter import Limits, Meter
from axern.runtime.template_tree import take_over
from tests.conftest import LONG
from tests.host import images
from tests.host.images import TAG, Entry
from tests.host.importing import SECRET, Workshop, workshop
from tests.unit.daemon.rig import Rig, play

pytestmark = pytest.mark.host

NAMES, TREES, TREE_ENTRIES, ARCHIVES, ARCHIVE_ENTRIES = (
    (4_000, 60, 50, 150, 20) if LONG else (400, 6, 50, 15, 20)
)
RARE = 0.1
"""How often a drawn entry is one for which all of it is refused."""
SEED = secrets.randbits(32) if LONG else 20261130
LIMITS = Limits(max_bytes=2**20, max_entries=10_000, reserve_bytes=0, timeout_s=60)
PARTS = (
    *("..", ".", "", "/", "a", "A", "é", "\n", "\x1b[31m", "\0", " ", "%2e%2e", "..\\", "~", "-rf"),
    *(
        "$(id)",
        "`id`",
        "'",
        '"',
        ";",
        "\u202e",
        "\U0001f600",
        "busybox",
        ".building-x",
        ".removing-",
    ),
    *("template.json", "rootfs", "x" * 63, "x" * 5000, "CON", "proc/self/root"),
)
KINDS = ("file", "folder", "link", "hard", "char", "block", "pipe", "suid", "whiteout", "deep")
NODES = {
    "char": stat.S_IFCHR,
    "block": stat.S_IFBLK,
    "pipe": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
}


@pytest.fixture
def shop() -> Iterator[Workshop]:
    with workshop() as made:
        yield made


def drawn_name(rng: random.Random) -> str:
    while True:
        name = rng.choice(("", "/", ".")).join(rng.choices(PARTS, k=rng.randint(1, 4)))
        if not re.fullmatch(TEMPLATE_NAME.strip("^$"), name):
            return name


def test_hostile_names_are_refused_everywhere(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    names = [drawn_name(rng) for _ in range(NAMES)]

    async def scenario(rig: Rig) -> None:
        templates = rig.parts.layout.templates
        before = sorted(os.walk(tmp_path))
        for name in names:
            source = {"kind": "dir", "path": "/usr"}
            hostile = {"kind": rng.choice(("dir", "oci", "docker-archive")), "path": name}
            if template.find(templates, name) is None:
                for method, path, body in (
                    ("POST", "/v2/templates", {"name": name, "source": source}),
                    ("POST", "/v2/templates", {"name": "fine", "source": hostile}),
                    ("GET", f"/v2/templates/{name}", None),
                    ("DELETE", f"/v2/templates/{name}", None),
                    ("POST", "/v2/runs", {"command": ["x"], "template": name}),
                ):
                    target = path.replace("?", "")
                    status, answer = await rig.ask(method, target, body)
                    assert 400 <= status < 500, (SEED, method, name, answer)
                    message = answer["error"]["message"]
                    assert message.isprintable(), (SEED, name, answer)
                    assert len(answer["error"]["message"]) < 500
        assert sorted(os.walk(tmp_path)) == before

    play(tmp_path, scenario)


def drawn_path(rng: random.Random, shop: Workshop) -> str:
    return rng.choice(
        (
            "/",
            "/dev",
            "/etc/passwd",
            "/proc/self/root",
            "/proc/1/root/etc",
            shop.canary,
            f"{shop.canary}/secret",
            "../../../canary",
            "../../../canary/secret",
            ".",
            "..",
            "x/../../..",
            "l0",
            "l1/secret",
        )
    )


def hostile_bytes(rng: random.Random) -> bytes:
    plain = rng.choice((b"x", b"dev", b"proc", b"sys", b"etc", b"l0", b"l1", b"bin", b".wh.x"))
    return plain + rng.choice((b"", b"\n", b"\x1b]0;t\x07", b"\xff\xfe", b" ", b"\\", b"%s"))


def plant(rng: random.Random, shop: Workshop, top: bytes) -> None:
    """Make one hostile entry somewhere below *top*, unless its name is taken."""
    folders = [top]
    folders += [e.path for e in os.scandir(top) if e.is_dir(follow_symlinks=False)]
    path = os.path.join(rng.choice(folders), hostile_bytes(rng))
    if os.path.lexists(path):
        return
    kind = rng.choice((*KINDS, "socket", "sparse", "ids", "attribute", "mode"))
    if kind == "folder":
        os.mkdir(path, rng.choice((0o1777, 0o2755, 0o000, 0o6777)))
    elif kind == "deep":
        os.makedirs(os.path.join(path, *[b"d"] * (260 if rng.random() < RARE else 3)))
    elif kind == "link":
        os.symlink(drawn_path(rng, shop), path)
    elif kind in NODES:
        device = os.makedev(rng.choice((1, 0, 254)), rng.randint(0, 9))
        os.mknod(path, NODES[kind] | 0o666, device)
    else:
        plant_file(rng, path, kind)


def plant_file(rng: random.Random, path: bytes, kind: str) -> None:
    """Make a new file that is odd in the way of *kind*."""
    with open(path, "xb") as file:
        file.write(os.urandom(rng.randint(0, 5_000)))
        if kind == "sparse":
            file.truncate(2**40 if rng.random() < RARE else 9_000)
        elif kind in ("suid", "mode"):
            os.fchmod(file.fileno(), rng.randint(0, 0o7777))
        elif kind == "ids":
            os.fchown(file.fileno(), 65_536 if rng.random() < RARE else 65_535, 7)
        elif kind == "attribute":
            os.setxattr(file.fileno(), rng.choice((b"trusted.x", b"user.x")), b"v")
    if kind == "hard" and not os.path.lexists(path + b"2"):
        os.link(path, path + b"2")


def assert_harmless(rootfs: str) -> int:
    """Fail if a template holds what could harm the host; return how many entries it has."""
    count = 0
    for folder, folders, files in os.walk(rootfs):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            seen = os.lstat(path)
            count += 1
            kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
            assert any(is_kind(seen.st_mode) for is_kind in kinds), (SEED, path)
            assert not seen.st_mode & stat.S_ISUID, (SEED, path)
            assert stat.S_ISDIR(seen.st_mode) or not seen.st_mode & stat.S_ISGID, (SEED, path)
            assert max(seen.st_uid, seen.st_gid) < 65_536, (SEED, path)
            attributes = os.listxattr(path, follow_symlinks=False)
            assert all(item.startswith("user.") for item in attributes), (SEED, path)
    return count


def test_hostile_trees_are_refused_or_harmless(shop: Workshop) -> None:
    """In this process, without the jail: the walk alone must be safe."""
    rng = random.Random(SEED)
    done = 0
    for number in range(TREES):
        top = shop.path(f"tree{number}")
        os.mkdir(top)
        for _ in range(TREE_ENTRIES):
            plant(rng, shop, os.fsencode(top))
        target = f"{shop.base}/staging/tree{number}"
        meter = Meter(f"{shop.base}/staging", LIMITS, lambda _: None)
        refusal = "printable"
        try:
            take_over(top, target, meter, moves=bool(number % 2))
        except TemplateRefused as error:
            refusal = error.message
        else:
            done += 1
            assert assert_harmless(target) == meter.entries
        assert refusal.isprintable(), (SEED, refusal)
        filestore.remove_tree(top)
        filestore.remove_tree(target)
    assert 0 < done < TREES


def drawn_entry(rng: random.Random, shop: Workshop) -> Entry:
    """Return one hostile member of a tar; most are such that umoci goes on after them."""
    name = "/".join(rng.choices(("..", "l0", "l1", "d", "x", ".", "etc", "dev", "proc"), k=3))
    name = rng.choice(("", "/", "../../")) + name + rng.choice(("", "\n", "\x1b[2J", "é", "\udcff"))
    to = drawn_path(rng, shop)
    match rng.choice(KINDS):
        case "folder":
            return Entry(name, type=tarfile.DIRTYPE, mode=rng.choice((0o777, 0o2755, 0)))
        case "link":
            return Entry(rng.choice((name, "l0", "l1")), type=tarfile.SYMTYPE, linkname=to)
        case "hard" if not rng.randrange(5):
            return Entry(name, type=tarfile.LNKTYPE, linkname=to)
        case "char":
            return Entry(name, type=tarfile.CHRTYPE, device=(1, 3))
        case "block":
            return Entry(name, type=tarfile.BLKTYPE, device=(254, 0))
        case "pipe":
            return Entry(name, type=tarfile.FIFOTYPE)
        case "suid":
            return Entry(name, b"x", mode=0o6755, uid=65_536 if rng.random() < RARE else 7)
        case "whiteout":
            ending = rng.choice(("x", "l0", "..", ".", ".wh..opq", "secret"))
            return Entry(os.path.join(rng.choice(("", "l1", name)), f".wh.{ending}"), b"")
        case "deep":
            return Entry("d/" * (260 if rng.random() < RARE else 20) + "x", b"")
    return Entry(name, os.urandom(rng.randint(0, 5000)))


def test_hostile_archives_are_refused_or_harmless(shop: Workshop) -> None:
    rng = random.Random(SEED)
    done = handed = 0
    for number in range(ARCHIVES):
        entries = [drawn_entry(rng, shop) for _ in range(ARCHIVE_ENTRIES)]
        half = ARCHIVE_ENTRIES // 2
        path = shop.path(f"image{number}")
        images.write(path, images.layer(entries[:half]), images.layer(entries[half:]))
        result = shop.add("oci", path, TAG, max_bytes=2**20)
        handed += len(entries)
        if result.is_done:
            done += 1
            assert_harmless(result.rootfs)
        else:
            assert result.error["message"].isprintable(), (SEED, result.error)
            assert result.error["code"] == "invalid_argument", (SEED, result.error)
        filestore.remove_tree(path)
        filestore.remove_tree(result.staging)
    assert handed == ARCHIVES * ARCHIVE_ENTRIES
    assert 0 < done < ARCHIVES


def test_control_a_careless_copy_would_be_found() -> None:
    """What is outside is seen to have changed, and a device node to be there."""

    def touch_outside() -> None:
        with workshop() as shop:
            Path(f"{shop.canary}/new").touch()

    def read_outside() -> None:
        with workshop() as shop:
            Path(f"{shop.base}/staging/x").write_bytes(SECRET)

    for careless in (touch_outside, read_outside):
        with pytest.raises(AssertionError):
            careless()
    with workshop() as shop:
        os.mknod(f"{shop.base}/staging/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        with pytest.raises(AssertionError):
            assert_harmless(f"{shop.base}/staging")
