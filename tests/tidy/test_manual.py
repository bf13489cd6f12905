"""What is made from the table of commands is up to date, complete, and well formed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from axern.cli import manual, reference
from axern.cli.describe import acts, entries
from axern.cli.grammar import Argument, Command, Option
from tests.tidy.sources import ROOT

PAGES = manual.pages()


def test_the_reference_is_up_to_date() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert text == reference.reference(), "run `make docs`"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_groff_understands(name: str, tmp_path: Path) -> None:
    assert complaints(PAGES[name]) == ""


def complaints(page: str) -> str:
    """Return what groff has to say of *page*."""
    groff = shutil.which("groff")
    assert groff, "groff is missing: run `make setup`"
    argv = [groff, "-ww", "-z", "-man", "-Tutf8"]
    done = subprocess.run(argv, input=page, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_control_a_page_that_is_wrong_is_found() -> None:
    assert complaints(PAGES["axern.1"] + ".nonsense x\n") != ""


def test_pages_and_reference_name_every_flag_and_example() -> None:
    pages = "".join(PAGES.values()).replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")
    text = reference.reference()
    for words, row in entries()[1:]:
        command = acts(row)
        parts: tuple[Option | Argument, ...] = ()
        if isinstance(command, Command):
            parts = (*command.options, *command.arguments)
        names = [name for part in parts for name in getattr(part, "flags", ())]
        for wanted in (" ".join(words), row.example, *names):
            assert wanted in text
            assert wanted in pages
