"""The few commands that a terminal needs beside a notebook; exit code 0 only if all is well."""

import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import typer

from hslib.errors import HslibError, ParameterError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 2 for a command line that can't be read."""
    try:
        app(arguments, prog_name="python -m hslib")
    except SystemExit as ended:
        return int(ended.code or 0)
    except HslibError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _exit(code: int) -> None:
    raise typer.Exit(code)


app = typer.Typer(
    help=__doc__,
    result_callback=_exit,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Dialect = Literal[
    "boundary", "sglang", "vllm", "speculators", "specforge", "modelopt", "eagle_config"
]
StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="a directory, or s3://bucket/prefix")
]


def _whole(text: str) -> int:
    """``61e6`` as a whole number."""
    try:
        return int(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{text!r} is not a number") from None


@app.command()
def rows(
    chats: Annotated[str, typer.Argument(metavar="CHATS", help="messages or conversations")],
    out: Annotated[
        str, typer.Argument(metavar="OUT", help=".jsonl (.gz, .zst) or .parquet; resumable")
    ],
    model: Annotated[str, typer.Option(help="the served model's folder, or an id of the hub")],
    train_on: Annotated[Literal["all", "last"], typer.Option(help="which answers train")] = "all",
    thinking: Annotated[
        Literal["keep", "drop"], typer.Option(help="the answers' reasoning")
    ] = "keep",
    unstable: Annotated[
        Literal["per_turn", "reject"],
        typer.Option(help="turns that look otherwise once others follow: rows of their own, or"),
    ] = "per_turn",
    special_in_text: Annotated[
        Literal["reject", "allow"], typer.Option(help="messages that spell a special token")
    ] = "reject",
    max_tokens: Annotated[int, typer.Option(help="longer rows are rejected; 0 = none")] = 0,
    system_prompt: Annotated[str, typer.Option(help="where a conversation has none")] = "",
    chat_template: Annotated[str, typer.Option(help="a file instead of the model's own")] = "",
    chat_template_kwargs: Annotated[
        str, typer.Option(help="JSON, such as '{\"enable_thinking\": false}'")
    ] = "{}",
    end_token: Annotated[
        list[str] | None, typer.Option(help="ends an answer, beside the EOS; may be repeated")
    ] = None,
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
        list[str] | None, typer.Option(help="of that model; none = one is started here")
    ] = None,
    temperature: Annotated[float, typer.Option(help="of the answers; 0 = the likeliest")] = 0.0,
    max_answer_tokens: Annotated[int, typer.Option(help="a longer answer is cut")] = 1024,
    samples: Annotated[int, typer.Option(help="times that each conversation is answered")] = 1,
    cut_answers: Annotated[Literal["drop", "keep"], typer.Option()] = "drop",
    concurrency: Annotated[int, typer.Option(help="conversations in flight")] = 16,
    api_key_env: Annotated[str, typer.Option(help="the variable that holds the API key")] = "",
) -> int:
    """Conversations to tokenized rows with a loss mask, by the model's own template.

    Exit code 1: no row was made, or too many were rejected.
    """
    import tqdm

    from hslib import answers
    from hslib import rows as rows_of
    from hslib.parameters import RowsParameters

    try:
        variables = json.loads(chat_template_kwargs)
    except ValueError:
        raise typer.BadParameter("--chat-template-kwargs is not JSON") from None
    config = RowsParameters.from_values(
        {
            "chats_path": chats,
            "out_path": out,
            "model_path": model,
            "train_on": train_on,
            "thinking": thinking,
            "unstable": unstable,
            "special_in_text": special_in_text,
            "max_tokens": max_tokens,
            "system_prompt": system_prompt,
            "chat_template": chat_template,
            "chat_template_kwargs": variables,
            "end_tokens": end_token or [],
            "date": date,
            "workers": workers,
            "max_rejected_share": max_rejected_share,
            "trust_remote_code": trust_remote_code,
            "run_dir": str(Path(out).absolute().parent),
            "regenerate": regenerate,
            "server_url": server_url or "",
            "temperature": temperature,
            "max_answer_tokens": max_answer_tokens,
            "samples": samples,
            "cut_answers": cut_answers,
            "concurrency": concurrency,
            "api_key_env": api_key_env,
        }
    )
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
    print(
        "next: papermill notebooks/03_extraction.ipynb out.ipynb "
        f"-p dataset_path {shlex.quote(out)} -p model_path {shlex.quote(model)}"
    )
    return 0


