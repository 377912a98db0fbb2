"""A model's layer numbers in every tool's words."""

from typing import Annotated, Literal

import typer

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
    layers: Annotated[str, typer.Option("--boundaries", help='such as "3,31,59"')] = "auto",
    ids: Annotated[
        str, typer.Option(help='instead of boundaries: layer ids of another tool, "2,30,58"')
    ] = "",
    tool: Annotated[Dialect | None, typer.Option(help="whose --ids they are")] = None,
) -> int:
    """A model's layer numbers as each tool counts them.

    --ids with --tool says which boundaries a tool's flag means. Exit code 1: it can be meant in two
    ways, and both are shown.
    """
    from hslib.model import dialect_table, parse_layers, read_shape, to_boundaries

    if (tool is None) != (not ids):
        raise typer.BadParameter("--ids and --tool belong together")
    shape = read_shape(model)
    if tool is not None:
        chosen = to_boundaries(_numbers(ids), tool, shape.num_layers, shape.architecture)
    else:
        chosen = parse_layers(layers, shape.num_layers)
    print(f"{shape.architecture}, {shape.num_layers} layers; boundaries {list(chosen)}\n")
    for note in shape.notes:
        print(f"note: {note}\n")
    table: list[tuple[str, ...]] = [
        ("tool", "its default ids", "are boundaries", f"ids for {list(chosen)}")
    ]
    rows = dialect_table(shape.num_layers, shape.architecture, chosen)
    table += [tuple(cell or "-" for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
    return 0
