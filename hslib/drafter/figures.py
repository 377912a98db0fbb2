"""Drafter trainings as figures and tables (matplotlib). Knows nothing of trainers or files."""

from typing import TYPE_CHECKING

from hslib.drafter.experiment import Lesson, Outcome

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"right": "#0072B2", "misfiled": "#D55E00"}  # Okabe-Ito
_STYLES = ("-", "--", ":")


def draw(lesson: Lesson | None, title: str) -> "dict[str, tuple[Figure, pandas.DataFrame]]":
    """Both figures with the numbers behind them, by name; none for no lesson."""
    if lesson is None:
        return {}
    return {
        "learning": (learning_curves(lesson, title), curve_numbers(lesson)),
        "acceptance": (acceptance_bars(lesson, title), acceptance_numbers(lesson)),
    }


def curve_numbers(lesson: Lesson) -> "pandas.DataFrame":
    """A line a point: data, step, loss, acceptance by position."""
    import pandas

    rows = []
    for outcome in (lesson.right, lesson.misfiled):
        for point in outcome.training.points:
            shares = {f"acceptance_{k}": share for k, share in enumerate(point.acceptance, 1)}
            rows.append(
                {"states": outcome.name, "step": point.step, "loss_nats": point.loss, **shares}
            )
    return pandas.DataFrame(rows)


def learning_curves(lesson: Lesson, title: str) -> "Figure":
    """Loss in training, and acceptance on right held-out rows by position, both trainings."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.9), layout="constrained")
    losses, shares = figure.subplots(1, 2)
    for outcome in (lesson.right, lesson.misfiled):
        _draw(losses, shares, outcome)
    losses.set_ylabel("training loss (KL, nats, 3 positions)")
    losses.set_ylim(0)
    losses.legend(frameon=False, fontsize=9, title="trained on states that are")
    shares.set_ylabel("acceptance on right held-out rows")
    shares.set_ylim(0, 1)
    shares.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    for axes in (losses, shares):
        axes.set_xlabel("training step")
        axes.set_xlim(0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    return figure


def _draw(losses: "Axes", shares: "Axes", outcome: Outcome) -> None:
    points, colour = outcome.training.points, _COLOURS[outcome.name]
    steps = [point.step for point in points]
    losses.plot(steps, [point.loss for point in points], color=colour, label=outcome.name)
    for position, style in enumerate(_STYLES):
        shares.plot(
            steps,
            [point.acceptance[position] for point in points],
            style,
            color=colour,
            label=f"{outcome.name}, position {position + 1}",
        )


def acceptance_numbers(lesson: Lesson) -> "pandas.DataFrame":
    """A line a bar of :func:`acceptance_bars`."""
    import pandas

    rows = []
    for outcome in (lesson.right, lesson.misfiled):
        for judged, found in (
            ("right held-out rows (as in serving)", outcome.training.acceptance),
            ("its own held-out rows (as its trainer sees it)", outcome.own_split),
        ):
            rows += [
                {"states": outcome.name, "judged_on": judged, "position": k, "acceptance": share}
                for k, share in enumerate(found, 1)
            ]
        rows += [
            {"states": outcome.name, "judged_on": what, "position": 0, "acceptance": share}
            for what, share in (
                ("owed to the tokens it is given (position 1)", outcome.read_from_tokens),
                ("stored final state names its row's next token", outcome.next_token_accuracy),
            )
        ]
    return pandas.DataFrame(rows)


def acceptance_bars(lesson: Lesson, title: str) -> "Figure":
    """What serving would see, what the trainer sees, and what tells right from misfiled."""
    from matplotlib.figure import Figure

    numbers = acceptance_numbers(lesson)
    groups = (
        ("drafter in serving:\nright held-out rows", "right held-out"),
        ("the trainer's validation:\nits own held-out rows", "its own held-out"),
        ("owed to the\ntokens (pos. 1)", "owed to"),
        ("stored final names\nthe next token", "stored final"),
    )
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, len(groups), sharey=True, width_ratios=(3, 3, 1.2, 1.2))
    for axes, (label, begin) in zip(panels, groups, strict=True):
        part = numbers[numbers["judged_on"].str.startswith(begin)]
        for shift, name in ((-0.2, "right"), (0.2, "misfiled")):
            mine = part[part["states"] == name]
            places = [position + shift for position in mine["position"]]
            axes.bar(places, mine["acceptance"], width=0.38, color=_COLOURS[name], label=name)
            for place, share in zip(places, mine["acceptance"], strict=True):
                axes.text(place, max(share, 0) + 0.015, f"{share:.2f}", ha="center", fontsize=8)
        axes.set_title(label, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        if not any(part["position"]):
            axes.set_xticks([])
            axes.set_xlim(-0.6, 0.6)
        else:
            axes.set_xticks([1, 2, 3])
            axes.set_xlabel("position of the proposal")
    panels[0].set_ylim(0, 1)
    panels[0].set_ylabel("share of tokens")
    panels[1].legend(frameon=False, fontsize=9, title="states")
    figure.suptitle(title, fontsize=11)
    return figure
