"""The experiment as figures with the numbers behind them (matplotlib, pandas)."""

from typing import TYPE_CHECKING

from hslib.drafter.experiment import Experiment, TrainedDrafter
from hslib.drawing import BLUE, ORANGE, house_style, open_axes

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"right": BLUE, "misfiled": ORANGE}
_STYLES = ("-", "--", ":")
_SERVING = "right held-out rows (as in serving)"
_OWN = "its own held-out rows (as its trainer sees it)"
_TOKENS = "lost when its tokens are random (position 1)"
_NEXT = "stored final state names its row's next token"
_PANELS = {  # what a drafter is judged on: the panel's title
    _SERVING: "drafter in serving:\nright held-out rows",
    _OWN: "the trainer's validation:\nits own held-out rows",
    _TOKENS: "lost when its tokens\nare random (position 1)",
    _NEXT: "stored final names\nthe next token",
}


def plot_experiment(found: Experiment, title: str) -> "dict[str, tuple[Figure, pandas.DataFrame]]":
    """Both figures with their numbers: ``learning`` and ``acceptance``."""
    curves, bars = curve_numbers(found), acceptance_numbers(found)
    return {
        "learning": (plot_learning(found, title), curves),
        "acceptance": (plot_acceptance(bars, title), bars),
    }


def curve_numbers(found: Experiment) -> "pandas.DataFrame":
    """A line per point: states, step, loss, acceptance by position."""
    import pandas

    rows = []
    for drafter in (found.right, found.misfiled):
        for point in drafter.training.points:
            shares = {f"acceptance_{k}": share for k, share in enumerate(point.acceptance, 1)}
            rows.append(
                {"states": drafter.name, "step": point.step, "loss_nats": point.loss, **shares}
            )
    return pandas.DataFrame(rows)


@house_style
def plot_learning(found: Experiment, title: str) -> "Figure":
    """Training loss, and acceptance by position on right held-out rows, of both drafters."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.9), layout="constrained")
    losses, shares = figure.subplots(1, 2)
    for drafter in (found.right, found.misfiled):
        _draw_curves(losses, shares, drafter)
    losses.set_ylabel("training loss (KL, nats, 3 positions)")
    losses.set_ylim(0)
    losses.legend(frameon=False, fontsize=9, title="trained on states that are")
    shares.set_ylabel("acceptance on right held-out rows")
    shares.set_ylim(0, 1)
    shares.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    open_axes(losses, shares)
    for axes in (losses, shares):
        axes.set_xlabel("training step")
        axes.set_xlim(0)
    figure.suptitle(title, fontsize=11)
    return figure


def _draw_curves(losses: "Axes", shares: "Axes", drafter: TrainedDrafter) -> None:
    points, colour = drafter.training.points, _COLOURS[drafter.name]
    steps = [point.step for point in points]
    losses.plot(steps, [point.loss for point in points], color=colour, label=drafter.name)
    for position, style in enumerate(_STYLES):
        values = [point.acceptance[position] for point in points]
        label = f"{drafter.name}, position {position + 1}"
        shares.plot(steps, values, style, color=colour, label=label)


def acceptance_numbers(found: Experiment) -> "pandas.DataFrame":
    """A line per bar: states, what it is judged on, position (0 = none), acceptance."""
    import pandas

    rows = []
    for drafter in (found.right, found.misfiled):
        bars = [(_SERVING, k, share) for k, share in enumerate(drafter.training.acceptance, 1)]
        bars += [(_OWN, k, share) for k, share in enumerate(drafter.own_split, 1)]
        bars += [(_TOKENS, 0, drafter.read_from_tokens), (_NEXT, 0, drafter.next_token_accuracy)]
        rows += [(drafter.name, *bar) for bar in bars]
    return pandas.DataFrame(rows, columns=["states", "judged_on", "position", "acceptance"])


@house_style
def plot_acceptance(numbers: "pandas.DataFrame", title: str) -> "Figure":
    """What serving would see, what the trainer sees, and what tells right from misfiled."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, len(_PANELS), sharey=True, width_ratios=(3, 3, 1.2, 1.2))
    for axes, (judged_on, label) in zip(panels, _PANELS.items(), strict=True):
        part = numbers[numbers["judged_on"] == judged_on]
        for shift, name in ((-0.2, "right"), (0.2, "misfiled")):
            bars = part[part["states"] == name]
            places = [position + shift for position in bars["position"]]
            axes.bar(places, bars["acceptance"], width=0.38, color=_COLOURS[name], label=name)
            for place, share in zip(places, bars["acceptance"], strict=True):
                axes.text(place, max(share, 0) + 0.015, f"{share:.2f}", ha="center", fontsize=8)
        axes.set_title(label, fontsize=9)
        if any(part["position"]):
            axes.set_xticks([1, 2, 3])
            axes.set_xlabel("position of the proposal")
        else:
            axes.set_xticks([])
            axes.set_xlim(-0.6, 0.6)
    open_axes(*panels)
    panels[0].set_ylim(0, 1)
    panels[0].set_ylabel("share of tokens")
    panels[1].legend(frameon=False, fontsize=9, title="states")
    figure.suptitle(title, fontsize=11)
    return figure
