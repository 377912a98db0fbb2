"""Why samples got what was not expected."""

from typing import Annotated

import typer


def diagnose(
    evidence: Annotated[
        str, typer.Argument(metavar="LOG_OR_STORE", help="log, journal, store or dumps")
    ],
    dataset: Annotated[str, typer.Option(help="rows with input_ids, messages or text")] = "",
    tokenizer: Annotated[str, typer.Option(help="folder of the served model's tokenizer")] = "",
    server: Annotated[str, typer.Option(help="URL of a running server")] = "",
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
    from hslib import diagnosis
    from hslib.parameters import DiagnosisParameters

    parameters = DiagnosisParameters.from_values(
        {
            "log_path": evidence,
            "dataset_path": dataset,
            "tokenizer_path": tokenizer,
            "server_url": server,
            "sample_limit": sample_limit,
            "trust_remote_code": trust_remote_code,
            "api_key_env": api_key_env,
        }
    )
    found = diagnosis.run(parameters)
    compared = diagnosis.run_tokens(parameters)
    print("\n".join(diagnosis.sentences(parameters, found, compared)))
    return int(not diagnosis.is_good(parameters, found, compared))
