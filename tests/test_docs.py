"""What the docs claim: names, paths and commands exist, snippets run, docstrings point right."""

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from make.stores import DEMO_BOUNDARIES, demo_rows, write_store

from hslib.model.layers import auto_boundaries
from hslib.notebook.execution import find_notebook, parameters_model
from hslib.terminal import main

ROOT = Path(__file__).parents[1]
DOCS = sorted(
    path
    for folder in ("", "hslib", "notebooks", "patches", "tests")
    for path in (ROOT / folder).glob("README.md" if not folder else "**/*.md")
)
SOURCES = sorted(
    path for folder in ("hslib", "patches", "tests") for path in (ROOT / folder).rglob("*.py")
)
HSLIB = ROOT / "hslib"
PATH = re.compile(r"(?<![\w/.])((?:hslib|notebooks|patches|tests|\.ci)/[\w./-]*\w/?)")
DOTTED = re.compile(r"(?<![\w/.\"])(hslib(?:\.\w+)+)")
REFERENCE = re.compile(r":(?:mod|class|func|meth|attr|data|exc):`~?([\w.]+)`")

FOREIGN = {"PATH/03_extraction.ipynb"}  # stands for a path of the reader's

by_path = pytest.mark.parametrize("doc", DOCS, ids=lambda path: str(path.relative_to(ROOT)))


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def _blocks(doc: Path, *languages: str) -> list[str]:
    """The fenced blocks in these languages; "" = in none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", doc.read_text(), re.M | re.S)
    return [block for language, block in fenced if language in languages]


def _resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            if importlib.util.find_spec(module) is None:
                continue
        except ModuleNotFoundError:
            continue
        if length == len(parts):
            return True  # not loaded: it may be heavy
        found: object = importlib.import_module(module)
        for part in parts[length:]:
            if not hasattr(found, part) and part not in getattr(found, "__annotations__", {}):
                return False
            found = getattr(found, part, None)
        return True
    return False


# --- names and paths ----------------------------------------------------------------------


@by_path
def test_each_name_of_the_kit_that_a_document_says_is_there(doc: Path) -> None:
    names = set(DOTTED.findall(doc.read_text()))
    assert [name for name in sorted(names) if not _resolves(name)] == []


@by_path
def test_each_path_that_a_document_names_is_there(doc: Path) -> None:
    text = re.sub(r"https?://\S+", "", doc.read_text())
    named = set(PATH.findall(text))
    named |= {str((doc.parent / link).resolve().relative_to(ROOT)) for link in _links(text)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def _links(text: str) -> list[str]:
    """Targets of relative links, and files in code that stand beside the document."""
    return [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]


def test_each_script_of_the_benchmarks_table_is_there_and_none_is_missing() -> None:
    folder = ROOT / "tests/bench"
    named = set(re.findall(r"^\| `(\w+\.py)`", (folder / "README.md").read_text(), re.M))
    there = {path.name for path in folder.glob("*.py") if path.stem not in ("common",)}
    assert named == {name for name in there if not name.startswith("test_")}


def test_each_reference_and_name_in_a_docstring_is_there() -> None:
    """A short name may be any module's: what a reader searches for."""
    defined = {name for path in SOURCES for name in _defined(path)}
    lost = []
    for path in SOURCES:
        for text in _docstrings(path):
            dotted = {*DOTTED.findall(text), *(n for n in REFERENCE.findall(text) if "." in n)}
            for name in sorted(dotted):
                if name.startswith(("hslib.", "hs_dump.")):
                    found = _resolves(name)
                else:
                    found = set(name.split(".")) <= defined
                if not found:
                    lost.append((str(path.relative_to(ROOT)), name))
            for name in (n for n in REFERENCE.findall(text) if "." not in n):
                if name not in defined:
                    lost.append((str(path.relative_to(ROOT)), name))
    assert lost == []


def _defined(path: Path) -> Iterator[str]:
    yield path.stem if path.stem != "__init__" else path.parent.name
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def test_each_path_that_a_docstring_names_is_there() -> None:
    named = {
        (path, name)
        for path in SOURCES
        for text in _docstrings(path)
        for name in PATH.findall(text)
    }
    assert named
    assert [pair for pair in sorted(named) if not (ROOT / pair[1]).exists()] == []


# --- the tree -----------------------------------------------------------------------------


def test_each_folder_of_readmes_tree_is_there() -> None:
    assert [str(path) for path in _tree() if not (ROOT / path).is_dir()] == []


def test_each_package_is_in_readmes_tree() -> None:
    packages = {path.parent.relative_to(ROOT) for path in (ROOT / "hslib").glob("*/__init__.py")}
    assert packages <= set(_tree())


