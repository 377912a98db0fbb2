"""Why samples got what was not expected."""

from pathlib import Path
from typing import Annotated

import typer

from hslib.terminal.command import in_options, options_of


def diagnose(
    context: typer.Context,
    log_path: Annotated[
        str, typer.Argument(metavar="LOG_OR_STORE", help="log, journal, store, run or dumps")
    ],
    dataset_path: Annotated[
        str, typer.Option("--dataset", help="rows with input_ids, messages or text")
    ] = "",
    mask_column: Annotated[str, typer.Option(help="as the job was given; default: as found")] = "",
    tokenizer_path: Annotated[
        str, typer.Option("--tokenizer", help="folder of the served model's tokenizer")
    ] = "",
    server_url: Annotated[str, typer.Option("--server", help="URL of a running server")] = "",
    sample_limit: Annotated[int, typer.Option(help="rows tokenized; 0 = all")] = 256,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="run the tokenizer folder's own code")
    ] = False,
    api_key_env: Annotated[str, typer.Option(help="variable that holds the server's key")] = "",
) -> int:
    """Why samples got what was not expected.

    Compares lengths, and tokens where dataset and tokenizer are named or a store's manifest names
    them. Exit code 1: something does not match, or could not be compared.
    """
    given = locals()
    del given["context"]
    given["log_path"] = _evidence(log_path)

    from hslib import diagnosis
    from hslib.parameters import DiagnosisParameters

    parameters = DiagnosisParameters.from_values(given)
    found = diagnosis.run(parameters)
    compared = diagnosis.run_tokens(parameters)
    said = "\n".join(diagnosis.sentences(parameters, found, compared))
    print(in_options(said, options_of(context)))
    return int(not diagnosis.is_good(parameters, found, compared))


def _evidence(path: str) -> str:
    """A run of this kit stands for the store that it filled, and so does its log."""
    from hslib.job import read_record

    folder = Path(path).parent if Path(path).name == "extraction.log" else Path(path)
    record = read_record(folder) if folder.is_dir() else None
    return record.store if record is not None else path
