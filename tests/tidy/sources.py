"""Which files the tidy tests look at, and how they run a tool."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = ("axern", "ledger")

# Not ours, or made by a tool. Any other hidden folder but .ci is left out as well.
SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules", "shared"})
VISIBLE_HIDDEN = frozenset({".ci", ".gitignore"})


def files(root: Path = ROOT) -> Iterator[Path]:
    """Yield every file of the repository in a fixed order, whether it is committed yet or not."""
    for path in sorted(root.iterdir()):
        if path.name in SKIPPED_FOLDERS or path.name.endswith(".egg-info") or path.is_symlink():
            continue
        if path.name.startswith(".") and path.name not in VISIBLE_HIDDEN:
            continue
        if path.is_dir():
            yield from files(path)
        elif path.is_file():
            yield path


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below *folders*; a folder that does not exist has none."""
    return [
        path
        for folder in folders
        if (ROOT / folder).is_dir()
        for path in files(ROOT / folder)
        if path.suffix == ".py"
    ]


def shown(path: Path) -> str:
    """Return *path* as people know it: relative to the repository where it lies inside."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def run_tool(program: str, *arguments: str) -> None:
    """Run one of the environment's own tools at the root; output is the failure's message.

    Raises:
        AssertionError: The tool is missing, or it found something.
    """
    tool = Path(sys.executable).parent / program
    if not tool.exists():
        raise AssertionError(f"{program} is missing in {tool.parent}: run `make test`")
    done = subprocess.run(
        [str(tool), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        command = " ".join((program, *arguments))
        raise AssertionError(
            f"`{command}` ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
