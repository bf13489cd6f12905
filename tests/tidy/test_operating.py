"""docs/operating.md lists every configuration key, and every verb, as the code defines it."""

from __future__ import annotations

import os

from axern.settings import keys_table
from ledger import rights

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_the_table_of_keys_is_made_from_the_code() -> None:
    with open(f"{ROOT}/docs/operating.md", encoding="utf-8") as file:
        text = file.read()
    assert keys_table() in text, f"docs/operating.md must hold:\n{keys_table()}"


def test_the_table_of_rights_is_made_from_the_code() -> None:
    with open(f"{ROOT}/docs/operating.md", encoding="utf-8") as file:
        text = file.read()
    assert rights.table() in text, f"docs/operating.md must hold:\n{rights.table()}"
