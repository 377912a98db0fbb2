"""The few commands that a terminal needs beside a notebook; exit code 0 only if all is well."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hslib import server
from hslib.config import DiagnosisParameters
from hslib.errors import HslibError
from hslib.progress import log_line, read_progress
from hslib.store import Store

_STALE_S = 10.0  # progress.json is renewed twice a second while a job lives


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hslib", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="how a run's job and server stand")
    status.add_argument("run_dir", type=Path)
    status.set_defaults(run=_status)
    verify = commands.add_parser("verify", help="compare a store's files with its journal")
    verify.add_argument("store", type=Path)
    verify.add_argument("--size-only", action="store_true", help="do not read the tensors")
    verify.add_argument("--repair", action="store_true", help="quarantine what is not sound")
    verify.set_defaults(run=_verify)
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
        return int(chosen.run(chosen))
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
    age = time.time() - state.updated_at
    died = state.state == "running" and age > _STALE_S
    word = f"DEAD (process {state.pid} stopped telling {age:.0f} s ago)" if died else state.state
    print(f"{'job':>12}: {word}")
    print(f"{'progress':>12}: {log_line(state, None)}")
    print(
        f"{'rows':>12}: {state.asked} asked for, {state.already_done} already done, "
        f"{state.ok} extracted, {state.failed} failed, {state.rejected} rejected"
    )
    for reason, count in sorted(state.reasons.items(), key=lambda item: -item[1]):
        print(f"{'failed':>12}: {count} x {reason}")
    if state.message:
        print(f"{'message':>12}: {state.message}")
    left = state.asked - state.already_done - state.ok - state.failed - state.rejected
    unfinished = state.state != "running" and left > 0
    return int(died or unfinished or state.failed > 0 or facts["server"] == "dead")


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


def _diagnose(chosen: argparse.Namespace) -> int:
    """The verdict on lengths; on tokens too where a tokenizer or server is named."""
    from hslib import diagnosis

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
