"""Conversations to rows. Options have the names of :class:`hslib.parameters.RowsParameters`."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not JSON") from None


def rows(
    chats_path: Annotated[str, typer.Argument(metavar="CHATS", help="messages or conversations")],
    out_path: Annotated[
        str, typer.Argument(metavar="OUT", help=".jsonl (.gz, .zst) or .parquet; resumable")
    ],
    model_path: Annotated[
        str, typer.Option("--model", help="the served model's folder, or an id of the hub")
    ],
    train_on: Annotated[Literal["all", "last"], typer.Option(help="which answers train")] = "all",
    thinking: Annotated[
        Literal["keep", "drop"], typer.Option(help="the answers' reasoning")
    ] = "keep",
    unstable: Annotated[
        Literal["per_turn", "reject"],
        typer.Option(help="turns rendered differently once others follow: a row each, or reject"),
    ] = "per_turn",
    special_in_text: Annotated[
        Literal["reject", "allow"], typer.Option(help="messages that spell a special token")
    ] = "reject",
    max_tokens: Annotated[int, typer.Option(help="longer rows are rejected; 0 = none")] = 0,
    system_prompt: Annotated[str, typer.Option(help="where a conversation has none")] = "",
    chat_template: Annotated[str, typer.Option(help="a file instead of the model's own")] = "",
    chat_template_kwargs: Annotated[
        Any,
        typer.Option(parser=_json, metavar="JSON", help="such as '{\"enable_thinking\": false}'"),
    ] = "{}",
    end_tokens: Annotated[
        list[str],
        typer.Option("--end-token", help="ends an answer, beside the EOS; may be repeated"),
    ] = [],  # noqa: B006  # typer copies it
    date: Annotated[str, typer.Option(help="of templates that write today's: 2026-01-30")] = "",
    workers: Annotated[int, typer.Option(help="processes; 0 = one per core, at most 8")] = 0,
    max_rejected_share: Annotated[float, typer.Option(help="exit code 1 above it")] = 0.1,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="run the tokenizer folder's own code")
    ] = False,
    regenerate: Annotated[
        bool, typer.Option("--regenerate", help="the served model answers every user turn anew")
    ] = False,
    server_url: Annotated[
        list[str], typer.Option(help="of that model; none = one is started here")
    ] = [],  # noqa: B006
    temperature: Annotated[float, typer.Option(help="of the answers; 0 = the likeliest")] = 0.0,
    max_answer_tokens: Annotated[int, typer.Option(help="a longer answer is cut")] = 1024,
    samples: Annotated[int, typer.Option(help="times that each conversation is answered")] = 1,
    cut_answers: Annotated[
        Literal["drop", "keep"], typer.Option(help="turns whose answer was cut")
    ] = "drop",
    concurrency: Annotated[int, typer.Option(help="conversations in flight")] = 16,
    api_key_env: Annotated[str, typer.Option(help="the variable that holds the API key")] = "",
) -> int:
    """Conversations to tokenized rows with a loss mask, by the model's own template.

    Exit code 1: no row was made, or too many were rejected.
    """
    given = locals()

    import tqdm

    from hslib import answers
    from hslib import rows as rows_of
    from hslib.parameters import RowsParameters

    run_dir = str(Path(out_path).absolute().parent)
    config = RowsParameters.from_values({**given, "run_dir": run_dir})
    with tqdm.tqdm(bar_format="{elapsed} {desc}", disable=None) as bar:
        made = answers.make_rows(config, bar.set_description_str)
    for line in rows_of.rejection_table(made).to_dict("records"):
        print(f"{line['rows']} x {line['reason']}: row {line['first row']}: {line['evidence']}")
        print(f"  -> {line['cure']}")
    example = next(iter(rows_of.first_rows(config.out_file, 1)), None)
    if example is not None:
        text = rows_of.row_text(rows_of.load_chat(config.recipe), example)
        print(f"\nrow {example.id}, what trains in «»:\n{text[:2000]}\n")
    print("\n".join(rows_of.sentences(made, max_rejected_share)))
    if not rows_of.is_good(made, max_rejected_share):
        return 1
    folder = Path(out_path).parent
    name = Path(out_path).name.split(".")[0]
    next_run = folder if folder.name else Path("runs", name)
    if (next_run / "progress.json").exists():  # other rows' job
        next_run /= name
    print(
        f"next: python -m hslib run 03 -p run_dir {shlex.quote(str(next_run))} "
        f"-p dataset_path {shlex.quote(out_path)} "
        f"-p model_path {shlex.quote(model_path)}"
    )
    return 0
