"""SIGKILL at every step that changes a file: what was answered stays, the refused never comes."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from tempfile import mkdtemp

import pytest

from tests.faults import lives, steps
from tests.faults.lives import Tell, Told


@pytest.fixture
def fresh() -> Iterator[Callable[[], str]]:
    """Yield a maker of paths for ledgers that do not exist yet."""
    root = mkdtemp(prefix="axern-", dir=lives.MEMORY)
    numbers = iter(range(100_000))
    yield lambda: os.path.join(root, f"ledger-{next(numbers)}")
    shutil.rmtree(root)


def killed_everywhere(
    life: Callable[[str, Tell], None], moment: str, start: Callable[[], tuple[str, Told]]
) -> int:
    """Kill *life* at each of its steps, verify what is left each time, and return how often."""
    directory, told = start()
    names = steps.counted(lambda: life(directory, told))
    lives.verify(directory, told)
    cases = 0
    for step, name in enumerate(names):
        if moment == steps.HALFWAY and name != "pwrite":
            continue
        directory, told = start()
        status, words = steps.run_child(
            partial(life, directory),
            steps.dying(step, moment),
        )
        assert os.WIFSIGNALED(status), f"step {step} ({name}) was not reached"
        assert os.WTERMSIG(status) == signal.SIGKILL
        told.words += words
        try:
            lives.verify(directory, told)
        except BaseException as err:
            err.add_note(f"killed {moment} step {step} ({name}), after {words[-3:]}")
            raise
        shutil.rmtree(directory, ignore_errors=True)
        cases += 1
    return cases


@pytest.mark.parametrize("moment", [steps.BEFORE, steps.HALFWAY, steps.AFTER])
def test_a_whole_life(fresh: Callable[[], str], moment: str) -> None:
    cases = killed_everywhere(lives.whole_life, moment, lambda: (fresh(), Told()))
    assert cases >= (25 if moment == steps.HALFWAY else 80)


@pytest.mark.parametrize("moment", [steps.BEFORE, steps.HALFWAY, steps.AFTER])
def test_opening_after_a_torn_line(fresh: Callable[[], str], moment: str) -> None:
    def start() -> tuple[str, Told]:
        directory, told = fresh(), Told()
        lives.prepare_torn(directory, told)
        return directory, told

    least = 5 if moment == steps.HALFWAY else 20
    assert killed_everywhere(lives.after_torn, moment, start) >= least


def test_control_a_writer_that_answers_first_is_caught(fresh: Callable[[], str]) -> None:
    def boastful(directory: str, tell: Tell) -> None:
        def early(word: str) -> None:
            tell(word.removeprefix("begin:"))

        lives.whole_life(directory, early)

    with pytest.raises(AssertionError):
        killed_everywhere(boastful, steps.BEFORE, lambda: (fresh(), Told()))


def test_control_a_writer_that_replaces_in_place_is_caught(
    fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ledger import checkpoint, codec
    from ledger.files import FILE_MODE, Folder, write_all

    def in_place(folder: Folder, content: codec.Checkpoint) -> int:
        data = b"".join(codec.encode_checkpoint(content))
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        fd = os.open(checkpoint.CHECKPOINT, flags, FILE_MODE, dir_fd=folder.fd)
        write_all(fd, data, 0)
        os.fsync(fd)
        os.close(fd)
        return len(data)

    monkeypatch.setattr(checkpoint, "write", in_place)
    with pytest.raises(Exception, match="sum of the file"):
        killed_everywhere(lives.whole_life, steps.HALFWAY, lambda: (fresh(), Told()))