@app.command()
def plan(
    rate: Annotated[float, typer.Option(help="tokens/s that a replica captures")],
    model: Annotated[
        str, typer.Option(help="a model folder, an id of the hub, or a config.json: no weights")
    ] = "",
    hidden_size: Annotated[int, typer.Option(help="without a model at hand")] = 0,
    num_layers: Annotated[int, typer.Option(help="likewise")] = 0,
    layers: Annotated[str, typer.Option(help='boundaries such as "3,31,59"')] = "auto",
    tokens: Annotated[
        int | None, typer.Option(parser=_whole, help="of all samples together, such as 61e6")
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="count the tokens and samples of these rows instead")
    ] = "",
    samples: Annotated[int, typer.Option(help="with --tokens: files have headers")] = 0,
    longest: Annotated[int, typer.Option(help="tokens of the longest sample")] = 0,
    replicas: Annotated[int, typer.Option(help="servers, each with its own link")] = 1,
    store_gbps: Annotated[
        float, typer.Option(help="GB/s that the store takes of them all")
    ] = math.inf,
    network_gbps: Annotated[
        float, typer.Option(help="GB/s from one replica to the store")
    ] = math.inf,
    concurrency: Annotated[int | None, typer.Option(help="requests in flight per replica")] = None,
) -> int:
    """A job's bytes, hours and bottleneck, before it starts.

    GB are 1e9 bytes and GB/s are bytes, not bits: a link of 100 Gbit/s is 12.5.
    """
    from hslib.job import Forecast
    from hslib.parameters import ExtractionParameters

    if (tokens is None) == (not dataset):
        raise typer.BadParameter("give one of --tokens and --dataset")
    num_states, hidden_size, vocab_size = _shape(model, hidden_size, num_layers, layers)
    if tokens is None:
        tokens, samples, found_longest = _count(dataset, vocab_size)
        longest = longest or found_longest
    found = Forecast(
        num_states,
        hidden_size,
        tokens,
        rate,
        ExtractionParameters.from_values(
            {} if concurrency is None else {"concurrency": concurrency}
        ),
        rows=samples,
        longest=longest,
        replicas=replicas,
        store_rate=store_gbps * 1e9,
        link_rate=network_gbps * 1e9,
    )
    for name, value, formula in found.facts():
        print(f"{name:>24}: {value:<18} = {formula}")
    print(f"\n{found.sentence()}")
    return 0


def _shape(model: str, hidden_size: int, num_layers: int, layers: str) -> tuple[int, int, int]:
    """States per token, hidden size, and vocabulary size; of a model if one is named.

    Raises:
        ParameterError: the shape is not known, or said twice.
    """
    from hslib.model import parse_layers, read_shape

    vocab_size = 2**31
    if model and (hidden_size or num_layers):
        raise ParameterError("the model's shape is said twice", fix="give --model alone")
    if model:
        shape = read_shape(model)
        hidden_size, num_layers = shape.hidden_size, shape.num_layers
        vocab_size = shape.vocab_size
    if hidden_size < 1 or num_layers < 1:
        raise ParameterError(
            "the model's shape is not known", fix="give --model, or --hidden-size and --num-layers"
        )
    return len(parse_layers(layers, num_layers)) + 1, hidden_size, vocab_size


def _count(dataset: str, vocab_size: int) -> tuple[int, int, int]:
    """Tokens, samples, and tokens of the longest sample; names the first row left out.

    Raises:
        DatasetError: the dataset can't be read.
    """
    from hslib.dataset import Dataset, Limits
    from hslib.job.plan import rejections_sentence

    survey = Dataset(dataset, Limits(vocab_size, max_tokens=2**31)).survey()
    if survey.rejections:
        print(f"{len(survey.rejections)} rows left out: {rejections_sentence(survey)}")
    longest = max((row.num_tokens for row in survey.rows), default=0)
    return survey.num_tokens, len(survey.rows), longest


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--ids {text!r} is not a list of numbers") from None


