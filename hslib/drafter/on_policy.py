"""A drafter trained on the data set's answers beside one trained on the target's own.

A drafter proposes what the target would say. On text that others wrote, the target's states say
one thing and the next token another; on its own answers they agree, as in serving.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hslib.drafter.eagle3 import POSITIONS, Point, judge, train_drafter
from hslib.drafter.experiment import Experiment, export_into, model_folder
from hslib.drawing import BLUE, GREEN, house_style, new_figure
from hslib.parameters import ExportParameters
from hslib.store import Store

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_NAMES = {"data": "the data set's answers", "own": "the target's own answers"}


@dataclass(frozen=True)
class OnPolicy:
    """Acceptance by position on held-out text of the target's own, of a drafter trained on
    answers of the data set, and of one trained on the target's own.
    """

    data: tuple[float, ...]
    own: tuple[float, ...]

    def metrics(self) -> dict[str, tuple[float, ...]]:
        """For ``metrics.json``."""
        return {"trained_on_the_data_sets_answers": self.data, "trained_on_own_answers": self.own}

    def sentence(self) -> str:
        """The result in words, coarse enough for a rerun."""
        gains = [own - data for own, data in zip(self.own, self.data, strict=True)]
        if min(gains) > 0.02:
            what = "has a higher acceptance at every position"
        elif max(gains) < -0.02:
            what = "has a LOWER acceptance at every position"
        else:
            what = "is not clearly better or worse at every position"
        return f"On the target's own answers the drafter that was trained on such answers {what}."

    def numbers(self) -> "pandas.DataFrame":
        """``trained_on, position, acceptance``."""
        import pandas

        rows = [
            (_NAMES[name], position, share)
            for name, shares in (("data", self.data), ("own", self.own))
            for position, share in enumerate(shares, 1)
        ]
        return pandas.DataFrame(rows, columns=["trained_on", "position", "acceptance"])

    @house_style
    def plot(self, title: str) -> "Figure":
        """Bars by position."""
        figure, axes = new_figure(title, 3.6)
        for shift, colour, name in ((-0.2, BLUE, "data"), (0.2, GREEN, "own")):
            shares = getattr(self, name)
            places = [position + shift for position in range(1, POSITIONS + 1)]
            axes.bar(places, shares, width=0.38, color=colour, label=_NAMES[name])
            for place, share in zip(places, shares, strict=True):
                axes.text(place, share + 0.015, f"{share:.2f}", ha="center", fontsize=8)
        axes.set_ylim(0, 1.1)
        axes.set_xticks(range(1, POSITIONS + 1))
        axes.set_xlabel("position of the proposal")
        axes.set_ylabel("acceptance on the target's own text")
        axes.legend(frameon=False, fontsize=9, title="trained on", loc="upper right")
        return figure


def train_on_own_answers(
    parameters: ExportParameters,
    trained: Experiment,
    own: Store,
    on_line: Callable[[str], None] = lambda _line: None,
) -> OnPolicy:
    """Train a drafter on a store of the target's own answers, as the other one was.

    Writes ``export/own_answers`` and ``drafters/own_answers`` below the run.

    Args:
        trained: its right drafter is judged beside the new one, on held-out rows of ``own``.
    """
    model, run = model_folder(parameters, own), parameters.run_path
    export = run / "export" / "own_answers"
    export_into(export, parameters, own)
    num_steps, seed = parameters.num_steps, parameters.seed

    def show(point: Point) -> None:
        on_line(f"own answers: step {point.step} of {num_steps}, loss {point.loss:.2f}")

    checkpoint = run / "drafters" / "own_answers"
    training = train_drafter(export, export, model, checkpoint, num_steps, seed, show)
    data = judge(trained.right.training.checkpoint, export, seed)
    on_line(f"ready: a drafter of {num_steps} steps on the target's own answers")
    return OnPolicy(data, training.acceptance)
