"""The few commands that a terminal needs beside a notebook; exit code 0 only if all is well."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hslib import server, watch
from hslib.errors import HslibError
from hslib.progress import read_progress
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
    layers.add_argument("model", type=Path, help="a model folder")
    layers.add_argument("--boundaries", default="auto", help='such as "3,31,59"')
    layers.set_defaults(run=_layers)
    export = commands.add_parser("export", help="write a store as a trainer reads it; resumable")
    export.add_argument("store", help="a directory, or s3://bucket/prefix")
    export.add_argument("out", type=Path, help="a new folder, or the one to go on with")
    export.add_argument("--to", required=True, choices=["specforge", "speculators"], dest="trainer")
    export.add_argument("--model", type=Path, help="its folder; default: the manifest's")
    export.add_argument(
        "--draft-vocab-size", type=int, default=0, help="0 = the model's whole vocabulary"
    )
    export.add_argument("--workers", type=int, default=0, help="threads; 0 = a few")
    export.add_argument("--link-from", type=Path, help="an earlier export, to link equal files")
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
    from hslib.report import write_reports

    reports = write_reports(chosen.path)
    for report in reports:
        print(f"{report.path}: {report.state}")
    return int(not all(report.is_good for report in reports))


def _layers(chosen: argparse.Namespace) -> int:
    """Every dialect's view of one model."""
    from hslib.layers import dialect_table, parse_layers
    from hslib.model import read_model

    model = read_model(chosen.model)
    boundaries = parse_layers(chosen.boundaries, model.num_layers)
    print(f"{model.architecture}, {model.num_layers} layers; boundaries {list(boundaries)}\n")
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


def _export(chosen: argparse.Namespace) -> int:
    """The export's facts."""
    import tqdm

    from hslib.export import trainers
    from hslib.export.export import export_store

    store = Store(chosen.store)
    with tqdm.tqdm(total=len(store), unit="row", disable=None) as bar:
        report = export_store(
            store,
            chosen.out,
            trainers.NAMES[chosen.trainer](),
            chosen.model or Path(store.manifest.model_path),
            draft_vocab_size=chosen.draft_vocab_size,
            workers=chosen.workers,
            link_from=chosen.link_from,
            on_row=lambda _size_bytes: bar.update(),
        )
    for name, value in report.facts().items():
        print(f"{name:>16}: {value}")
    return 0


def _diagnose(chosen: argparse.Namespace) -> int:
    """The verdict on lengths; on tokens too where a tokenizer or server is named."""
    from hslib import diagnosis
    from hslib.config import DiagnosisParameters

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
