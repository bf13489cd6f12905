"""The checker of the floors: who may import whom, read from the source alone."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Ledger modules that may touch files, locks and clocks. All others are floor 0.
LEDGER_IO = (
    "ledger.files",
    "ledger.lock",
    "ledger.remembered",
    "ledger.blank",
    "ledger.archive",
    "ledger.codec",
    "ledger.checkpoint",
    "ledger.journal",
    "ledger.recovery",
    "ledger.replay",
    "ledger.salvage",
    "ledger.store",
    "ledger.committer",
    "ledger.upkeep",
    "ledger.reader",
    "ledger.history",
    "ledger.past",
    "ledger.tail",
    "ledger.contents",
    "ledger.check",
    "ledger.log",
    "ledger.decisions",
    "ledger.head",
    "ledger.repair",
    "ledger.testing",
    "ledger.__main__",
)

# What would let floor 0 see the world: files, processes, clocks, chance, other threads.
IMPURE = frozenset(
    "asyncio concurrent ctypes fcntl getpass glob http io logging mmap multiprocessing os pathlib "
    "platform posix queue random sched secrets select selectors shutil signal socket sqlite3 ssl "
    "subprocess tempfile threading time urllib uuid".split()
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint"})
MAKES_CODE = "ledger.quick"
"""The one pure module that calls `exec`: it writes an `__init__`, as `dataclasses` does."""
CLOCK_CALLS = frozenset({"now", "utcnow", "today"})

# Every third party Axern uses, and the only modules that may import it.
HOMES = {
    "filelock": ("ledger.lock",),
    "httptools": ("axern.api.protocol",),
    "msgspec": ("ledger.codec", "axern.api", "axern.daemon", "axern.runtime.record"),
    "psutil": ("axern.host.inventory",),
    "pydantic": (
        "axern.config",
        "axern.settings",
        "axern.api.schema",
        "axern.api.batch_schema",
        "axern.api.namespace_schema",
    ),
    "pynvml": ("axern.host.gpu",),
    "pyroute2": ("axern.host.network_survey",),
    "rich": ("axern.cli",),
    "typer": ("axern.cli",),
    "yaml": ("axern.cli.actions.strict_yaml",),
}

DOWN = "imports point down"


@dataclass(frozen=True, slots=True)
class Rule:
    """*who* (and what lies below it) never imports *never*, except *but*."""

    who: str
    never: tuple[str, ...]
    why: str
    but: tuple[str, ...] = ()


RULES = (
    Rule("ledger", ("axern",), "the ledger stands alone"),
    Rule(
        "ledger.invariants",
        ("ledger.state", "ledger.admission"),
        "a checker that shares code with what it checks finds nothing",
    ),
    *(
        Rule(
            checker,
            ("ledger.state", "ledger.admission", "ledger.transitions", "ledger.replay"),
            "what is checked is read again by other code",
        )
        for checker in ("ledger.check", "ledger.contents", "ledger.past")
    ),
    Rule(
        "axern.sdk",
        ("axern.cli", "axern.daemon", "axern.runtime", "axern.host", *LEDGER_IO),
        "whoever imports it into a program of theirs loads what talks to the daemon, and no more",
    ),
    Rule("axern.cli", ("axern.daemon",), "siblings meet in axern.api"),
    Rule("axern.daemon", ("axern.cli",), "siblings meet in axern.api"),
    Rule(
        "axern.cli",
        ("axern.runtime",),
        "offline release, evidence, doctors, setup and repair are all that the command line needs "
        "of it",
        but=(
            "axern.runtime.ledger_repair",
            "axern.runtime.node_doctor",
            "axern.runtime.offline",
            "axern.runtime.setup",
        ),
    ),
    Rule(
        "axern.api",
        ("axern.cli", "axern.daemon", "axern.runtime", "axern.host"),
        "the wire contract belongs to neither end",
    ),
    Rule(
        "axern.runtime",
        ("axern.cli", "axern.daemon", "axern.api"),
        DOWN,
    ),
    Rule(
        "axern.host",
        ("axern.cli", "axern.daemon", "axern.api", "axern.runtime", *LEDGER_IO),
        "the host takes values and decides nothing",
    ),
    *(
        Rule(low, ("axern.cli", "axern.daemon", "axern.api", "axern.runtime", "axern.host"), DOWN)
        for low in ("axern.errors", "axern.config", "axern.failpoint")
    ),
)


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name; *deferred* when loading the importer does not execute it."""

    name: str
    line: int
    deferred: bool


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed source file under its dotted name."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def is_floor_zero(self) -> bool:
        return within(self.name, "ledger") and not any(within(self.name, io) for io in LEDGER_IO)


