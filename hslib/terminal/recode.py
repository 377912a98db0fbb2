"""A store in another encoding."""

from typing import Annotated, Literal

import typer

from hslib.terminal.arguments import StoreArgument


def recode(
    store: StoreArgument,
    out: Annotated[
        str,
        typer.Argument(metavar="OUT", help="a new folder or URL, or the one to go on with"),
    ],
    encoding: Annotated[
        Literal["plain", "lossless", "fp8", "fp8-aux"],
        typer.Option(help="how OUT keeps the states"),
    ],
    max_encoding_error: Annotated[
        float, typer.Option(help="fp8: the largest relative error (L2) of a token's state")
    ] = 0.05,
    workers: Annotated[int, typer.Option(help="threads; 0 = a few")] = 0,
) -> int:
    """Copy a store into another encoding; resumable. The source stays as it is."""
    import tqdm

    from hslib.store import Store, read_store_url, recode_store

    found = Store(store)
    total = sum(entry.size_bytes for entry in found.entries.values())
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, disable=None) as bar:
        report = recode_store(
            found, read_store_url(out), encoding, max_encoding_error, workers, bar.update
        )
    print(report.sentence())
    return 0
