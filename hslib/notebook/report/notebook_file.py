"""What an executed notebook says of itself: title, state, verdict, headings, parameters."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hslib.notebook.verdict import verdict_text

# "running" is known from the run's job, see page.py; "unfinished": it runs, or was killed
State = Literal["ok", "running", "unfinished", "interrupted", "failed"]

# cells with these tags: parameters have a table of their own, hints are for the person who runs it
_LEFT_OUT = {"parameters", "injected-parameters", "hint", "papermill-error-cell-tag"}
_HEADING = re.compile(r"^(#{1,3})\s+(.+?)\s*#*$", re.M)
_CODE_BLOCK = re.compile(r"```.*?```", re.S)


@dataclass(frozen=True)
class Heading:
    level: int
    text: str
    anchor: str


@dataclass(frozen=True)
class Parameter:
    """``origin``: "default", or "set" when the run was given it."""

    name: str
    value: str
    origin: str


def title_of(nb: Any) -> str:
    """The first heading of the first level, "" when there is none."""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and (found := _headings_in(cell.source)):
            return found[0].text
    return ""


def ended_at(nb: Any) -> str:
    """When papermill's run ended: "2026-01-30 14:05" in UTC; "" without papermill."""
    ended = nb.metadata.get("papermill", {}).get("end_time") or ""
    return str(ended)[:16].replace("T", " ")


def headings(nb: Any) -> list[Heading]:
    """For the contents list: levels two and three, and the parts that a report adds."""
    found = [
        heading
        for cell in _reached(nb)
        if cell.cell_type == "markdown" and not _is_left_out(cell)
        for heading in _headings_in(cell.source)
        if heading.level > 1 and heading.text != "Verdict"
    ]
    return [*found, Heading(2, "Parameters", "parameters"), Heading(2, "Versions", "versions")]


def _headings_in(source: str) -> list[Heading]:
    text = _CODE_BLOCK.sub("", source)
    # anchors as nbconvert makes them: the text with blanks as hyphens
    return [
        Heading(len(marks), words.replace("`", ""), words.replace("`", "").replace(" ", "-"))
        for marks, words in _HEADING.findall(text)
    ]


def state_of(nb: Any) -> tuple[State, int]:
    """How the run ended, and the execution count of the cell that failed (0: none did)."""
    code = [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]
    for cell in code:
        if error_of(cell) is not None:
            return "failed", int(cell.execution_count or 0)
    if all(cell.execution_count for cell in code):
        return "ok", 0
    return ("interrupted" if ended_at(nb) else "unfinished"), 0


def _reached(nb: Any) -> list[Any]:
    """The cells up to the last one that ran; all of a notebook that ran to its end."""
    if state_of(nb)[0] == "ok":
        return list(nb.cells)
    ran = [n for n, c in enumerate(nb.cells) if c.get("execution_count") or error_of(c) is not None]
    return list(nb.cells[: max(ran, default=-1) + 1])


def error_of(cell: Any) -> Any:
    """The error among a cell's outputs, None when there is none."""
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            return output
    return None


def verdict_of(nb: Any) -> str:
    """What the cells under "Verdict" say; the error of a failed run."""
    state, count = state_of(nb)
    if state == "failed":
        error = next(e for cell in nb.cells if (e := error_of(cell)) is not None)
        return f"Cell {count}: {error.ename}: {error.evalue}"
    words: list[str] = []
    under = False
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            found = _headings_in(cell.source)
            under = found[-1].text == "Verdict" if found else under
        elif under and cell.cell_type == "code":
            words += map(verdict_text, cell.outputs)
    if state != "ok":
        done = sum(bool(c.get("execution_count")) for c in nb.cells if c.cell_type == "code")
        was = "Interrupted: only" if state == "interrupted" else "Only"
        words.append(f"{was} {done} cells have run.")
    return "".join(words).strip()


def parameters_of(nb: Any) -> list[Parameter]:
    """All parameters with the values that the run had."""
    found: dict[str, Parameter] = {}
    for tag, origin in (("parameters", "default"), ("injected-parameters", "set")):
        for cell in nb.cells:
            if cell.cell_type == "code" and tag in cell.metadata.get("tags", []):
                for name, value in _assigned(cell.source):
                    found[name] = Parameter(name, value, origin)
    return list(found.values())


def given_parameters(folder: Path, number: str) -> dict[str, Any]:
    """What the folder's notebook of this number was given by papermill."""
    import nbformat

    for path in sorted(folder.glob(f"{number}_*.ipynb")):
        found = parameters_of(nbformat.read(path, as_version=4))
        return {one.name: ast.literal_eval(one.value) for one in found if one.origin == "set"}
    return {}


def _assigned(source: str) -> list[tuple[str, str]]:
    """Names and values of a cell's assignments, as they are written there."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return []
    found = []
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found.append((node.target.id, ast.unparse(node.value)))
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            found += [(name, ast.unparse(node.value)) for name in names]
    return found


def without_code(nb: Any) -> Any:
    """The cells that a report shows: text and outputs, and the code of a failed cell."""
    import nbformat

    cells, heading = [], ""
    for cell in _reached(nb):
        if cell.cell_type == "markdown" and (found := _headings_in(cell.source)):
            heading = found[-1].text
        if _is_left_out(cell) and error_of(cell) is None:
            continue
        cell = nbformat.from_dict(cell)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_empty(output)]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.metadata["image/png"] = {"alt": f"Figure: {heading}"}
            if error_of(cell) is not None:
                cell.metadata["hslib_failed"] = int(cell.execution_count or 0)
        cells.append(cell)
    return nbformat.from_dict({**nb, "cells": cells})


def _is_left_out(cell: Any) -> bool:
    """Parameters, hints, and the note that papermill adds where a run failed."""
    return bool(_LEFT_OUT & set(cell.metadata.get("tags", [])))


def _is_empty(output: Any) -> bool:
    """The first place of a live output, and outputs whose contents were all taken out."""
    data = output.get("data")
    return data is not None and not any("".join(text) for text in data.values())