def within(name: str, package: str) -> bool:
    """Tell whether *name* is *package* or lies below it."""
    return name == package or name.startswith(package + ".")


def modules(root: Path, packages: tuple[str, ...]) -> Iterator[Module]:
    """Parse every module of *packages* below *root*."""
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))


def imports(module: Module) -> Iterator[Import]:
    """Yield what *module* imports anywhere: at load time, in functions, for type checkers."""
    yield from _imports(module, module.tree, deferred=False)


def _imports(module: Module, parent: ast.AST, *, deferred: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(parent):
        for name in _imported_names(module, node):
            yield Import(name, getattr(node, "lineno", 0), deferred)
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            later = True
        yield from _imports(module, node, deferred=deferred or later)


def _imported_names(module: Module, node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            base = node.module or ""
            if node.level:
                parts = module.name.split(".")
                ups = node.level - (module.path.name == "__init__.py")
                base = ".".join([*parts[: len(parts) - ups], *filter(None, [node.module])])
            return [f"{base}.{alias.name}" for alias in node.names]
        case ast.Call(
            func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [name]
        case _:
            return []


def check(root: Path, packages: tuple[str, ...] = ("axern", "ledger")) -> list[str]:
    """Return one line for each import that breaks a floor; an empty list is a clean house."""
    found: list[str] = []
    for module in modules(root, packages):
        problems = [
            (imported.line, problem)
            for imported in imports(module)
            for problem in _import_problems(module, imported, packages)
        ]
        if module.is_floor_zero:
            problems.extend(_call_problems(module))
        place = module.path.relative_to(root)
        found.extend(f"{place}:{line}: {problem}" for line, problem in sorted(set(problems)))
    return found


def _import_problems(module: Module, imported: Import, packages: tuple[str, ...]) -> Iterator[str]:
    name = imported.name
    for rule in RULES:
        if (
            within(module.name, rule.who)
            and any(within(name, never) for never in rule.never)
            and not any(within(name, but) for but in rule.but)
        ):
            yield f"{module.name} imports {name}: {rule.why}"
    top = name.partition(".")[0]
    if top in packages:
        # The package's face may name I/O classes lazily; importing it must stay cheap.
        lazy_face = module.name == "ledger" and imported.deferred
        if module.is_floor_zero and not lazy_face and any(within(name, io) for io in LEDGER_IO):
            yield f"{module.name} is floor 0 and imports {name} from the I/O floor"
    elif top in sys.stdlib_module_names:
        if module.is_floor_zero and top in IMPURE:
            yield f"{module.name} is floor 0 and imports {name}: no I/O, no clock, no chance there"
    elif top not in HOMES:
        yield f"{module.name} imports {name}, which has no home in tests/tidy/floors.py"
    elif not any(within(module.name, home) for home in HOMES[top]):
        yield f"{module.name} imports {name}, whose place is {', '.join(HOMES[top])}"


def _call_problems(module: Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id="exec")) if module.name == MAKES_CODE:
                continue
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield node.lineno, f"{module.name} is floor 0 and calls {name}()"
            case ast.Call(
                func=ast.Attribute(
                    attr=name,
                    value=ast.Name(id="datetime" | "date")
                    | ast.Attribute(attr="datetime" | "date"),
                )
            ) if name in CLOCK_CALLS:
                yield node.lineno, f"{module.name} is floor 0 and reads a clock with {name}()"
