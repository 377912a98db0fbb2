"""A probe as notebook 05 runs it: which rows, which reference, and what came out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hslib import extract
from hslib.errors import ProbeError
from hslib.extract import require_store
from hslib.model import ModelInfo, read_final_norm, read_model
from hslib.parameters import ExtractionParameters, ProbeParameters
from hslib.probe.readings import (
    NO_FINAL,
    HeadReading,
    HeadVerdict,
    ProbeReport,
    compare,
    judge_head,
    read_through_head,
)
from hslib.probe.reference import fits, head_of, load_reference, shortest
from hslib.server import endpoints as serving
from hslib.server.client import ServerClient
from hslib.store import Store, StoredSample

if TYPE_CHECKING:
    from hslib.store import Manifest


@dataclass(frozen=True)
class Probe:
    """What will be compared with what; nothing is loaded yet.

    ``num_layers``: how many of the reference's layers are loaded; 0 = its head alone.
    """

    parameters: ProbeParameters
    manifest: "Manifest"
    samples: tuple[StoredSample, ...]
    model: ModelInfo
    num_layers: int

    @property
    def title(self) -> str:
        """Of figures: the run and how many rows."""
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


def plan_probe(parameters: ProbeParameters) -> Probe:
    """Choose short rows, of a store or extracted now from a running server, and a reference.

    Raises:
        StoreError, ServerError, ParameterError: no store, server or model there.
        ProbeError: the reference's shape is not the store's.
    """
    store = _live_store(parameters) if parameters.server_url else _stored(parameters)
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


def _stored(parameters: ProbeParameters) -> Store:
    return require_store(parameters)


def _live_store(parameters: ProbeParameters) -> Store:
    """The dataset's first rows, extracted from a running server into the run's ``probe``."""
    job = ExtractionParameters(
        run_dir=f"{parameters.run_dir}/probe",
        dataset_path=parameters.dataset_path,
        server_url=parameters.server_url,
        dump_dir=parameters.dump_dir,
        layers=parameters.layers,
        limit=max(64, parameters.num_rows),
        api_key_env=parameters.api_key_env,
    )
    fleet = serving.open_endpoints(job)
    extract.run(extract.prepare(job, fleet), fleet).require_whole()
    return Store(job.store_path)


def _layers_to_load(
    parameters: ProbeParameters, model: ModelInfo, boundaries: Sequence[int]
) -> int:
    """All layers, those up to the last stored boundary, the first ones, or none."""
    total = model.num_layers
    if parameters.max_layers >= 0:
        return min(parameters.max_layers, total)
    needed = (total, *reversed([b + 1 for b in boundaries if b < total]), min(4, total))
    return next((count for count in needed if fits(model.path, count)), 0)


def against_reference(probe: Probe) -> ProbeReport | None:
    """Every stored layer against every boundary that could be loaded; None without any."""
    if not probe.num_layers:
        return None
    return compare(probe.samples, load_reference(probe.model.path, probe.num_layers))


def through_head(probe: Probe) -> tuple[list[HeadReading], HeadVerdict]:
    """Every stored layer through norm and head, and with a server's own log probabilities."""
    parameters, model = probe.parameters, probe.model
    logprobs: list[list[float]] | None = None
    if not probe.manifest.stores_final:
        return [], NO_FINAL
    if parameters.server_url:
        with ServerClient(parameters.server_url, parameters.api_key) as client:
            size = model.vocab_size
            logprobs = [client.logprobs(s.input_ids.numpy(), size) for s in probe.samples]
    readings = read_through_head(
        probe.samples, head_of(model.path), read_final_norm(model.path), logprobs
    )
    return readings, judge_head(readings, model.vocab_size)


def metrics(report: ProbeReport | None, head: HeadVerdict) -> dict[str, str]:
    """For ``metrics.json``."""
    layers = {f.claimed: f.verdict for f in report.findings} if report else {}
    return {**layers, "head": head.side}


def conclude(probe: Probe, report: ProbeReport | None, head: HeadVerdict) -> str:
    """The verdict of both kinds of evidence in words.

    Raises:
        ProbeError: one of them contradicts the manifest. What is only likely does not, unless
            it is all there is.
    """
    if report is not None:
        report.require_as_claimed()
    whole = report is not None and probe.num_layers == probe.model.num_layers
    if head.proven or not whole:
        head.require(probe.manifest.final_norm)
    if report is None:
        return (
            f"{head.sentence} Which boundaries the aux states are can't be told without layers of "
            "a reference."
        )
    return report.sentence() + ("" if whole else f" {head.sentence}")