@app.command()
def layers(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="a model folder, or an id of the hub")
    ],
    boundaries: Annotated[str, typer.Option(help='such as "3,31,59"')] = "auto",
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
        chosen = parse_layers(boundaries, shape.num_layers)
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


@app.command()
def status(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    watch: Annotated[
        bool, typer.Option("--watch", help="show it again and again, until the job ends")
    ] = False,
    seconds: Annotated[float, typer.Argument(metavar="SECONDS", help="how often")] = 2.0,
) -> int:
    """How a run's job and server stand.

    Exit code 1: rows failed or are unfinished, or the job or the server is dead.
    """
    from hslib.job import is_at_work, read_progress

    run_path = run_dir.absolute()
    while True:
        if watch and sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")  # clears the terminal
        at_work = is_at_work(read_progress(run_path), time.time())  # before: it may end meanwhile
        code = _show_status(run_path)
        if not watch or not at_work:
            return code
        print(flush=True)
        time.sleep(seconds)


def _show_status(run_path: Path) -> int:
    """Print the job's last word, whether its process lives, and the server; the exit code."""
    from hslib.job import read_progress, watch
    from hslib.server import launch

    facts = launch.status(run_path)
    for name, value in facts.items():
        print(f"{name:>12}: {value}")
    state = read_progress(run_path)
    if state is None:
        print(f"{'job':>12}: none in this run")
        return int(facts["server"] != "running")
    now = time.time()
    for name, words in watch.facts(state, now):
        print(f"{name:>12}: {words}")
    unfinished = state.state != "running" and watch.unfinished_rows(state) > 0
    dead = watch.is_dead(state, now) or facts["server"] == "dead"
    return int(dead or unfinished or state.failed > 0)


@app.command()
def clean(run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR")]) -> int:
    """Remove what a killed job left: its server, its shared memory, its dumps in tmpfs.

    Never what a job at work, another run or another user has. Exit code 1: a job is at work there.
    """
    from hslib.job import leftovers

    done = leftovers.clean(run_dir.absolute())
    print("\n".join(done) or "nothing to remove")
    return 0


@app.command()
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
        print(f"moved {len(redone)} files to quarantine/; the next extraction takes them up again")
    return int(not report.clean)


@app.command()
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


@app.command()
def report(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="an executed notebook, or a run's directory")
    ],
) -> int:
    """A notebook, or all of a run, as HTML without code.

    Exit code 1: a notebook had failed or did not run to its end.
    """
    from hslib.notebook.report import write_reports

    reports = write_reports(path)
    for written in reports:
        print(f"{written.path}: {written.state}")
    return int(not all(written.is_good for written in reports))


@app.command()
def export(
    store: StoreArgument,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="a new folder, or the one to go on with")
    ],
    to: Annotated[Literal["specforge", "speculators"], typer.Option(help="the trainer")],
    model: Annotated[
        str, typer.Option(help="its folder, or an id of the hub; default: the manifest's")
    ] = "",
    draft_vocab_size: Annotated[int, typer.Option(help="0 = the model's whole vocabulary")] = 0,
    workers: Annotated[int, typer.Option(help="threads; 0 = a few")] = 0,
) -> int:
    """Write a store as a trainer reads it; resumable."""
    import tqdm

    from hslib.export import TRAINERS, export_store
    from hslib.model import local_folder
    from hslib.store import Store

    found = Store(store)
    with tqdm.tqdm(total=len(found), unit="row", disable=None) as bar:
        written = export_store(
            found,
            out,
            TRAINERS[to](),
            local_folder(model or found.manifest.model_path),
            draft_vocab_size=draft_vocab_size,
            workers=workers,
            on_row=lambda _size_bytes: bar.update(),
        )
    for name, value in written.facts().items():
        print(f"{name:>16}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
