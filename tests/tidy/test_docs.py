"""Links resolve, modules say what they are, and no file knows the author's machine."""

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.sources import PACKAGES, ROOT, files, python_files, shown

LINK = re.compile(
    r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE
)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)

# Spelled in pieces so that this file does not contain what it looks for.
FORBIDDEN = {
    "a path of the machine it was written on": re.compile(
        r"(?<![\w.}>)\]*~$-])/" + r"(?:work|root/\.pyenv)/"
    ),
    "an unsolved merge": re.compile(r"^" + "<" * 7 + r" |^" + ">" * 7 + r" ", re.MULTILINE),
}


def anchor(heading: str) -> str:
    """Return the link target that GitHub makes of *heading*."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def broken_links(path: Path) -> list[str]:
    """Return a line for each relative link in the Markdown file *path* that leads nowhere."""
    text = CODE.sub("", FENCE.sub("", path.read_text(encoding="utf-8")))
    found = []
    for match in LINK.finditer(text):
        link = match.group(1) or match.group(2)
        if ELSEWHERE.match(link):
            continue
        target, _, fragment = link.partition("#")
        aim = (path.parent / target).resolve() if target else path
        if not aim.exists():
            found.append(f"{shown(path)}: {link} does not exist")
        elif fragment and aim.suffix == ".md":
            whole = FENCE.sub("", aim.read_text(encoding="utf-8"))
            if fragment not in {anchor(heading) for heading in HEADING.findall(whole)}:
                found.append(f"{shown(path)}: {link} names no heading")
    return found


def forbidden(path: Path) -> list[str]:
    """Return a line for each forbidden text in *path*; binary files hold none."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return []
    return [
        f"{shown(path)}:{text.count(chr(10), 0, hit.start()) + 1}: {what}"
        for what, pattern in FORBIDDEN.items()
        for hit in pattern.finditer(text)
    ]


def undescribed(path: Path) -> list[str]:
    """Return a complaint unless the module *path* opens with one sentence on one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first, _, rest = docstring.partition("\n")
    if first.endswith((".", "?", "!")) and (not rest or rest.startswith("\n")):
        return []
    return [f"{shown(path)}: the docstring must open with one sentence that says what it is"]


def test_links_resolve() -> None:
    pages = [path for path in files() if path.suffix == ".md"]
    assert [line for page in pages for line in broken_links(page)] == []


def test_modules_say_what_they_are() -> None:
    assert [line for path in python_files(*PACKAGES) for line in undescribed(path)] == []


def test_nothing_forbidden_is_written() -> None:
    assert [line for path in files() for line in forbidden(path)] == []


def test_control_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` Title\n[ok](#a-b-title) [web](https://a.example/x) [gone](gone.md)\n"
        "[bad](page.md#nowhere) `[code](code.md)`\n```\n[fenced](fenced.md)\n```\n[ref]: ref.md\n",
        encoding="utf-8",
    )
    links = [line.rsplit(": ", 1)[1].split()[0] for line in broken_links(page)]
    assert links == ["gone.md", "page.md#nowhere", "ref.md"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("see /" + "work/main/x", 1),
        ('"/' + 'work/x"', 1),
        ("<" * 7 + " HEAD", 1),
        ("upper/work/x", 0),
        ("{root}/work/", 0),
        ("network/", 0),
    ],
)
def test_control_forbidden_texts_are_found(tmp_path: Path, text: str, count: int) -> None:
    path = tmp_path / "file.txt"
    path.write_text(text, encoding="utf-8")
    assert len(forbidden(path)) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = 1", 1),
        ('"""no end"""', 1),
        ('"""Two lines\nof one sentence."""', 1),
        ('"""One sentence."""', 0),
        ('"""One sentence.\n\nAnd more\n"""', 0),
    ],
)
def test_control_undescribed_modules_are_found(tmp_path: Path, source: str, count: int) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert len(undescribed(path)) == count


def test_the_repository_is_seen() -> None:
    seen = {shown(path) for path in files()}
    assert {"pyproject.toml", ".ci/run", "tests/tidy/test_docs.py"} <= seen
    assert not any(name.startswith((".venv", ".git/")) for name in seen)
    assert ROOT.joinpath("pyproject.toml").exists()
