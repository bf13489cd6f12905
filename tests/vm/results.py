"""What a machine job brought home, read from its folder."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Case:
    """One test of the guest, in one boot."""

    module: str
    name: str
    problem: str
    """Empty if it passed; what was skipped did not."""


@dataclass(frozen=True, slots=True)
class Results:
    """All tests of all boots, and what became of the job itself."""

    logs: Path
    problem: str
    cases: tuple[Case, ...]

    def complaint(self, module: str) -> str:
        """Return what is wrong with the tests of a module, or nothing if all of them passed."""
        mine = [c for c in self.cases if c.module == module or c.module.startswith(f"{module}.")]
        bad = [f"{case.name}: {case.problem}" for case in mine if case.problem]
        if not mine:
            bad = [f"no test of {module} came to an end in the machine"]
        if bad and self.problem:
            bad.append(f"the job: {self.problem}")
        return "\n".join([*bad, f"logs: {self.logs}"]) if bad else ""


def read_results(logs: Path) -> Results:
    """Read what lies in *logs*; whatever is missing there is a problem."""
    result = logs / "result"
    said = result.read_text(encoding="utf-8") if result.exists() else "it was ended from outside"
    cases = [case for path in sorted(logs.glob("junit-*.xml")) for case in read_junit(path)]
    return Results(logs, said.strip(), tuple(cases))


def read_junit(path: Path) -> list[Case]:
    """Return the tests of a JUnit file."""
    found = []
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        problems = [
            f"{child.tag}: {child.get('message')}\n{child.text or ''}"
            for child in case
            if child.tag in {"failure", "error", "skipped"}
        ]
        name = f"{case.get('classname')}::{case.get('name')}"
        found.append(Case(case.get("classname", ""), name, "\n".join(problems)))
    return found
