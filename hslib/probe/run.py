"""A probe as notebook 05 runs it: choose rows and a reference, compare, conclude."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hslib import extract
from hslib.errors import ParameterError, ProbeError
from hslib.model import ModelInfo, read_final_norm, read_head, read_model
from hslib.parameters import ExtractionParameters, ProbeParameters
from hslib.probe.head import (
    NO_FINAL,
    HeadFinding,
    HeadReading,
    judge_head,
    read_through_head,
)
from hslib.probe.layers import ProbeReport, compare
from hslib.probe.reference import fits, load_reference
from hslib.server import ServerClient
from hslib.store import Store, StoredSample

if TYPE_CHECKING:
    from hslib.job import ProgressState
    from hslib.store import Manifest


@dataclass(frozen=True)
class Probe:
    """What will be compared; nothing is loaded yet.

    ``num_layers``: layers of the reference to load; 0 = its output head alone.
    """

    parameters: ProbeParameters
    manifest: "Manifest"
    samples: tuple[StoredSample, ...]
    model: ModelInfo
    num_layers: int

    @property
    def title(self) -> str:
        """For figures: the run, its rows and tokens."""
        tokens = sum(sample.entry.num_tokens for sample in self.samples)
        name = self.parameters.run_dir
        return f"{name}: {len(self.samples)} rows, {tokens} tokens"

    def facts(self) -> dict[str, str]:
        """For a table."""
        total = self.model.num_layers
        loaded = {0: "its output head alone", total: "the whole model"}
        return {
            "rows": f"{len(self.samples)} short ones",
            "stored as": self.manifest.states_sentence(),
            "states": self.manifest.witness_sentence(),
            "reference": f"{self.model.architecture}, {total} layers",
            "loaded of it": loaded.get(self.num_layers, f"its first {self.num_layers} layers"),
            "a server's log probabilities": "asked for" if self.parameters.server_url else "no",
        }


def plan_probe(
    parameters: ProbeParameters, show: "Callable[[ProgressState], None] | None" = None
) -> Probe:
    """Choose a reference and short rows, of a store or extracted now from a running server.

    Args:
        show: called with the progress of that extraction.

    Raises:
        StoreError, ServerError, ParameterError: no store, server or model there.
        ProbeError: the reference's shape is not the store's.
    """
    if parameters.server_url:
        store = _extract_from_server(parameters, show)
    else:
        store = extract.require_store(parameters)
    lengths = [entry.num_tokens for entry in store.entries.values()]
    indices = list(store.entries)
    chosen = shortest(lengths, parameters.num_rows, parameters.min_tokens)
    model = read_model(parameters.reference_path or store.manifest.model_path)
    for name in ("num_layers", "hidden_size", "vocab_size"):
        if getattr(model, name) != getattr(store.manifest, name):
            raise ProbeError(
                f"the reference is another model: {name} differs",
                expected=getattr(store.manifest, name),
                got=getattr(model, name),
                fix="set reference_path to the model that was served",
            )
    samples = tuple(store[indices[position]] for position in chosen)
    count = _layers_to_load(parameters, model, store.manifest.boundaries)
    return Probe(parameters, store.manifest, samples, model, count)


def shortest(lengths: Sequence[int], count: int, at_least: int = 8) -> list[int]:
    """Positions of the ``count`` shortest rows of ``at_least`` tokens. Pure.

    Raises:
        ParameterError: no row is long enough to tell layers apart.
    """
    usable = [n for n, length in enumerate(lengths) if length >= at_least]
    if not usable:
        raise ParameterError(f"no row has {at_least} tokens", fix="probe a store with longer rows")
    return sorted(usable, key=lambda n: (lengths[n], n))[:count]


def _extract_from_server(
    parameters: ProbeParameters, show: "Callable[[ProgressState], None] | None"
) -> Store:
    """The dataset's first rows, in a store below the run's ``probe``."""
    job = ExtractionParameters(
        run_dir=f"{parameters.run_dir}/probe",
        dataset_path=parameters.dataset_path,
        server_url=parameters.server_url,
        dump_dir=parameters.dump_dir,
        layers=parameters.layers,
        limit=max(64, parameters.num_rows),
        max_rejected_share=1.0,  # a few rows are enough
        api_key_env=parameters.api_key_env,
    )
    servers = extract.open_servers(job)
    extract.run(extract.prepare(job, servers), servers, show).require_whole()
    return Store(job.store_path)


def _layers_to_load(
    parameters: ProbeParameters, model: ModelInfo, boundaries: Sequence[int]
) -> int:
    """As many as fit: all, those up to a stored boundary, the first four, or none."""
    total = model.num_layers
    if parameters.max_layers >= 0:
        return min(parameters.max_layers, total)
    needed = (total, *reversed([b + 1 for b in boundaries if b < total]), min(4, total))
    return next((count for count in needed if fits(model.path, count)), 0)


def against_reference(probe: Probe) -> ProbeReport | None:
    """Compare every stored state with every loaded boundary; None where no layer is loaded."""
    if not probe.num_layers:
        return None
    return compare(probe.samples, load_reference(probe.model.path, probe.num_layers))


def through_head(probe: Probe) -> tuple[list[HeadReading], HeadFinding]:
    """Read every stored state through norm and head; nothing is read without a final state.

    With ``server_url`` the server's log probabilities of the same rows are compared too.
    """
    parameters, model = probe.parameters, probe.model
    logprobs: list[list[float]] | None = None
    if not probe.manifest.stores_final:
        return [], NO_FINAL
    if parameters.server_url:
        with ServerClient(parameters.server_url, parameters.api_key) as client:
            size = model.vocab_size
            logprobs = [client.logprobs(s.input_ids.numpy(), size) for s in probe.samples]
    readings = read_through_head(
        probe.samples, read_head(model.path), read_final_norm(model.path), logprobs
    )
    return readings, judge_head(readings, model.vocab_size)


def probe_metrics(report: ProbeReport | None, head: HeadFinding) -> dict[str, str]:
    """For ``metrics.json``."""
    layers = {f.claimed: f.match for f in report.findings} if report else {}
    return {**layers, "head": head.side}


def conclude(probe: Probe, report: ProbeReport | None, head: HeadFinding) -> str:
    """The result of both comparisons in words.

    Raises:
        ProbeError: one of them contradicts the manifest. The head's finding counts only if a
            server proved it, or if no whole reference was loaded.
    """
    if report is not None:
        report.require_as_claimed()
    whole = report is not None and probe.num_layers == probe.model.num_layers
    if head.proven or not whole:
        head.require(probe.manifest.final_norm)
    if report is None:
        return (
            f"{head.sentence} No layer of a reference was loaded: which boundaries the aux states "
            "are was not checked."
        )
    if whole and head.side == "none":
        # nothing else is left: the states are the checkpoint's own, of these very rows
        return f"{report.sentence()} So the model itself can't predict these rows."
    return report.sentence() + ("" if whole else f" {head.sentence}")
