"""The same drafter trained twice: on a store, and on its copy with the states of other samples.

It shows what silent misfiling costs, and that a trainer does not see it: speculators takes its
targets from the stored final states, so misfiled states agree with themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hslib.drafter.eagle3 import Point, Training, judge, train_drafter
from hslib.drafter.misfiled import misfile
from hslib.export import TRAINERS, ExportReport, export_store
from hslib.model import local_folder, read_final_norm, read_head
from hslib.parameters import ExportParameters
from hslib.store import Store

_ROWS_READ = 16  # of each store, through the model's head


@dataclass(frozen=True)
class TrainedDrafter:
    """One of the two drafters; acceptance by position, on held-out rows that it never saw."""

    name: str
    training: Training  # judged on rows with right states, as a server has them
    own_split: tuple[float, ...]  # judged on its own data, as its trainer validates
    without_tokens: tuple[float, ...]  # right states again, but random tokens
    next_token_accuracy: float  # how often the stored final state's first choice came next

    @property
    def read_from_tokens(self) -> float:
        """How much acceptance at position 1 it loses without its tokens."""
        return self.training.acceptance[0] - self.without_tokens[0]


@dataclass(frozen=True)
class Experiment:
    """Both drafters, trained alike."""

    right: TrainedDrafter
    misfiled: TrainedDrafter
    reloaded: tuple[float, ...]  # acceptance of the right one, loaded again from its checkpoint

    def metrics(self) -> dict[str, tuple[float, ...]]:
        """Acceptance by position, for ``metrics.json``."""
        right, misfiled = self.right, self.misfiled
        return {
            "right": right.training.acceptance,
            "misfiled": misfiled.training.acceptance,
            "misfiled_by_its_own_validation": misfiled.own_split,
            "right_without_tokens": right.without_tokens,
            "misfiled_without_tokens": misfiled.without_tokens,
            "next_token_accuracy": (right.next_token_accuracy, misfiled.next_token_accuracy),
        }

    def sentence(self) -> str:
        """The result in words, with thresholds coarse enough for a rerun."""
        right, misfiled = self.right, self.misfiled
        first, other = right.training.acceptance, misfiled.training.acceptance
        is_less = all(a > b for a, b in zip(first, other, strict=True))
        promised = misfiled.own_split[0] - other[0]
        return "\n".join(
            (
                f"Right states: first-position acceptance on held-out rows "
                f"{_at_least(first[0], 0.6)}.",
                f"Misfiled states: {'lower' if is_less else 'NOT lower'} acceptance at every "
                f"position: {_ratio(other[0], first[0])} at the first, "
                f"{_ratio(other[-1], first[-1])} at the third.",
                f"The trainer's own validation of the misfiled data shows "
                f"{_at_least(promised, 0.05)} more acceptance than serving has: "
                "its targets are misfiled too.",
                f"The misfiled drafter ignores the tokens: with random ones it loses "
                f"{_at_most(misfiled.read_from_tokens, 0.05)} of acceptance, the right drafter "
                f"{_at_least(right.read_from_tokens, 0.5)}.",
                f"What reveals it: the head predicts the row's next token with an accuracy of "
                f"{_at_least(right.next_token_accuracy, 0.5)} from right final states, of "
                f"{_at_most(misfiled.next_token_accuracy, 0.1)} from misfiled ones.",
                "The right drafter, loaded again by speculators from its checkpoint, "
                f"has {'the same' if self.reloaded == first else 'ANOTHER'} acceptance.",
            )
        )


def _at_least(value: float, threshold: float) -> str:
    return f"{'at least' if value >= threshold else 'LESS THAN'} {threshold:g}"


def _at_most(value: float, threshold: float) -> str:
    return f"{'at most' if value <= threshold else 'MORE THAN'} {threshold:g}"


def _ratio(part: float, whole: float) -> str:
    share = part / whole if whole else 0.0
    return "at most half of that" if share <= 0.5 else "more than half of that"


def export_for(parameters: ExportParameters, store: Store) -> ExportReport:
    """The export that notebook 06's parameters ask for."""
    return export_into(parameters.export_path, parameters, store)


def export_into(out: Path, parameters: ExportParameters, store: Store) -> ExportReport:
    """An export of this store, as the parameters ask for it."""
    return export_store(
        store,
        out,
        TRAINERS[parameters.trainer](parameters.drafter, parameters.dtype),
        model_folder(parameters, store),
        parameters.draft_vocab_size,
        boundaries=parameters.chosen_boundaries(store.manifest.num_layers),
    )


def model_folder(parameters: ExportParameters, store: Store) -> Path:
    """The folder of the model that the store's states are of."""
    return local_folder(parameters.model_path or store.manifest.model_path)


def train_both(
    parameters: ExportParameters,
    store: Store,
    export: Path,
    on_line: Callable[[str], None] = lambda _line: None,
) -> Experiment | None:
    """Train on an export for speculators, and on an export of the store's misfiled copy.

    Writes ``misfiled``, ``export/misfiled`` and ``drafters`` below the run. None when the
    parameters ask for no training, or for another drafter than speculators' eagle3.
    """
    if not parameters.trains:
        on_line("ready: nothing is trained here; the export's own command trains for real")
        return None
    model = model_folder(parameters, store)
    run = parameters.run_path
    wrong = misfile(store, run / "misfiled")
    wrong_export = run / "export" / "misfiled"
    export_into(wrong_export, parameters, wrong)
    num_steps, seed = parameters.num_steps, parameters.seed

    def train(name: str, data: Store, folder: Path) -> TrainedDrafter:
        def show(point: Point) -> None:
            on_line(f"{name}: step {point.step} of {num_steps}, loss {point.loss:.2f}")

        checkpoint = run / "drafters" / name
        training = train_drafter(folder, export, model, checkpoint, num_steps, seed, show)
        own = judge(checkpoint, folder, seed)
        blind = judge(checkpoint, export, seed, random_tokens=True)
        return TrainedDrafter(name, training, own, blind, next_token_accuracy(data, model))

    right = train("right", store, export)
    misfiled = train("misfiled", wrong, wrong_export)
    reloaded = judge(right.training.checkpoint, export, seed)
    on_line(f"ready: two drafters of {num_steps} steps each")
    return Experiment(right, misfiled, reloaded)


def next_token_accuracy(store: Store, model: Path) -> float:
    """Share of tokens that the head ranks first for the final state before them.

    Read from the first rows of the store; a final state before the norm is normed first.
    """
    import torch

    head = read_head(model)
    norm = read_final_norm(model) if store.manifest.final_norm == "pre" else None
    hits = []
    for index in list(store.entries)[:_ROWS_READ]:
        final = store[index].final[:-1]
        states = norm.normed(final) if norm else final
        hits.append((states.float() @ head.T).argmax(-1) == store[index].input_ids[1:])
    return float(torch.cat(hits).float().mean())
