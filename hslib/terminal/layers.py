"""A model's layer numbers in every tool's words, and those that a draft asks for."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hslib.errors import ParameterError

if TYPE_CHECKING:
    from hslib.model import Draft, DraftLayers, ModelInfo

Dialect = Literal[
    "boundary", "sglang", "vllm", "speculators", "specforge", "modelopt", "eagle_config"
]


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--ids {text!r} is not a list of numbers") from None


def layers(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="a model folder, or an id of the hub")
    ],
    layers: Annotated[
        str,
        typer.Option("--boundaries", help='such as "3,31,59"; default: "auto"'),
    ] = "",
    ids: Annotated[
        str, typer.Option(help='instead of boundaries: layer ids of another tool, "2,30,58"')
    ] = "",
    tool: Annotated[Dialect | None, typer.Option(help="whose --ids they are")] = None,
    draft: Annotated[
        str, typer.Option(help="instead: a draft's folder, config.json, or id of the hub")
    ] = "",
) -> int:
    """A model's layer numbers as each tool counts them.

    --ids with --tool says which boundaries a tool's flag means, --draft which ones a draft reads,
    and so what to give as layers. Exit code 1: the ids can be meant in two ways, and both are
    shown; or the draft is for another model.
    """
    from hslib.model import (
        dialect_table,
        draft_layers,
        read_draft,
        read_shape,
        to_boundaries,
    )

    if (tool is None) != (not ids):
        raise typer.BadParameter("--ids and --tool belong together")
    if sum(map(bool, (layers, ids, draft))) > 1:
        raise typer.BadParameter("give one of --boundaries, --ids and --draft")
    shape = read_shape(model)
    notes = list(shape.notes)
    if tool is not None:
        chosen = to_boundaries(_numbers(ids), tool, shape.num_layers, shape.architecture)
    elif draft:
        asked = draft_layers(draft, shape)
        chosen = asked.boundaries
    else:
        chosen, small = _chosen(layers, shape)
        notes += small
    print(f"{shape.architecture}, {shape.num_layers} layers; boundaries {list(chosen)}\n")
    for note in notes:
        print(f"note: {note}\n")
    if draft:
        _print_table(list(_of_draft(read_draft(draft), asked, shape.num_layers)))
        print()
    rows = dialect_table(shape.num_layers, shape.architecture, chosen)
    heads = ("tool", "its default ids", "are boundaries", f"ids for {list(chosen)}")
    _print_table([heads, *(tuple(cell or "-" for cell in row) for row in rows)])
    return 0


def _chosen(layers: str, shape: "ModelInfo") -> tuple[tuple[int, ...], list[str]]:
    """The boundaries to show, and a note where the model is too small for a default."""
    from hslib.model import choose_layers

    try:
        return choose_layers(layers or "auto", shape), []
    except ParameterError as error:
        if layers:
            raise
        some = tuple(range(1, min(3, shape.num_layers) + 1))
        named = ",".join(map(str, some))
        here, there = f'--boundaries "{named}" here', f"-p layers {named} for a job"
        return some, [f"{error.message}; these are an example: {here}, {there}"]


def _of_draft(draft: "Draft", asked: "DraftLayers", last: int) -> Iterator[tuple[str, str]]:
    """What a draft wants, line by line; ``last``: the boundary behind the last layer."""
    from hslib.model import layers_text

    yield "draft", f"{draft.kind}, in the form of {draft.form}"
    if draft.target_name:
        yield "its target", draft.target_name
    yield "asks for", asked.source
    yield (
        "last state",
        {
            "before": f"before the final norm; an export carries the final state there, or takes "
            f"boundary {last}",
            "after": "after the final norm: the final state",
            "either": f"before or after the final norm, by its family: boundary {last} and the "
            "final state",
        }[draft.last_state],
    )
    if last in asked.boundaries:
        yield f"boundary {last}", "needed: the last layer's output, before the final norm"
    else:
        yield f"boundary {last}", "not needed"
    yield "write", f"-p layers {layers_text(asked.boundaries)}"


def _print_table(table: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
