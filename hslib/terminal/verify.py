"""A store's files against its journal."""

from typing import Annotated

import typer

from hslib.terminal.arguments import StoreArgument


def verify(
    store: StoreArgument,
    size_only: Annotated[bool, typer.Option("--size-only", help="do not read the tensors")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="quarantine what is not sound")] = False,
) -> int:
    """Compare a store's files with its journal.

    Prints a line per fault. Exit code 1: there is one.
    """
    import tqdm

    from hslib.store import Store

    found = Store(store)
    total = sum(entry.size_bytes for entry in found.entries.values())
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, disable=None) as bar:
        report = found.verify(deep=not size_only, on_checked=bar.update)
    for fault in report.faults:
        print(f"sample {fault.index}: {fault.check}: {fault.detail} [{found.path}/{fault.file}]")
    print(report.sentence())
    if repair and report.faults:
        redone = found.repair(report)
        print(
            f"took back {len(redone)} samples; those of their files that are there are in "
            "quarantine/, and the next extraction takes these rows up again"
        )
    return int(not report.clean)
