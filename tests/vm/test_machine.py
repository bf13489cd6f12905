"""The tests of the machine, module by module, as results of this session; and the controls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.vm.guest import Guest, GuestDied
from tests.vm.image import obtain
from tests.vm.job import modules
from tests.vm.results import Results, read_results


@pytest.mark.vm_job
@pytest.mark.timeout(9000)
@pytest.mark.parametrize("module", modules())
def test_in_the_machine(module: str, results: Results) -> None:
    complaint = results.complaint(module.removesuffix(".py").replace("/", "."))
    assert not complaint, complaint


@pytest.mark.vm_job
@pytest.mark.timeout(9000)
def test_the_job_did_all_its_steps(results: Results) -> None:
    assert not results.problem, f"{results.problem}\nlogs: {results.logs}"


def test_control_a_failing_a_skipped_and_a_missing_test_are_found(tmp_path: Path) -> None:
    test = tmp_path / "test_planted.py"
    test.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "def test_left_out(): pytest.skip('no such kernel')\n",
        encoding="utf-8",
    )
    junit = tmp_path / "junit-0.xml"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    argv += ["--rootdir", str(tmp_path), "-c", "/dev/null", f"--junitxml={junit}", str(test)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1, done.stdout
    (tmp_path / "result").write_text("", encoding="utf-8")
    results = read_results(tmp_path)
    complaint = results.complaint("test_planted")
    assert "test_bad: failure" in complaint
    assert "no such kernel" in complaint
    assert "test_good" not in complaint
    assert str(tmp_path) in complaint
    assert "came to an end" in results.complaint("test_other")


def test_control_a_job_that_was_ended_is_found(tmp_path: Path) -> None:
    results = read_results(tmp_path)
    assert results.problem == "it was ended from outside"
    assert "ended from outside" in results.complaint("tests.host.test_limits")


@pytest.mark.vm_job  # it needs the image, which the job builds
@pytest.mark.timeout(9000)
def test_control_a_machine_that_never_boots(results: Results, short_root: Path) -> None:
    guest = Guest(short_root / "guest", obtain(), kernel_words="rdinit=/missing", boot_limit_s=10)
    try:
        with pytest.raises(GuestDied, match=r"no command ran within 10 s: .*serial\.log"):
            guest.start()
    finally:
        guest.stop()
    assert guest.pid() is None
