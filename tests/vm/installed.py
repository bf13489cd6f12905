"""A disk with this checkout installed as its users install it, made without booting anything.

The image's disk is copied and mounted, in a mount namespace of its own, and `make install` runs
inside it, natively and offline: emulated, it would take minutes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.vm.image import Image
from tests.vm.recipe import ROOT

INSIDE = """
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin PIP_NO_INDEX=1 PIP_FIND_LINKS=/var/lib/axern-vm/wheels
make --quiet -C /axern install
systemd-sysusers axern.conf
/opt/tests/bin/python -m compileall -q /axern/axern /axern/ledger /axern/tests
cd /axern
AXERN_MACHINE=any /opt/tests/bin/python -m pytest -qq -p no:cacheprovider --collect-only \\
    tests/host tests/machine # pytest's own way to compile them
"""

AROUND = """
set -eu
cp --sparse=always "$1" "$2"
mkdir -p "$3"
mount -o loop "$2" "$3"
for name in proc dev; do mount --rbind /$name "$3/$name"; done
git -C "$4" ls-files -z --cached --others --exclude-standard |
    tar -c -C "$4" --null --ignore-failed-read -T - | tar -x -C "$3/axern" --no-same-owner
chroot "$3" /usr/bin/env TMPDIR=/tmp /bin/sh -c "$5"
umount --recursive "$3"
"""


def make_disk(image: Image, disk: Path) -> None:
    """Write *image*'s disk with this checkout installed to the new file *disk*.

    Raises:
        RuntimeError: It could not be made; the message says what the tools said.
    """
    mount = disk.with_suffix(".mount")
    argv = ["unshare", "--mount", "--propagation", "private", "bash", "-c", AROUND, "installed"]
    done = subprocess.run(
        [*argv, str(image.disk), str(disk), str(mount), str(ROOT), INSIDE],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"this checkout could not be installed:\n{done.stdout}{done.stderr}")
    mount.rmdir()
