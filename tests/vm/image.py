"""The machine's disk, kernel and keys: taken from the cache, or built into it.

An image is a folder `${XDG_CACHE_HOME:-~/.cache}/axern-vm/<digest>` with `disk.img` (ext4 without
a partition table), `vmlinuz`, `initrd.img` and `key` (ssh, for both sides). Nothing writes to it
again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.vm import recipe

BUILDING = "building-"
DONE = "done"
KEPT = 3
"""Images in the cache: a checkout has one, and others of this user share it."""


@dataclass(frozen=True, slots=True)
class Image:
    """A finished image."""

    folder: Path

    @property
    def disk(self) -> Path:
        """The root file system, to be opened read only."""
        return self.folder / "disk.img"

    @property
    def kernel(self) -> Path:
        """The kernel."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The initial ramdisk."""
        return self.folder / "initrd.img"

    @property
    def key(self) -> Path:
        """The private key that the guest's root accepts; its host key is the same one."""
        return self.folder / "key"


def cache_folder() -> Path:
    """Return where images are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "axern-vm"


def obtain() -> Image:
    """Return the image that the recipe describes, building it when the cache has none.

    Raises:
        RuntimeError: A tool is missing, or no apt source of this host names Debian.
        subprocess.CalledProcessError: A step failed; its output went to standard error.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    image = Image(cache / recipe.digest())
    with open(cache / "lock", "w") as lock:  # one builder; the others take what it made
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.folder.exists():
            for unfinished in cache.glob(f"{BUILDING}*"):
                shutil.rmtree(unfinished)  # of a builder that was killed: it held the lock
            with tempfile.TemporaryDirectory(prefix=BUILDING, dir=cache) as work:
                build(Path(work))
                os.rename(f"{work}/image", image.folder)
        os.utime(image.folder)
        prune(cache)
    return image


def prune(cache: Path) -> None:
    """Remove all but the images that were asked for last, of which some machine may still run."""
    images = [path for path in cache.iterdir() if (path / "disk.img").exists()]
    for old in sorted(images, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old)


def build(work: Path) -> None:
    """Build an image into the folder *work*, as `image`."""
    tree, result = work / "tree", Image(work / "image")
    result.folder.mkdir()
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "axern-vm", "-f", str(result.key))
    with ThreadPoolExecutor(1) as beside:  # both mostly wait for a mirror
        wheels = beside.submit(python_wheels, work / "wheels")
        debian(tree, work)
        wheels.result()
    for pattern, target in (("vmlinuz-*", result.kernel), ("initrd.img", result.initrd)):
        (found,) = (tree / "boot").glob(pattern)
        shutil.copy(found, target)
    with open(result.disk, "wb") as disk:
        disk.truncate(recipe.DISK_BYTES)
    run("mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1", "-d", str(tree), str(result.disk))
    shutil.rmtree(tree)


def debian(tree: Path, work: Path) -> None:
    """Make the root file system *tree*."""
    options = [f"--include={','.join(recipe.PACKAGES)}", "--variant=minbase", "--mode=root"]
    options += [
        f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "info", "locale")
    ]
    options += ["--dpkgopt=force-unsafe-io", "--format=directory", "--quiet"]
    hooks = [
        "mkdir -p $1/root/.ssh $1/var/lib/axern-vm",
        f"until [ -e '{work}/wheels/{DONE}' ]; do sleep 0.2; done",
        f"cp -r '{work}/wheels' $1/var/lib/axern-vm/wheels",
        f"cp '{work}/image/key.pub' $1/root/.ssh/authorized_keys",
        f"cp '{work}/image/key' $1/etc/ssh/ssh_host_ed25519_key",
        f"cp -r '{recipe.GUEST_FILES}/.' $1/",
        # The package's own name depends on the one with the version in its name.
        f"""cd '{work}' && export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG && apt-get download --quiet=2 \
            $(apt-cache depends {recipe.KERNEL} | sed -n 's/^ *Depends: //p') &&
            dpkg-deb -x linux-image-*.deb $1""",
        "chroot $1 /setup",
        "rm $1/setup",
    ]
    options += [f"--customize-hook={hook}" for hook in hooks]
    run("mmdebstrap", *options, recipe.SUITE, str(tree), *sources())


def sources() -> list[str]:
    """Return the suite's apt sources, from the mirrors that this host uses for its own release."""
    listing = run(
        "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"
    )
    own = os_release()["VERSION_CODENAME"]
    found = dict(line.split(maxsplit=1) for line in listing.splitlines())
    if own not in found:
        raise RuntimeError(f"no apt source of this host serves {own}, so there is no mirror to use")
    lines = [f"deb {found[own]} {recipe.SUITE} main"]
    security = found.get(f"{own}-security")
    if security is not None:
        lines.append(f"deb {security} {recipe.SUITE}-security main")
    return lines


def os_release() -> dict[str, str]:
    """Return this host's /etc/os-release."""
    with open("/etc/os-release", encoding="utf-8") as file:
        pairs = (line.rstrip("\n").split("=", 1) for line in file if "=" in line)
        return {name: value.strip('"') for name, value in pairs}


def python_wheels(folder: Path) -> None:
    """Download what tests in the guest import, for the guest's Python."""
    folder.mkdir()
    try:
        run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--dest", str(folder), "--only-binary=:all:", "--python-version", recipe.PYTHON),
            *("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_17_x86_64"),
            *("--platform", "manylinux2014_x86_64", *recipe.requirements(), "setuptools", "wheel"),
        )
    finally:
        (folder / DONE).touch()  # also without them, so that nobody waits


def run(*argv: str) -> str:
    """Run a tool and return what it prints; its errors go to standard error."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if shutil.which(argv[0], path=path) is None:
        raise RuntimeError(f"{argv[0]} is missing: run .ci/setup")
    done = subprocess.run(
        argv,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path},
    )
    return done.stdout
