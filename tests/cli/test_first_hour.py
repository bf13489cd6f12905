"""The first hour of a new user: README and tutorial, every command typed, every output compared.

All of it happens in a mount namespace of its own: /etc/axern, /var/lib/axern, /run/axern and
/usr/local/bin are empty folders there, so that the words are exactly those of the pages.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from axern.host import cgroup, filestore
from axern.host.cgroup import find_hierarchies
from tests.cli.walk import Shell, matches, steps, walk
from tests.host.conftest import VOLATILE
from tests.tidy.sources import ROOT

FOLDERS = ("/etc/axern", "/var/lib/axern", "/var/log", "/run/axern", "/usr/local/bin")
GROUP = "axern"
"""Where control groups of a daemon with the default configuration are."""
SUDO = '#!/bin/sh\nexec "$@"\n'
ENTER = (
    "set -e; for folder in {folders}; do mkdir -p $folder; mount --bind {base}$folder $folder; "
    "done; exec bash --norc --noprofile"
)


@contextmanager
def first_hour(**variables: str) -> Iterator[Shell]:
    """Give a shell on a machine where Axern was never installed, in a clone of it."""
    hierarchies = find_hierarchies()
    root = cgroup.Cgroup(hierarchies, GROUP)
    assert not root.exists(), "an Axern with the default configuration is at home here"
    base = tempfile.mkdtemp(prefix="axern-hour-", dir=VOLATILE)
    os.chmod(base, 0o711)  # noqa: S103 - a sandbox's root must reach its folder below it
    made = [folder for folder in FOLDERS if not os.path.isdir(folder)]
    try:
        for folder in FOLDERS:
            os.makedirs(base + folder)
        for name in ("runc", "runsc", "conmon"):
            found = shutil.which(name, path="/usr/local/bin")
            if found:
                shutil.copy2(found, f"{base}/usr/local/bin/{name}")
        sudo = Path(base, "usr/local/bin/sudo")
        sudo.write_text(SUDO)
        sudo.chmod(0o755)
        enter = ENTER.format(folders=" ".join(FOLDERS), base=base)
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", enter]
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TERM") if name in os.environ}
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        with Shell(argv, str(ROOT), kept | {"PATH": path} | variables) as shell:
            yield shell
    finally:
        root.kill()
        root.wait_empty(10)
        for mounted in (hierarchies.unified, *hierarchies.legacy):
            cgroup.remove_folder(f"{mounted}/{GROUP}", 10)
        filestore.remove_tree(base)
        for folder in made:
            os.rmdir(folder)


def typed_by_hand(page: str) -> str:
    """Return *page* without the command that runs this very test."""
    return page.replace("$ sudo make test", "$ true")


@pytest.mark.host
@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_every_command_shows_what_the_page_says(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert len(list(steps(page))) > 5
    with first_hour() as shell:
        wrong = walk(typed_by_hand(page), shell)
    assert not wrong, "\n".join(wrong)


def test_control_a_wrong_line_is_found(tmp_path: Path) -> None:
    page = "```console\n$ printf 'a\\nb'\na\nb\n$ echo yes\nno\n$ false\n$ echo $?\n1\n```\n"
    environment = {"PATH": os.environ["PATH"]}
    with Shell(["bash", "--norc"], str(tmp_path), environment) as shell:
        (wrong,) = walk(page, shell)
    assert wrong == "line 5: echo yes\n  yes"


@pytest.mark.parametrize(
    ("expected", "seen", "fits"),
    [
        ((), [], True),
        ((), ["x"], False),
        (("a … c",), ["a b b c"], True),
        (("a … c",), ["a b", "c"], False),
        (("a", "…", "z"), ["a", "b", "c", "z"], True),
        (("a", "…", "z"), ["a", "z"], True),
        (("a", "…"), ["a", "b", "c"], True),
        (("…",), [], True),
        (("a", "…", "z"), ["a", "b"], False),
        (("a.c",), ["abc"], False),
    ],
)
def test_what_stands_for_anything(expected: tuple[str, ...], seen: list[str], fits: bool) -> None:
    assert matches(expected, seen) is fits


def test_commands_may_go_on_over_lines() -> None:
    page = "text\n```console\n$ echo a \\\n    b\na b\n```\n```sh\n$ not typed\n```\n"
    (step,) = steps(page)
    assert (step.line, step.command, step.expected) == (3, "echo a \\\n    b", ("a b",))
