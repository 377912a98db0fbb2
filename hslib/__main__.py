"""The few commands that a terminal needs beside a notebook; exit code 0 only if all is well."""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from hslib.errors import HslibError, ParameterError
from hslib.job import forecast as sizing
from hslib.job import watch
from hslib.job.progress import read_progress
from hslib.server import launch as server
from hslib.store import Store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hslib", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="how a run's job and server stand")
    status.add_argument("run_dir", type=Path)
    status.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=2.0,
        metavar="SECONDS",
        help="show it again every so often (2), until the job ends",
    )
    status.set_defaults(run=_status)
    verify = commands.add_parser("verify", help="compare a store's files with its journal")
    verify.add_argument("store", help="a directory, or s3://bucket/prefix")
    verify.add_argument("--size-only", action="store_true", help="do not read the tensors")
    verify.add_argument("--repair", action="store_true", help="quarantine what is not sound")
    verify.set_defaults(run=_verify)
    report = commands.add_parser(
        "report", help="a notebook, or all of a run, as HTML without code; 1 if one had failed"
    )
    report.add_argument("path", type=Path, help="an executed notebook, or a run's directory")
    report.set_defaults(run=_report)
    layers = commands.add_parser("layers", help="a model's layer numbers as each tool counts them")
    layers.add_argument("model", help="a model folder, or an id of the hub")
    layers.add_argument("--boundaries", default="auto", help='such as "3,31,59"')
    layers.set_defaults(run=_layers)
    _add_plan(commands)
    export = commands.add_parser("export", help="write a store as a trainer reads it; resumable")
    export.add_argument("store", help="a directory, or s3://bucket/prefix")
    export.add_argument("out", type=Path, help="a new folder, or the one to go on with")
    export.add_argument("--to", required=True, choices=["specforge", "speculators"], dest="trainer")
    export.add_argument("--model", help="its folder, or an id of the hub; default: the manifest's")
    export.add_argument(
        "--draft-vocab-size", type=int, default=0, help="0 = the model's whole vocabulary"
    )
    export.add_argument("--workers", type=int, default=0, help="threads; 0 = a few")
    export.set_defaults(run=_export)
    diagnose = commands.add_parser("diagnose", help="why samples got what was not expected")
    diagnose.add_argument("evidence", metavar="LOG_OR_STORE", help="log, journal, store or dumps")
    diagnose.add_argument("--dataset", default="", help="rows with input_ids, messages or text")
    diagnose.add_argument("--tokenizer", default="", help="folder of the served model's tokenizer")
    diagnose.add_argument("--server", default="", help="URL of a running server")
    diagnose.add_argument("--sample-limit", type=int, default=256, help="rows tokenized; 0 = all")
    diagnose.add_argument("--trust-remote-code", action="store_true")
    diagnose.add_argument("--api-key-env", default="", help="variable that holds the server's key")
    diagnose.set_defaults(run=_diagnose)
    chosen = parser.parse_args(arguments)
    try:
        run = _watch if getattr(chosen, "watch", None) else chosen.run
        return int(run(chosen))
    except HslibError as error:
        print(error, file=sys.stderr)
        return 1


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="how big, how long, how many replicas: before anything starts",
        description="GB are 1e9 bytes and GB/s are bytes, not bits: a link of 100 Gbit/s is 12.5.",
    )
    plan.add_argument(
        "--model", help="a model folder, an id of the hub, or a config.json alone: no weights"
    )
    plan.add_argument("--hidden-size", type=int, default=0, help="without a model at hand")
    plan.add_argument("--num-layers", type=int, default=0, help="likewise")
    plan.add_argument("--layers", default="auto", help='boundaries such as "3,31,59"')
    work = plan.add_mutually_exclusive_group(required=True)
    work.add_argument("--tokens", type=_whole, help="of all samples together, such as 61e6")
    work.add_argument("--dataset", type=Path, help="count tokens and samples of this file")
    plan.add_argument("--samples", type=int, default=0, help="with --tokens: files have headers")
    plan.add_argument("--longest", type=int, default=0, help="tokens of the longest sample")
    plan.add_argument("--rate", type=float, required=True, help="tokens/s that a replica captures")
    plan.add_argument("--replicas", type=int, default=1, help="servers, each with its own link")
    plan.add_argument(
        "--store-gbps", type=float, default=math.inf, help="GB/s that the store takes of them all"
    )
    plan.add_argument(
        "--network-gbps", type=float, default=math.inf, help="GB/s from one replica to the store"
    )
    plan.add_argument("--concurrency", type=int, help="requests in flight a replica")
    plan.set_defaults(run=_plan)


def _whole(text: str) -> int:
    """``61e6`` as a whole number; ValueError is argparse's to show."""
    try:
        return int(Fraction(text))
    except ZeroDivisionError as error:
        raise ValueError(text) from error


def _status(chosen: argparse.Namespace) -> int:
    """The job's last word, whether its process lives, and the server."""
    run_path = chosen.run_dir.absolute()
    facts = server.status(run_path)
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


def _watch(chosen: argparse.Namespace) -> int:
    """The status again and again while a job is at work; a terminal is cleared between."""
    while True:
        if sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")
        code = _status(chosen)
        if not watch.is_at_work(read_progress(chosen.run_dir.absolute()), time.time()):
            return code
        print(flush=True)
        time.sleep(chosen.watch)


