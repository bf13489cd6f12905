"""What an import of `axern` costs whoever imports it into a program of theirs."""

import subprocess
import sys

import pytest

import axern

LIBRARIES = frozenset("httptools msgspec psutil pydantic rich typer yaml filelock".split())
COSTLY = LIBRARIES | frozenset("asyncio dataclasses email http.client inspect ssl typing".split())


def loaded(program: str) -> set[str]:
    script = f"import sys; {program}; print(*sys.modules)"
    argv = [sys.executable, "-S", "-c", script]
    done = subprocess.run(argv, capture_output=True, check=True, text=True)
    return set(done.stdout.split())


def test_the_package_alone_loads_nothing() -> None:
    found = {name for name in loaded("import axern") if name.startswith(("axern", "ledger"))}
    assert found == {"axern"}


def test_the_blocking_client_loads_no_library() -> None:
    assert loaded("import axern; axern.Client('/s').lease(cpu=1)") & COSTLY == set()


def test_the_asynchronous_one_loads_asyncio_and_no_library() -> None:
    found = loaded("import axern; axern.AsyncClient('/s').lease(cpu=1)")
    assert "asyncio" in found
    assert found & LIBRARIES == set()


def test_control_what_is_loaded_is_seen() -> None:
    assert "dataclasses" in loaded("import dataclasses")


@pytest.mark.parametrize("name", axern.__all__)
def test_all_that_is_promised_is_there(name: str) -> None:
    assert getattr(axern, name) is not None


def test_nothing_else_is() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'client'"):
        _ = axern.client  # type: ignore[attr-defined]
