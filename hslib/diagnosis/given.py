"""What a diagnosis compares: what it was given, or a store's manifest names; else it says so."""

import glob
from dataclasses import dataclass
from pathlib import Path

from hslib import demo
from hslib.errors import HslibError
from hslib.model import local_folder
from hslib.parameters import DiagnosisParameters
from hslib.store import Manifest, open_storage, read_store_url
from hslib.store.manifest import read_manifest


@dataclass(frozen=True)
class Given:
    """``evidence``: a log, store, journal or dumps; ``dataset``: rows; ``tokenizer``: a folder.

    Each "" where it was not given. ``skipped``: a sentence for each comparison that is left out.
    """

    evidence: str
    dataset: str
    tokenizer: str
    skipped: tuple[str, ...] = ()


def what_is_given(parameters: DiagnosisParameters) -> Given:
    """The demo's log, rows and tokenizer where nothing is given at all; never beside something.

    Raises:
        HslibError: an id of a tokenizer that is neither in the cache nor to be fetched.
    """
    if parameters.is_demo:
        log, rows = str(demo.case_study_path()), str(demo.dataset_path())
        return Given(log, rows, str(demo.model_path()))
    evidence = parameters.store_dir or parameters.log_path
    dataset, tokenizer = parameters.dataset_path, parameters.tokenizer_path
    notes = []
    manifest = _manifest(evidence) if evidence and not (dataset and tokenizer) else None
    if manifest is not None:
        dataset, note = _named(dataset, manifest.dataset_path, "dataset", "dataset_path")
        notes += note
        tokenizer, note = _named(tokenizer, manifest.model_path, "model", "tokenizer_path")
        notes += note
    if tokenizer:
        tokenizer = str(local_folder(tokenizer, "tokenizer"))
    return Given(evidence, dataset, tokenizer, (*notes, *_left_out(evidence, dataset, tokenizer)))


def _left_out(evidence: str, dataset: str, tokenizer: str) -> list[str]:
    found = []
    if not evidence:
        found.append("SAMPLES NOT COMPARED: no log and no store is named (log_path, store_dir).")
    missing = [name for name, value in (("dataset_path", dataset), ("tokenizer_path", tokenizer))
               if not value]  # fmt: skip
    if missing:
        them = "it" if len(missing) == 1 else "them"
        found.append(f"TOKENIZATION NOT COMPARED: {' and '.join(missing)} not known; name {them}.")
    return found


def _manifest(evidence: str) -> Manifest | None:
    """Of a store or of a run's folder; None for a log."""
    place = read_store_url(evidence)
    for url in [place, place / "store"] if isinstance(place, Path) else [place]:
        try:
            return read_manifest(open_storage(url))
        except (HslibError, OSError):
            continue
    return None


def _matches(pattern: str) -> bool:
    """A dataset may be a glob."""
    return any(glob.iglob(pattern, recursive=True))  # noqa: PTH207 - it is absolute


def _named(given: str, named: str, what: str, parameter: str) -> tuple[str, list[str]]:
    """What was given, or what the manifest names if it is still there."""
    if given or not named:
        return given, []
    if ":" in named or Path(named).exists() or _matches(named):
        return named, []
    return "", [f"The {what} that the store's manifest names is not there: set {parameter}."]
