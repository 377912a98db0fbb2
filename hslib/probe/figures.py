"""A probe's results as tables and figures (pandas, matplotlib)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hslib.drawing import BLUE, ORANGE, house_style, ink_on, new_figure
from hslib.probe.head import HeadReading
from hslib.probe.layers import SAME, ProbeReport

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_COLUMNS = 24  # labels of more than these would overlap


def layer_table(report: ProbeReport) -> "pandas.DataFrame":
    """A line per stored state: what it claims, what it is, how far off that and the next are."""
    import pandas

    rows = [
        {
            "stored as": finding.claimed,
            "nearest state of the reference": finding.nearest,
            "relative error": _about(finding.error),
            "next nearest": f"{finding.runner_up} ({_about(finding.runner_up_error)})",
            "finding": finding.match,
        }
        for finding in report.findings
    ]
    return pandas.DataFrame(rows).set_index("stored as")


def _about(error: float) -> str:
    """Coarse on purpose: two runs of one server differ in the last bits."""
    if error >= 1:
        return "> 100 %"
    return "< 2 %" if error < 0.02 else "< 10 %" if error < 0.1 else f"> {int(error * 10)}0 %"


def error_table(report: ProbeReport) -> "pandas.DataFrame":
    """The numbers of :func:`plot_errors`, a line per cell."""
    import pandas

    rows = [
        {"stored_as": claim, "reference": column, "relative_error": report.errors[i, j]}
        for i, claim in enumerate(report.claims)
        for j, column in enumerate(report.columns)
    ]
    return pandas.DataFrame(rows)


@house_style
def plot_errors(report: ProbeReport, title: str) -> "Figure":
    """Relative error of every stored state (down) to every reference state (across), log scale.

    A ring marks what the manifest claims, a dot the nearest; in a right store they coincide.
    """
    from matplotlib.colors import LogNorm

    errors = np.clip(report.errors, 1e-3, 2.0)
    rows, columns = errors.shape
    figure, axes = new_figure(title, 1.9 + 0.5 * rows, max(7.5, min(0.62 * columns, 14)))
    image = axes.imshow(errors, norm=LogNorm(1e-3, 2.0), cmap="cividis", aspect="auto")
    step = -(-columns // _MOST_COLUMNS)
    shown = sorted({*range(0, columns - 2, step), *range(max(0, columns - 2), columns)})
    axes.set_xticks(shown, [_wrapped(report.columns[j]) for j in shown], fontsize=8)
    axes.set_yticks(range(rows), [_wrapped(claim) for claim in report.claims])
    axes.set_xlabel("state of the reference (boundary)")
    axes.set_ylabel("stored as")
    for row, claim in enumerate(report.claims):
        nearest = int(np.argmin(report.errors[row]))
        if claim in report.columns:
            at = report.columns.index(claim)
            ink = _ink_on(errors[row, at])
            axes.plot(at, row, "o", mfc="none", mec=ink, ms=17, mew=2.0)
        axes.plot(nearest, row, "o", color=_ink_on(errors[row, nearest]), ms=5)
        if columns <= _MOST_COLUMNS:
            _write_errors(axes, errors[row], row, nearest)
    bar = figure.colorbar(image, ax=axes, pad=0.01)
    bar.set_label("relative error, log scale")
    bar.ax.axhline(SAME, color="white", linewidth=1.5)
    figure.supxlabel(
        "ring: what the manifest claims · dot: the nearest state · "
        f"line in the bar: {SAME:.0%}, the most that one and the same state may be off",
        fontsize=8,
    )
    return figure


def _write_errors(axes: "Axes", errors: np.ndarray, row: int, nearest: int) -> None:
    for column, error in enumerate(errors):
        if column != nearest:
            axes.text(
                column,
                row,
                f"{error:.0%}" if error < 1 else ">100%",
                ha="center",
                va="center",
                fontsize=7,
                color=_ink_on(error),
            )


def _ink_on(error: float) -> str:
    return ink_on(error > 0.15)


def _wrapped(name: str) -> str:
    """With line breaks: two names stand side by side."""
    return name.replace(" (", "\n").replace(" norm)", "\nnorm")


def head_table(readings: Sequence[HeadReading]) -> "pandas.DataFrame":
    """A line per stored state: what the head makes of it."""
    import pandas

    rows = [
        {
            "state, through norm and head": reading.state,
            "next token right": reading.accuracy,
            "mean log probability (nats)": reading.mean_logprob,
            "off the server's (nats)": reading.server_error,
        }
        for reading in readings
    ]
    return pandas.DataFrame(rows)


@house_style
def plot_head(readings: Sequence[HeadReading], title: str) -> "Figure":
    """Share of real next tokens that the head ranks first, by stored state."""
    figure, axes = new_figure(title, 0.8 + 0.45 * len(readings))
    names = [reading.state for reading in readings]
    shares = [reading.accuracy for reading in readings]
    colours = [ORANGE if name.startswith("final") else BLUE for name in names]
    axes.barh(range(len(names)), shares, color=colours)
    for number, share in enumerate(shares):
        axes.text(share + 0.01, number, f"{share:.0%}", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.05)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    axes.set_xlabel("share of real next tokens that the model's head ranks first")
    axes.set_ylabel("stored as")
    return figure
