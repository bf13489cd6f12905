"""Unpack a container image with skopeo and umoci, each as a program that may be ended any time."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import Any

from axern.errors import CapabilityMissing, TemplateRefused
from axern.host import filestore
from axern.runtime.command import ENVIRONMENT
from axern.runtime.template_meter import Meter
from axern.runtime.template_tree import shown

PROGRAMS = ("skopeo", "umoci")
_LOOK_EVERY_S = 0.1
_KEPT_STDERR_BYTES = 4096
_DOCUMENT_LIMIT_BYTES = 4 * 1024**2
"""What registries allow for a manifest."""
_ENV_LIMIT_BYTES = 32 * 1024
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_SKOPEO_MESSAGE = re.compile(r'level=fatal msg="((?:[^"\\]|\\.)*)"')
_TAG = "import"


@dataclass(frozen=True, slots=True)
class Image:
    """What an image says of itself; `env` is what runs take over, the rest is only shown."""

    digest: str
    env: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def require_programs() -> None:
    """Do nothing if this host can unpack images.

    Raises:
        CapabilityMissing: Names the program that it lacks.
    """
    for program in PROGRAMS:
        if shutil.which(program, path=ENVIRONMENT["PATH"]) is None:
            raise CapabilityMissing(
                f"this host has no {program}, which unpacking an image needs",
                syscall="execve",
                path=program,
                hint="apt install skopeo umoci, or unpack it elsewhere and use: "
                "axern template add NAME --from DIR",
            )


def unpack(source: str, staging: str, target: str, meter: Meter) -> Image:
    """Unpack the image *source*, in skopeo's words, to the new folder *target*.

    skopeo checks every digest and brings each form into one; umoci applies the layers.

    Raises:
        TemplateRefused: One of them refuses it, or it is too large.
        HostFull: It would fill the disk.
    """
    image, scratch = f"{staging}/image", f"{staging}/scratch"
    os.mkdir(scratch, 0o700)
    meter.begin("read")
    copy = ("copy", "--quiet", source, f"oci:{image}:{_TAG}")
    _run(("skopeo", "--insecure-policy", "--tmpdir", scratch, *copy), staging, meter)
    found = _describe(image)
    meter.begin("unpack")
    _run(("umoci", "raw", "unpack", "--image", f"{image}:{_TAG}", target), target, meter)
    for folder in (image, scratch):
        filestore.remove_tree(folder)
    if not os.path.isdir(target) or os.path.islink(target):
        raise TemplateRefused("the image removes its own root")
    return found


def _run(argv: tuple[str, ...], watched: str, meter: Meter) -> None:
    """Run a program to its end, counting what appears in *watched*."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "HOME": meter.staging, "TMPDIR": f"{meter.staging}/scratch"},
        cwd="/",
    ) as process:
        try:
            stderr = _follow(process, watched, meter)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        reason = _reason(stderr, meter.staging) or f"exit {process.returncode}"
        is_large = reason.endswith("file too large")
        hint = "no file of it may be larger than template_max" if is_large else None
        raise TemplateRefused(f"{argv[0]} refuses it: {reason}", hint=hint)
    meter.watch(watched)


def _follow(process: subprocess.Popen[bytes], watched: str, meter: Meter) -> bytes:
    """Return the end of what the program says; raises what the meter does."""
    if process.stderr is None:
        raise RuntimeError("subprocess gave no pipe")
    descriptor = process.stderr.fileno()
    kept = b""
    while True:
        if select.select([descriptor], [], [], _LOOK_EVERY_S)[0]:
            data = os.read(descriptor, 65536)
            if not data:
                process.wait()
                return kept
            kept = (kept + data)[-_KEPT_STDERR_BYTES:]
        meter.watch(watched)


def _reason(stderr: bytes, staging: str) -> str:
    """Return the last thing that a program said, as a message may show it."""
    text = stderr.decode("utf-8", "backslashreplace").strip()
    text = text.replace(f"{staging}/", "").replace(staging, "…")
    if match := _SKOPEO_MESSAGE.search(text):
        return shown(match[1].replace('\\"', '"'))
    return shown(text.rpartition("\n")[2].strip().removeprefix("⨯").strip())


def _describe(image: str) -> Image:
    """Read what skopeo has written: our layout, with documents that a stranger chose."""
    try:
        index = _document(f"{image}/index.json")
        digest = str(index["manifests"][0]["digest"])
        manifest = _document(_blob(image, digest))
        config = _document(_blob(image, str(manifest["config"]["digest"])))
        own = config.get("config") or {}
        return Image(digest, _environment(own.get("Env")), _shown_config(own))
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        raise TemplateRefused(f"the image's configuration is damaged: {error}") from error


def _blob(image: str, digest: str) -> str:
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise ValueError("a digest is not sha256")
    return f"{image}/blobs/sha256/{match[1]}"


def _document(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        data = file.read(_DOCUMENT_LIMIT_BYTES + 1)
    if len(data) > _DOCUMENT_LIMIT_BYTES:
        raise ValueError(f"a document has more than {_DOCUMENT_LIMIT_BYTES} bytes")
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("a document nests too deep") from None
    if not isinstance(value, dict):
        raise TypeError("a document is no JSON object")
    return value


def _environment(entries: object) -> dict[str, str]:
    """Return the variables in an image's `Env`; what is no variable is passed over."""
    if entries is None:
        return {}
    if not isinstance(entries, list):
        raise TypeError("Env is no list")
    pairs = (str(entry).partition("=") for entry in entries)
    env = {name: value for name, sign, value in pairs if name and sign}
    env = {name: value for name, value in env.items() if _is_plain(name) and _is_plain(value)}
    size = sum(len(name.encode()) + len(value.encode()) + 2 for name, value in env.items())
    if size > _ENV_LIMIT_BYTES:
        raise ValueError(f"Env has {size} bytes; at most {_ENV_LIMIT_BYTES} are taken")
    return env


def _is_plain(text: str) -> bool:
    """Tell whether a program can be given *text*: UTF-8 without a NUL."""
    try:
        return "\0" not in text and bool(text.encode() or True)
    except UnicodeEncodeError:
        return False


def _shown_config(own: dict[str, Any]) -> dict[str, Any]:
    """Return what a person may want to know of the image and a run does not take over."""
    found = {
        "working_dir": own.get("WorkingDir"),
        "user": own.get("User"),
        "entrypoint": own.get("Entrypoint"),
        "cmd": own.get("Cmd"),
    }
    text = json.dumps(found)
    if len(text) > _ENV_LIMIT_BYTES or "\\ud" in text.lower():
        return {}
    return found