def _verify(chosen: argparse.Namespace) -> int:
    """Every fault on a line; 1 when there is any."""
    import tqdm

    store = Store(chosen.store)
    total = sum(entry.size_bytes for entry in store.entries.values())
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, disable=None) as bar:
        report = store.verify(deep=not chosen.size_only, on_checked=bar.update)
    for fault in report.faults:
        print(f"sample {fault.index}: {fault.check}: {fault.detail} [{fault.path}]")
    print(report.sentence())
    if chosen.repair and report.faults:
        redone = store.repair(report)
        print(f"moved {len(redone)} files to quarantine/; the next extraction takes them up again")
    return int(not report.clean)


def _report(chosen: argparse.Namespace) -> int:
    """A line a report; 1 when a notebook had failed or did not run to its end."""
    from hslib.notebook.report import write_reports

    reports = write_reports(chosen.path)
    for report in reports:
        print(f"{report.path}: {report.state}")
    return int(not all(report.is_good for report in reports))


def _layers(chosen: argparse.Namespace) -> int:
    """Every dialect's view of one model."""
    from hslib.model import dialect_table, parse_layers, read_shape

    model = read_shape(chosen.model)
    boundaries = parse_layers(chosen.boundaries, model.num_layers)
    print(f"{model.architecture}, {model.num_layers} layers; boundaries {list(boundaries)}\n")
    for note in model.notes:
        print(f"note: {note}\n")
    table = [("tool", "its default ids", "are boundaries", f"ids for {list(boundaries)}")]
    table += [
        (row.tool, row.default_ids or "-", row.default_boundaries or "-", row.ids)
        for row in dialect_table(model.num_layers, model.architecture, boundaries)
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
    return 0


def _plan(chosen: argparse.Namespace) -> int:
    """The table and what follows from it."""
    from hslib.parameters import ExtractionParameters

    job = ExtractionParameters()
    at_once = job.concurrency if chosen.concurrency is None else chosen.concurrency
    found = sizing.Sizing(
        _work(chosen),
        sizing.Request(at_once, job.samples_per_request, job.tokens_per_request),
        rate=chosen.rate,
        replicas=chosen.replicas,
        store_rate=chosen.store_gbps * 1e9,
        link_rate=chosen.network_gbps * 1e9,
    )
    for fact in found.facts():
        print(f"{fact.name:>24}: {fact.value:<18} = {fact.formula}")
    print(f"\n{' '.join(found.sentences())}")
    return 0


def _work(chosen: argparse.Namespace) -> sizing.Work:
    """What is to be extracted; a dataset's rows are counted.

    Raises:
        ParameterError, DatasetError: with the cure.
    """
    from hslib.dataset import Dataset, Limits
    from hslib.model import parse_layers, read_shape

    vocab_size = 2**31
    if chosen.model and (chosen.hidden_size or chosen.num_layers):
        raise ParameterError("the model's shape is said twice", fix="give --model alone")
    if chosen.model:
        model = read_shape(chosen.model)
        chosen.hidden_size, chosen.num_layers = model.hidden_size, model.num_layers
        vocab_size = model.vocab_size
    if chosen.hidden_size < 1 or chosen.num_layers < 1:
        raise ParameterError(
            "the model's shape is not known", fix="give --model, or --hidden-size and --num-layers"
        )
    num_states = len(parse_layers(chosen.layers, chosen.num_layers)) + 1
    if not chosen.dataset:
        size = (chosen.tokens, chosen.samples, chosen.longest)
        return sizing.Work(num_states, chosen.hidden_size, *size)
    survey = Dataset(chosen.dataset, Limits(vocab_size, max_tokens=2**31)).survey()
    if survey.rejections:
        first = survey.rejections[0]
        print(f"{len(survey.rejections)} rows left out; the first: {first.index}, {first.detail}")
    longest = max((row.num_tokens for row in survey.rows), default=0)
    return sizing.Work(
        num_states,
        chosen.hidden_size,
        survey.num_tokens,
        len(survey.rows),
        chosen.longest or longest,
    )


def _export(chosen: argparse.Namespace) -> int:
    """The export's facts."""
    import tqdm

    from hslib.export import TRAINERS, export_store
    from hslib.model import local_folder

    store = Store(chosen.store)
    with tqdm.tqdm(total=len(store), unit="row", disable=None) as bar:
        report = export_store(
            store,
            chosen.out,
            TRAINERS[chosen.trainer](),
            local_folder(chosen.model or store.manifest.model_path),
            draft_vocab_size=chosen.draft_vocab_size,
            workers=chosen.workers,
            on_row=lambda _size_bytes: bar.update(),
        )
    for name, value in report.facts().items():
        print(f"{name:>16}: {value}")
    return 0


def _diagnose(chosen: argparse.Namespace) -> int:
    """The verdict on lengths; on tokens too where a tokenizer or server is named."""
    from hslib import diagnosis
    from hslib.parameters import DiagnosisParameters

    parameters = DiagnosisParameters.from_values(
        {
            "log_path": chosen.evidence,
            "dataset_path": chosen.dataset,
            "tokenizer_path": chosen.tokenizer,
            "server_url": chosen.server,
            "sample_limit": chosen.sample_limit,
            "trust_remote_code": chosen.trust_remote_code,
            "api_key_env": chosen.api_key_env,
        }
    )
    verdict = diagnosis.run(parameters).verdict
    print("\n".join(verdict.sentences()))
    if not chosen.tokenizer and not chosen.server:
        return int(bool(verdict.findings))
    compared = diagnosis.run_tokens(parameters)
    print("\n".join(diagnosis.token_sentences(compared)))
    main = diagnosis.reference(compared)
    return int(bool(verdict.findings) or main is None or bool(main.differing))


if __name__ == "__main__":
    sys.exit(main())
