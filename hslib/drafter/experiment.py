"""The same drafter trained twice: on a store, and on its copy with the states of other samples.

What silent misfiling costs, and what a trainer sees of it: speculators takes its targets from
the stored final states, so misfiled states still agree with themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hslib.drafter.eagle3 import Point, Settings, Training, judge, train_drafter
from hslib.drafter.misfiled import misfile
from hslib.export import TRAINERS, ExportReport, SpeculatorsFormat, export_store
from hslib.model import local_folder, read_final_norm
from hslib.parameters import ExportParameters
from hslib.probe.readings import read_through_head
from hslib.probe.reference import head_of
from hslib.store import Store

_ROWS_READ = 16  # of each store, through the head


@dataclass(frozen=True)
class Outcome:
    """One of the two trainings. Shares are of trained tokens of held-out rows."""

    name: str
    training: Training  # judged on held-out rows whose states are right, as serving would
    own_split: tuple[float, ...]  # by the trainer's own validation: held-out rows of its own data
    without_tokens: tuple[float, ...]  # as ``training``, but given random tokens
    next_token_accuracy: (
        float  # how often the stored final state's first choice came next in its row
    )

    @property
    def read_from_tokens(self) -> float:
        """How much of the first position's acceptance it owes to the tokens that it is given."""
        return self.training.acceptance[0] - self.without_tokens[0]


@dataclass(frozen=True)
class Lesson:
    """Both, trained alike."""

    right: Outcome
    misfiled: Outcome
    reloaded: tuple[float, ...]  # of the right one, by speculators' loader from its checkpoint

    def metrics(self) -> dict[str, tuple[float, ...]]:
        """Acceptance by position, for ``metrics.json``."""
        return {
            "right": self.right.training.acceptance,
            "misfiled": self.misfiled.training.acceptance,
            "misfiled_by_its_own_validation": self.misfiled.own_split,
            "right_without_tokens": self.right.without_tokens,
            "misfiled_without_tokens": self.misfiled.without_tokens,
            "next_token_accuracy": (
                self.right.next_token_accuracy,
                self.misfiled.next_token_accuracy,
            ),
        }

    def sentence(self) -> str:
        """What was learnt, in words and thresholds that a rerun gives again."""
        first, other = self.right.training.acceptance, self.misfiled.training.acceptance
        better = all(a > b for a, b in zip(first, other, strict=True))
        promised = self.misfiled.own_split[0] - other[0]
        return "\n".join(
            (
                f"Right states: first-position acceptance on held-out rows "
                f"{_against(first[0], 0.6)}.",
                f"Misfiled states: {'less' if better else 'NOT less'} at every position; "
                f"at the first {_ratio(other[0], first[0])}, "
                f"at the third {_ratio(other[-1], first[-1])}.",
                f"The trainer's own validation of the misfiled data promises more than serving "
                f"keeps, by {_against(promised, 0.05)}: its targets are misfiled too.",
                f"The misfiled drafter ignores the tokens: random ones in their place cost it "
                f"{_at_most(self.misfiled.read_from_tokens, 0.05)} of acceptance, the right one "
                f"{_against(self.right.read_from_tokens, 0.5)}.",
                f"What tells: the right final states name the token that came next "
                f"{_against(self.right.next_token_accuracy, 0.5)}, the misfiled ones "
                f"{_at_most(self.misfiled.next_token_accuracy, 0.1)}.",
                "The right drafter, loaded again by speculators from its checkpoint, "
                f"{'accepts as before' if self.reloaded == first else 'IS ANOTHER'}.",
            )
        )


def _against(value: float, threshold: float) -> str:
    return f"{'at least' if value >= threshold else 'LESS THAN'} {threshold:g}"


def _at_most(value: float, threshold: float) -> str:
    return f"{'at most' if value <= threshold else 'MORE THAN'} {threshold:g}"


def _ratio(part: float, whole: float) -> str:
    share = part / whole if whole else 0.0
    return "at most half of it" if share <= 0.5 else "more than half of it"


def teach(
    parameters: ExportParameters,
    store: Store,
    export: Path,
    on_line: Callable[[str], None] = lambda _line: None,
) -> Lesson | None:
    """Train on an export for speculators and on one of the misfiled copy of its store.

    Everything is made below the run: ``misfiled``, ``export/misfiled``, ``drafters``. None when
    the parameters ask for no training, or for a trainer that has no CPU path.
    """
    if parameters.trainer != "speculators" or not parameters.num_steps:
        on_line("ready: nothing is trained here; the export's own command trains for real")
        return None
    model = local_folder(parameters.model_path or store.manifest.model_path)
    run = parameters.run_path
    wrong = misfile(store, run / "misfiled")
    wrong_export = run / "export" / "misfiled"
    export_store(wrong, wrong_export, SpeculatorsFormat(), model, parameters.draft_vocab_size)
    settings = Settings(num_steps=parameters.num_steps, seed=parameters.seed)

    def outcome(name: str, data: Store, folder: Path) -> Outcome:
        def show(point: Point) -> None:
            on_line(f"{name}: step {point.step} of {settings.num_steps}, loss {point.loss:.2f}")

        checkpoint = run / "drafters" / name
        training = train_drafter(folder, export, model, checkpoint, settings, show)
        own = judge(checkpoint, folder, settings)
        blind = judge(checkpoint, export, settings, random_tokens=True)
        return Outcome(name, training, own, blind, _next_token_accuracy(data, model))

    right = outcome("right", store, export)
    misfiled = outcome("misfiled", wrong, wrong_export)
    reloaded = judge(right.training.checkpoint, export, settings)
    on_line(f"ready: two drafters of {settings.num_steps} steps each")
    return Lesson(right, misfiled, reloaded)


def _next_token_accuracy(store: Store, model: Path) -> float:
    samples = [store[index] for index in list(store.entries)[:_ROWS_READ]]
    return read_through_head(samples, head_of(model), read_final_norm(model))[-2].accuracy


def export_for(parameters: ExportParameters, store: Store) -> ExportReport:
    """The export that notebook 06's parameters ask for."""
    return export_store(
        store,
        parameters.export_path,
        TRAINERS[parameters.trainer](),
        local_folder(parameters.model_path or store.manifest.model_path),
        parameters.draft_vocab_size,
    )
