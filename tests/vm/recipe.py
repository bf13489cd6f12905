"""What the test machine is made of, and the hash that names an image made that way."""

import hashlib
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
GUEST_FILES = HERE / "guest"
"""What is laid over the guest's root, and `setup`, which then runs inside it."""

SUITE = "trixie"
PYTHON = "3.13"
DISK_BYTES = 8 << 30
"""Sparse; a filestore for tests lies in it."""

PACKAGES = """
    systemd systemd-sysv dbus udev kmod xz-utils
    runc runsc conmon busybox-static xfsprogs e2fsprogs
    python3 python3-venv openssh-server iproute2 procps util-linux make attr libcap2-bin strace
""".split()

KERNEL = "linux-image-cloud-amd64"
"""Unpacked, not installed: its scripts would make an initial ramdisk that nobody boots."""

WANTED_IN_TESTS = re.compile(r"^(pytest|hypothesis)")
"""Of the extra `test`: what runs tests. Linters stay outside."""


def requirements() -> list[str]:
    """Return what tests in the guest import, as pip writes it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tests = project["optional-dependencies"]["test"]
    return [*project["dependencies"], *filter(WANTED_IN_TESTS.match, tests)]


def digest() -> str:
    """Return the name of the image that these files describe."""
    found = hashlib.sha256("\n".join(requirements()).encode())
    for path in (HERE / "recipe.py", HERE / "image.py", *sorted(GUEST_FILES.rglob("*"))):
        if path.is_file():
            found.update(f"{path.relative_to(HERE)} {path.stat().st_mode:o}\n".encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:20]
