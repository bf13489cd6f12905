"""Imports by the real program, with real skopeo and umoci: good sources, and sources that bite."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from axern.host import filestore
from tests.host import images
from tests.host.conftest import command_lines, wait_until
from tests.host.images import TAG, Entry
from tests.host.importing import SECRET, Workshop, workshop

pytestmark = pytest.mark.host

FOLDER, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.fixture
def shop() -> Iterator[Workshop]:
    with workshop() as made:
        yield made


def modes(top: str) -> dict[str, str]:
    """Return the kind and mode of everything below *top*, as `ls` shows them."""
    return {
        os.path.relpath(os.path.join(folder, name), top): stat.filemode(
            os.lstat(os.path.join(folder, name)).st_mode
        )
        for folder, folders, files in os.walk(top)
        for name in (*folders, *files)
    }


def image(shop: Workshop, name: str, *layers: list[Entry]) -> str:
    path = shop.path(name)
    images.write(path, *(images.layer(entries) for entries in layers))
    return path


def plain(shop: Workshop, name: str = "plain") -> str:
    return image(shop, name, [Entry("bin", type=FOLDER), Entry("bin/sh", b"#!")])


def test_a_folder_is_copied_as_it_is(shop: Workshop) -> None:
    source = shop.path("dir")
    os.makedirs(f"{source}/sub/inner", 0o2775)
    os.chmod(f"{source}/sub", 0o3777)  # noqa: S103 - it is kept
    for name, mode in (("a", 0o640), ("sub/b\n\x1b[31m", 0o755)):
        with open(f"{source}/{name}", "w", encoding="utf-8") as file:
            file.write(name)
        os.chmod(f"{source}/{name}", mode)
    os.chown(f"{source}/a", 1000, 65535)
    os.utime(f"{source}/a", ns=(1, 2_000_000_001))
    os.link(f"{source}/a", f"{source}/sub/same")
    os.symlink("/nowhere", f"{source}/link")
    os.lchown(f"{source}/link", 7, 8)
    os.setxattr(f"{source}/a", "user.kept", b"1")
    with open(f"{source}/sparse", "wb") as file:
        file.write(b"x")
        file.truncate(50 * 1024**2)
        file.seek(40 * 1024**2)
        file.write(b"y")
    result = shop.add("dir", source)
    rootfs = result.rootfs
    assert modes(rootfs) == modes(source)
    seen = os.stat(f"{rootfs}/a")
    assert (seen.st_uid, seen.st_gid, seen.st_mtime_ns, seen.st_nlink) == (
        1000,
        65535,
        2 * 10**9 + 1,
        2,
    )
    assert os.path.samefile(f"{rootfs}/a", f"{rootfs}/sub/same")
    assert os.lstat(f"{rootfs}/link").st_uid == 7
    assert os.getxattr(f"{rootfs}/a", "user.kept") == b"1"
    assert Path(f"{rootfs}/sparse").read_bytes() == Path(f"{source}/sparse").read_bytes()
    assert os.stat(f"{rootfs}/sparse").st_blocks < 1024
    assert result.record["entries"] == len(modes(source))
    assert result.record["digest"] is None
    steps = [line["step"] for line in result.lines[:-1]]
    assert (steps[0], steps[-1]) == ("copy", "sync")


def test_what_could_harm_the_host_is_left_out_and_counted(shop: Workshop) -> None:
    source = shop.path("dir")
    os.makedirs(source)
    Path(f"{source}/file").touch()
    os.mknod(f"{source}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(f"{source}/disk", stat.S_IFBLK | 0o666, os.makedev(254, 0))
    os.mkfifo(f"{source}/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{source}/socket")
    Path(f"{source}/root").touch()
    os.chmod(f"{source}/root", 0o6755)  # noqa: S103 - it is cleared
    os.setxattr(
        f"{source}/root", "security.capability", bytes.fromhex("0100000200200000" + "00" * 12)
    )
    os.setxattr(f"{source}/root", "trusted.overlay.redirect", b"/etc")
    result = shop.add("dir", source)
    assert modes(result.rootfs) == {"file": "-rw-r--r--", "root": "-rwxr-xr-x"}
    assert os.listxattr(f"{result.rootfs}/root") == []
    assert result.record["left_out"] == {"device nodes": 2, "named pipes": 1, "sockets": 1}


def test_other_mounts_are_not_entered(shop: Workshop) -> None:
    source = shop.path("dir")
    os.makedirs(f"{source}/proc")
    subprocess.run(["mount", "--bind", shop.canary, f"{source}/proc"], check=True)
    try:
        result = shop.add("dir", source)
    finally:
        subprocess.run(["umount", f"{source}/proc"], check=True)
    assert modes(result.rootfs) == {"proc": "drwx------"}
    assert result.record["left_out"] == {"mounts": 1}


def test_images_are_unpacked_and_described(shop: Workshop) -> None:
    path = shop.path("image")
    first = [
        Entry("usr/bin", type=FOLDER),
        Entry("usr/bin/x", b"1", mode=0o4755),
        Entry("old", b""),
    ]
    second = [Entry(".wh.old", b""), Entry("usr/bin/y", type=HARD, linkname="usr/bin/x")]
    config = {"Env": ["PATH=/x:/y", "A=b=c", "broken", "=z"], "Cmd": ["sh"], "WorkingDir": "/w"}
    digest = images.write(path, images.layer(first), images.layer(second), config=config)
    result = shop.add("oci", path, TAG)
    found = modes(result.rootfs)
    assert found == {
        "usr": "drwxr-xr-x",
        "usr/bin": "drwxr-xr-x",
        "usr/bin/x": "-rwxr-xr-x",
        "usr/bin/y": "-rwxr-xr-x",
    }
    assert sorted(os.listdir(result.staging)) == ["rootfs", "template.json"]
    record = result.record
    assert record["digest"] == digest
    assert record["env"] == {"PATH": "/x:/y", "A": "b=c"}
    assert record["image"] == {"cmd": ["sh"], "entrypoint": None, "user": None, "working_dir": "/w"}
    assert record["source"] == f"oci:{path}:{TAG}"
    assert [line["step"] for line in result.lines[:-1]][-3:] == ["unpack", "check", "sync"]


def test_docker_archives_are_unpacked(shop: Workshop) -> None:
    archive = shop.path("image.tar")
    for reference in ("team/app:1", "team/other:2"):
        tool = [
            "skopeo",
            "--insecure-policy",
            "copy",
            "-q",
            f"oci:{plain(shop, reference[:6])}:{TAG}",
        ]
        subprocess.run([*tool, f"docker-archive:{archive}:{reference}"], check=True)
        break
    assert "bin/sh" in modes(shop.add("docker-archive", archive).rootfs)
    assert "bin/sh" in modes(shop.add("docker-archive", archive, "team/app:1").rootfs)
    wrong = shop.add("docker-archive", archive, "team/app:9").error
    assert wrong["message"].startswith("skopeo refuses it: ")


ESCAPES = {
    "dot-dot": [Entry("../../../../{canary}/new", b"x")],
    "absolute": [Entry("{canary}/new", b"x")],
    "through a link": [
        Entry("link", type=LINK, linkname="{canary}"),
        Entry("link/secret", b"overwritten"),
    ],
    "through a relative link": [
        Entry("link", type=LINK, linkname="../../canary"),
        Entry("link/new", type=FOLDER),
    ],
    "through two links": [
        Entry("a", type=LINK, linkname="/"),
        Entry("b", type=LINK, linkname="a/{canary}"),
        Entry("b/secret", type=LINK, linkname="/x"),
    ],
    "a hard link out": [Entry("hard", type=HARD, linkname="{canary}/secret")],
    "a hard link out by dot-dot": [Entry("hard", type=HARD, linkname="../../../canary/secret")],
    "a hard link through a link": [
        Entry("link", type=LINK, linkname="{canary}"),
        Entry("hard", type=HARD, linkname="link/secret"),
    ],
    "the root as a link": [Entry(".", type=LINK, linkname="{canary}"), Entry("new", b"x")],
    "a whiteout of what is outside": [
        Entry("link", type=LINK, linkname="{canary}"),
        Entry("link/.wh.secret", b""),
    ],
    "a whiteout of the folder above": [Entry("x", b""), Entry(".wh...", b"")],
    "a whiteout of the root": [Entry("x/.wh...", b"")],
    "a whiteout by dot-dot": [Entry("../../.wh.canary", b"")],
    "an opaque folder outside": [
        Entry("link", type=LINK, linkname="{canary}"),
        Entry("link/.wh..wh..opq", b""),
    ],
    "a folder that becomes a link": [
        Entry("dir", type=FOLDER),
        Entry("dir", type=LINK, linkname="{canary}"),
        Entry("dir/secret", b"x"),
    ],
    "a mode through a link": [
        Entry("link", type=LINK, linkname="{canary}"),
        Entry("link", type=FOLDER, mode=0o777),
        Entry("link/inner", type=FOLDER, mode=0o777, uid=9),
    ],
}


@pytest.mark.parametrize("name", ESCAPES)
def test_no_archive_reaches_out(shop: Workshop, name: str) -> None:
    """The fixture compares all that is outside; refused or harmless is up to umoci."""
    entries = [
        Entry(
            entry.name.replace("{canary}", shop.canary),
            entry.data,
            entry.type,
            entry.linkname.replace("{canary}", shop.canary),
            entry.mode,
            entry.uid,
        )
        for entry in ESCAPES[name]
    ]
    first = [Entry("fine", b"")]
    result = shop.add("oci", image(shop, "escape", first, entries), TAG)
    if not result.is_done:
        message = result.error["message"]
        assert message.startswith(("umoci refuses it: ", "the image removes its own root"))
        assert shop.base not in message.replace(shop.canary, "")


def test_control_umoci_alone_would_reach_out(shop: Workshop) -> None:
    """Without the jail the whiteout of `..` empties the folder around the target, in this version.

    Another one may have learned better; the jail's own control is in test_jail.py.
    """
    version = subprocess.run(["umoci", "--version"], check=True, capture_output=True).stdout
    path = image(shop, "escape", [Entry("x", b"")], ESCAPES["a whiteout of the folder above"])
    around = f"{shop.base}/staging/around"
    os.makedirs(f"{around}/precious")
    tool = ["umoci", "raw", "unpack", "--image", f"{path}:{TAG}", f"{around}/target"]
    subprocess.run(tool, check=False, capture_output=True)
    assert os.path.exists(f"{around}/precious") == (b"version 0.4.7" not in version)


REFUSED = {
    "too many ids": ([Entry("x", b"", uid=70_000)], "/x: it belongs to 70000:0"),
    "deep": ([Entry("d/" * 300, type=FOLDER)], "nest deeper than 256"),
    "long": ([Entry(f"{'n' * 200}/" * 30 + "x", b"")], "file name too long"),
    "a name too long": ([Entry("n" * 300, b"")], "umoci refuses it"),
    "an unknown kind": ([Entry("x", b"", type=b"Z")], "umoci refuses it"),
    "nothing": ([Entry("null", type=tarfile.CHRTYPE, device=(1, 3))], "there is nothing in it"),
    "an attribute that is none": (
        [Entry("x", b"", pax={"SCHILY.xattr.security.capability": "bad"})],
        "umoci refuses it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_template_can_hold_is_refused(shop: Workshop, name: str) -> None:
    entries, words = REFUSED[name]
    error = shop.add("oci", image(shop, "image", entries), TAG).error
    assert error["code"] == "invalid_argument"
    assert words in error["message"]
    assert error["message"].isprintable()


def test_bombs_are_ended_with_the_limit_that_they_reach(shop: Workshop) -> None:
    zeros = image(shop, "zeros", [Entry("zeros", bytes(200 * 1024**2))])
    error = shop.add("oci", zeros, TAG, max_bytes=20 * 1024**2).error
    assert "20MiB (template_max)" in error["message"] or "file too large" in error["message"]
    many = image(shop, "many", [Entry(f"d{n % 100}/{n}", b"") for n in range(20_000)])
    error = shop.add("oci", many, TAG, max_entries=5_000).error
    assert "more than 5,000 entries (template_max_entries)" in error["message"]
    error = shop.add("oci", many, TAG, reserve_bytes=2**60).error
    assert (error["code"], "must stay free" in error["message"]) == ("busy", True)
    error = shop.add("oci", many, TAG, timeout_s=0.3).error
    assert "longer than 0.3 s (template_timeout)" in error["message"]


def test_sizes_that_lie(shop: Workshop) -> None:
    data = images.layer([Entry("small", b"x" * 600)])
    header = bytearray(data[:512])
    header[124:136] = b"77777777777\0"  # 8 GiB; source: POSIX ustar, size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    layout = images.Layout(shop.path("lies"))
    lying = gzip.compress(bytes(header) + data[512:], 1)
    descriptor = {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **layout.blob(lying)}
    diff = hashlib.sha256(bytes(header) + data[512:]).hexdigest()
    rootfs = {"type": "layers", "diff_ids": [f"sha256:{diff}"]}
    layout.finish(json.dumps({"rootfs": rootfs, "config": {}}).encode(), [descriptor])
    assert "refuses it" in shop.add("oci", layout.path, TAG).error["message"]
    source = shop.path("dir")
    os.makedirs(source)
    with open(f"{source}/hole", "wb") as file:
        file.truncate(2**40)
    error = shop.add("dir", source).error
    assert error["message"] == "/hole: it is larger than a template may be (template_max)"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("index.json", b"{"),
        ("index.json", b"[" * 100_000),
        ("index.json", b'{"schemaVersion":2,"manifests":[{"digest":"sha256:../../../canary"}]}'),
        ("config", b'{"config": 7, "rootfs": []}'),
        ("config", b"\xff\xfe"),
        ("layer", b"\x1f\x8b\x08\x00 this is no gzip"),
        ("layer", gzip.compress(b"this is no tar" * 100, mtime=0)),
        ("digest", b"other"),
    ],
)
def test_damaged_images_are_refused(shop: Workshop, name: str, damage: bytes) -> None:
    path = plain(shop)
    layout = images.Layout(path)
    if name == "index.json":
        Path(f"{path}/index.json").write_bytes(damage)
    elif name == "digest":
        for blob in os.scandir(f"{path}/blobs/sha256"):
            if blob.stat().st_size and Path(blob.path).read_bytes().startswith(b"\x1f\x8b"):
                Path(blob.path).write_bytes(gzip.compress(damage))
    else:
        data = gzip.compress(images.layer([Entry("x", b"")])) if name == "config" else damage
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        layer = {"mediaType": kind, **layout.blob(data)}
        config = {"config": {}, "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}
        layout.finish(damage if name == "config" else json.dumps(config).encode(), [layer])
    error = shop.add("oci", path, TAG).error
    assert error["code"] == "invalid_argument"
    assert error["message"].isprintable()
    assert len(error["message"]) < 400


def test_an_image_reads_nothing_from_outside(shop: Workshop) -> None:
    """Blobs that are links, and layers that are to be fetched from elsewhere."""
    path = plain(shop)
    digest = hashlib.sha256(SECRET).hexdigest()
    os.symlink(f"{shop.canary}/secret", f"{path}/blobs/sha256/{digest}")
    layout = images.Layout(path)
    foreign = {
        "mediaType": "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
        "digest": f"sha256:{digest}",
        "size": len(SECRET),
        "urls": ["http://127.0.0.1:9/layer"],
    }
    layout.finish(json.dumps({"rootfs": {"type": "layers", "diff_ids": []}}).encode(), [foreign])
    assert shop.add("oci", path, TAG).error["code"] == "invalid_argument"


def test_a_source_that_changes_is_an_error(shop: Workshop) -> None:
    source = shop.path("dir")
    os.makedirs(source)
    with open(f"{source}/big", "wb") as file:
        file.write(os.urandom(1024**2) * 200)
    process, keep_open = shop.start(shop.job("dir", source))
    with process, os.fdopen(keep_open, "wb"), open(f"{source}/big", "r+b") as file:
        while process.poll() is None:
            file.write(b"x")
            file.flush()
        stdout = process.communicate()[0]
    error = json.loads(stdout.splitlines()[-1])["error"]
    assert error["message"] == "/big: it changed while it was read"


def test_the_import_dies_with_whoever_asked(shop: Workshop) -> None:
    """A killed daemon leaves no child, and none of its tools."""
    many = image(shop, "many", [Entry(f"d{n % 100}/{n}", b"x" * 512) for n in range(30_000)])
    job = shop.job("oci", many, TAG)
    process, keep_open = shop.start(job)
    with process:
        wait_until(lambda: os.path.isdir(f"{job.staging}/unpacked"))
        os.close(keep_open)
        assert process.wait() == -signal.SIGKILL
    mine = job.staging.encode()
    wait_until(lambda: not any(mine in words for _, words in command_lines()))
    filestore.remove_tree(job.staging)
    os.mkdir(job.staging)