def _tree() -> list[Path]:
    """Lines of the tree that begin with a folder, by indentation."""
    (block,) = re.findall(
        r"^## Tree\n+(?:[^`]*\n)?```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
    )
    found, above = [], [(-1, Path())]
    for indent, name in re.findall(r"^( *)([\w.]+)/", block, re.M):
        while above[-1][0] >= len(indent):
            above.pop()
        found.append(above[-1][1] / name)
        above.append((len(indent), found[-1]))
    assert found
    return found


# --- commands -----------------------------------------------------------------------------


def _commands(doc: Path) -> list[list[str]]:
    """Command lines in blocks and in the text, without comments and variables' values."""
    text = doc.read_text()
    lines = "\n".join(_blocks(doc, "bash", "")).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`([^`\n]+)`", text)
    found = []
    for line in lines:
        for part in re.split(r"&&|;|\|", line.split(" #")[0]):
            with_words = part.replace("…", "").replace("\\", " ")
            try:
                found.append(shlex.split(with_words))
            except ValueError:
                continue
    return found


@by_path
def test_each_command_of_the_kit_takes_the_options_that_a_document_gives_it(
    doc: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for words in _commands(doc):
        if words[:3] != ["python", "-m", "hslib"] or len(words) < 4:
            continue
        assert main([words[3], "--help"]) == 0, words
        said = capsys.readouterr().out
        for option in (word for word in words[4:] if word.startswith("--")):
            assert re.search(rf"{option}\b", said), words


@by_path
def test_each_parameter_that_a_document_gives_a_notebook_is_one_of_it(doc: Path) -> None:
    for words in _commands(doc):
        if words[:4] != ["python", "-m", "hslib", "run"] or not words[4:5] or words[4] in FOREIGN:
            continue
        known = set(parameters_model(find_notebook(words[4])).model_fields)
        given = {words[at + 1] for at, word in enumerate(words) if word == "-p"}
        assert given <= known, (words, given - known)


def test_readme_runs_notebooks_by_the_command_that_makes_folders_and_prints_the_verdict() -> None:
    text = (ROOT / "README.md").read_text()
    assert "papermill notebooks/" not in "".join(_blocks(ROOT / "README.md", "bash"))
    assert text.count("python -m hslib run ") >= 8


# --- snippets -----------------------------------------------------------------------------


def test_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a store of the demo's first rows, in the order in which it is read."""
    write_store(tmp_path / "runs/demo/store", demo_rows(8), DEMO_BOUNDARIES)
    monkeypatch.chdir(tmp_path)
    snippets = [block for doc in DOCS for block in _blocks(doc, "python")]
    assert len(snippets) >= 2
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), names)
    (batch, *_rest) = names["loader"]  # type: ignore[misc]
    assert batch.input_ids.numel() > 0


def test_readmes_test_command_is_what_ci_runs() -> None:
    script = (ROOT / ".ci/run").read_text()
    commands = [words for words in _commands(ROOT / "README.md") if words[:1] == ["pytest"]]
    assert commands
    ran = [shlex.split(line) for line in script.splitlines() if line.startswith("pytest")]
    assert all(command in ran for command in commands)


def test_layers_that_are_set_by_hand_are_what_auto_means_for_the_models_of_the_examples() -> None:
    """Kimi-K2 has 61 layers; server and job must have the same."""
    auto = ",".join(map(str, auto_boundaries(61)))
    for doc in (ROOT / "README.md", ROOT / "patches/README.md"):
        text = "".join(_blocks(doc, "bash", ""))
        assert re.findall(r"BOUNDARIES=([\d,]+)", text) == [auto], doc
        assert not re.findall(r"-p layers|--layers", text), doc


# --- troubleshooting ----------------------------------------------------------------------


def test_each_message_that_troubleshooting_quotes_is_one_of_the_kit() -> None:
    page = (ROOT / "notebooks/TROUBLESHOOTING.md").read_text().split("## Said by other tools")[0]
    rows = re.findall(r"^\| (.+?) \| .+ \| .+ \|$", page, re.M)
    quoted = [row[1:-1] for row in rows if row.startswith("`")]
    assert len(quoted) >= 12
    messages = {text for path in SOURCES for text in _texts(path) if path.is_relative_to(HSLIB)}
    lost = [quote for quote in quoted if not any(quote in message for message in messages)]
    assert lost == []


def _texts(path: Path) -> Iterator[str]:
    """All strings of a module; in f-strings "…" stands for each value."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = [str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values]
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
