"""The import rule: one way, no circle, few levels; one class a name; what is instant.

Read from the source, so that an import inside a function or under ``TYPE_CHECKING`` counts too.
"""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_LEVELS = 12

# What each package may import besides itself, hslib's version and hslib.demo, whose __init__ is
# paths. A name with a dot is that module alone.
_BASE = {"errors", "files", "model", "dataset", "store", "parameters"}
_HOST = {*_BASE, "rows", "server", "job"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "drawing": set(),
    "files": {"errors"},
    "model": {"errors", "files"},
    "dataset": {"errors", "files"},
    "rows": {"errors", "files", "model", "dataset"},
    "store": {"errors", "files", "model", "dataset"},
    "parameters": {"errors", "model", "rows", "dataset.source_name", "store.url"},
    "server": {*_BASE, "rows"},
    "job": {*_BASE, "rows", "server"},
    "answers": {*_BASE, "rows", "server", "job"},
    "cluster": _HOST,
    "extract": {*_HOST, "answers", "cluster"},
    "stats": {*_BASE, "drawing"},
    "diagnosis": {*_BASE, "drawing", "rows", "server.dumps", "server.client"},
    "export": _BASE,
    "drafter": {*_BASE, "drawing", "export"},
    "probe": {*_HOST, "drawing", "cluster", "extract"},
    "notebook": {*_HOST, "cluster", "extract", "stats", "diagnosis", "export", "drafter"},
    "__main__": {"terminal"},
    "terminal": {*_HOST, "answers", "cluster", "extract", "stats", "diagnosis", "export", "drafter"}
    | {"probe", "notebook"},
    "demo": set(),
}

# (module, imported module): why it is so today. One that is no longer needed fails the test.
KNOWN: dict[tuple[str, str], str] = {}


def _modules(folder: Path, name: str) -> dict[str, ast.Module]:
    found = {}
    for path in folder.rglob("*.py"):
        parts = (name, *path.relative_to(folder).with_suffix("").parts)
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[module] = ast.parse(path.read_text(), str(path))
    return found


MODULES = _modules(ROOT / "hslib", "hslib")


def _imports(tree: ast.Module) -> list[tuple[str, str]]:
    """(module, name imported from it or "") of every absolute import, wherever it stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [("." * node.level + (node.module or ""), alias.name) for alias in node.names]
    return found


def _defining(module: str, name: str) -> str:
    """The module that defines a name which may come through a package's door."""
    if f"{module}.{name}" in MODULES:
        return f"{module}.{name}"
    for node in MODULES[module].body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module in MODULES:
                    return _defining(node.module, alias.name)
    return module


@functools.cache
def edges() -> dict[str, frozenset[str]]:
    """What each module imports; a package's door is not a module of its own if it only imports."""
    graph = {}
    for module, tree in MODULES.items():
        found = {_defining(of, name) for of, name in _imports(tree) if of in MODULES}
        assert not any(of.startswith(".") for of, _ in _imports(tree)), "imports are absolute here"
        graph[module] = frozenset(found - {module})
    doors = {module for module, tree in MODULES.items() if _is_door(tree)}
    return {module: found for module, found in graph.items() if module not in doors}


def _is_door(tree: ast.Module) -> bool:
    """Whether nothing is defined there."""
    return not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)


def _package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _is_allowed(module: str, imported: str) -> bool:
    here, there = _package(module), _package(imported)
    if here == there or imported in ("hslib", "hslib.demo"):
        return True
    allowed = ALLOWED[here]
    return there in allowed or imported.removeprefix("hslib.") in allowed


def test_every_package_has_its_place_in_the_rule() -> None:
    assert {_package(module) for module in MODULES} - {""} <= set(ALLOWED)


def test_imports_go_one_way() -> None:
    against = {
        (module, imported)
        for module, found in edges().items()
        for imported in found
        if not _is_allowed(module, imported)
    }
    assert not against - set(KNOWN), "these imports go against the rule"
    assert not set(KNOWN) - against, "these exceptions are no longer needed: take them out"


def test_there_is_no_circle() -> None:
    order = graphlib.TopologicalSorter(edges())
    order.prepare()  # raises CycleError with the circle


def test_the_longest_chain_of_imports_is_short() -> None:
    chain = longest_chain()
    assert len(chain) <= MOST_LEVELS, " > ".join(chain)


def longest_chain() -> list[str]:
    graph = edges()

    @functools.cache
    def below(module: str) -> tuple[str, ...]:
        chains = [below(imported) for imported in graph.get(module, ())]
        return (module, *max(chains, key=len, default=()))

    return list(max((below(module) for module in graph), key=len))


def test_the_plugin_imports_no_hslib() -> None:
    for module, tree in _modules(ROOT / "patches", "patches").items():
        assert not [of for of, _ in _imports(tree) if of.split(".")[0] == "hslib"], module


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for module, tree in _modules(ROOT / "hslib", "hslib").items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_no_test_imports_from_another() -> None:
    """What tests share stands in fakes/, make/ and real/."""
    sharing = {
        module.removeprefix(".")
        for module, tree in _modules(ROOT / "tests", "").items()
        for of, name in _imports(tree)
        if any(part.startswith("test_") for part in f"{of}.{name}".split("."))
    }
    assert sharing == set()


@pytest.mark.parametrize("module", ["hslib", "hslib.extract"])
def test_what_is_heavy_is_loaded_where_it_is_used(module: str) -> None:
    heavy = {"torch", "transformers", "matplotlib", "pandas", "ray", "s3fs"}
    code = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(run.stdout.split())
