"""`make install` puts everything below DESTDIR, `make uninstall` takes it away and leaves state."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

PLACED = """
etc/axern/axern.toml
usr/local/bin/axern
usr/local/lib/systemd/system/axernd.service
usr/local/lib/systemd/system/axernd.socket
usr/local/lib/sysusers.d/axern.conf
usr/local/lib/tmpfiles.d/axern.conf
usr/local/sbin/axernd
usr/local/share/bash-completion/completions/axern
usr/local/share/fish/vendor_completions.d/axern.fish
usr/local/share/man/man1/axern-run.1
usr/local/share/man/man1/axern.1
usr/local/share/zsh/site-functions/_axern
""".split()


def make(
    target: str, dest: str | Path, *words: str, python_path: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run make as an administrator whose files nobody else may read."""
    return subprocess.run(
        ["make", target, f"DESTDIR={dest}", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHON": "python3", "PYTHONPATH": python_path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        umask=0o077,
        check=False,
    )


@pytest.mark.timeout(900)  # pip fetches and builds
def test_all_of_it_comes_and_goes_and_state_stays(tmp_path: Path) -> None:
    mine = {
        tmp_path / "etc/axern/axern.toml": 'default_runtime = "runc"\n',
        tmp_path / "var/lib/axern/ledger/ledger.json": "{}",
        tmp_path / "usr/local/share/man/man1/axernal.1": "somebody else's",
    }
    for path, text in mine.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    before = set(tmp_path.rglob("*"))
    wrong = tmp_path / "wrong/axern/__init__.py"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("raise SystemExit('not the one that was installed')", encoding="utf-8")
    relative = os.path.relpath(tmp_path, ROOT)
    done = make("install", relative, python_path=str(tmp_path / "wrong"))
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "wrong")
    made = set(tmp_path.rglob("*")) - before
    assert [path for path in made if not _is_readable(path)] == []
    assert [name for name in PLACED if not os.path.lexists(tmp_path / name)] == []
    lib = tmp_path / "usr/local/lib/axern"
    for name in ("axern", "axernd"):
        first = (lib / "bin" / name).read_text(encoding="utf-8").partition("\n")[0]
        assert first == "#!/usr/local/lib/axern/bin/python"
    version = subprocess.run(
        [lib / "bin/python", "-I", "-m", "axern", "version"],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert version.stdout.startswith("axern ")
    assert "left as they are" in make("uninstall", relative).stderr.lower()
    left = {path for path in tmp_path.rglob("*") if not path.is_dir()}
    assert left == set(mine)
    assert all(path.read_text(encoding="utf-8") == text for path, text in mine.items())


def _is_readable(path: Path) -> bool:
    """Tell whether members of the group axern, who are nobody special, can use it."""
    mode = path.lstat().st_mode
    return bool(mode & stat.S_IROTH) and (path.is_file() or bool(mode & stat.S_IXOTH))


def test_one_that_fails_leaves_the_present_one_even_if_the_last_was_cut_short(
    tmp_path: Path,
) -> None:
    lib = tmp_path / "usr/local/lib/axern"
    cut_short = lib.with_name("axern.old")
    cut_short.mkdir(parents=True)
    (cut_short / "pyvenv.cfg").write_text("the last that worked", encoding="utf-8")
    done = make("install", tmp_path, "PACKAGE=/nowhere/axern.whl")
    assert done.returncode != 0
    assert (lib / "pyvenv.cfg").read_text(encoding="utf-8") == "the last that worked"


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    strange = tmp_path / "usr/local/lib/axern"
    strange.mkdir(parents=True)
    for target in ("install", "uninstall"):
        done = subprocess.run(
            ["make", target, f"DESTDIR={tmp_path}"], cwd=ROOT, capture_output=True, check=False
        )
        assert done.returncode != 0
        assert b"is not ours" in done.stderr
    assert strange.is_dir()


def test_the_units_name_what_is_installed() -> None:
    service = (ROOT / "systemd/axernd.service").read_text(encoding="utf-8")
    assert "\nExecStart=/usr/local/sbin/axernd\n" in service
    assert "usr/local/sbin/axernd" in PLACED
