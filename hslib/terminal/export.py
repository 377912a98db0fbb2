"""A store for a trainer."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hslib.terminal.arguments import StoreArgument


def export(
    store: StoreArgument,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="a new folder, or the one to go on with")
    ],
    to: Annotated[Literal["specforge", "speculators"], typer.Option(help="the trainer")],
    drafter: Annotated[
        Literal["eagle3", "peagle", "dflash", "dflash2", "domino", "dspark", "xpress", "mtp"],
        typer.Option(help="one of the trainer's"),
    ] = "eagle3",
    boundaries: Annotated[
        str, typer.Option(help="of the store's, such as 3,31,59; default: all that it reads")
    ] = "",
    dtype: Annotated[
        Literal["bf16", "fp8"], typer.Option(help="fp8: speculators' own, half the bytes")
    ] = "bf16",
    model: Annotated[
        str, typer.Option(help="its folder, or an id of the hub; default: the manifest's")
    ] = "",
    draft_vocab_size: Annotated[int, typer.Option(help="0 = the model's whole vocabulary")] = 0,
    workers: Annotated[int, typer.Option(help="threads; 0 = a few")] = 0,
) -> int:
    """Write a store as a trainer's drafter reads it; resumable."""
    import tqdm

    from hslib.export import TRAINERS, export_store
    from hslib.model import local_folder, parse_layers
    from hslib.store import Store

    found = Store(store)
    chosen = parse_layers(boundaries, found.manifest.num_layers) if boundaries else None
    with tqdm.tqdm(total=len(found), unit="row", disable=None) as bar:
        written = export_store(
            found,
            out,
            TRAINERS[to](drafter, dtype),
            local_folder(model or found.manifest.model_path),
            draft_vocab_size=draft_vocab_size,
            workers=workers,
            on_row=lambda _size_bytes: bar.update(),
            boundaries=chosen,
        )
    for name, value in written.facts().items():
        print(f"{name:>19}: {value}")
    print(f"next: {written.train_command}")
    return 0
