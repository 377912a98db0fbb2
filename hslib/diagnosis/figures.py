"""The diagnosis as figures (matplotlib), from :func:`~hslib.diagnosis.tables.sample_table`."""

from typing import TYPE_CHECKING

import numpy as np

from hslib.drawing import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    INK,
    MARKERS,
    ORANGE,
    PINK,
    SKY,
    house_style,
    legend_beside,
    new_figure,
)

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

_COLOURS = (ORANGE, BLUE, GREEN, PINK, AMBER, SKY)


@house_style
def plot_got(numbers: "pandas.DataFrame", title: str) -> "Figure":
    """Tokens got over tokens expected, a point per sample, with the diagonal of agreement."""
    figure, axes = new_figure(title, 4.6)
    known = numbers.dropna(subset=["expected", "got"])
    highest = max(2, int(known[["expected", "got"]].max().max())) if len(known) else 2
    axes.plot([1, highest], [1, highest], color=INK, linewidth=1, linestyle="--", zorder=1)
    axes.annotate(
        "got = expected", (0.97, 0.99), xycoords="axes fraction", ha="right", va="top", fontsize=9
    )
    for code, colour, marker in _styles(known):
        rows = known[known["cause"] == code]
        axes.scatter(
            rows["expected"].astype(float),
            rows["got"].astype(float),
            s=_size(len(known)),
            color=colour,
            marker=marker,
            label=f"{code} ({len(rows)})",
            zorder=2 if code == "agrees" else 3,
            linewidths=0,
        )
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("tokens expected (log scale)")
    axes.set_ylabel("tokens got (log scale)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    legend_beside(axes)
    return figure


@house_style
def plot_lags(numbers: "pandas.DataFrame", title: str) -> "Figure":
    """The lag of the stream of dumps at each sample, in samples."""
    figure, axes = new_figure(title, 3.2)
    known = numbers.dropna(subset=["lag"])
    axes.set_xlabel("sample (index in the dataset)")
    axes.set_ylabel("lag (samples)")
    if not len(known):
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no alignment: no evidence of a shift", ha="center", va="center",
                  transform=axes.transAxes)  # fmt: skip
        return figure
    axes.axhline(0, color=INK, linewidth=1, linestyle="--")
    x, y = known["sample"].to_numpy(), known["lag"].to_numpy(dtype=float)
    axes.step(x, y, where="mid", color=BLUE, linewidth=1.2)
    if len(known) <= 200:
        axes.scatter(x, y, color=BLUE, s=22, label="aligned", zorder=3)
    foreign = known[known["cause"] == "foreign"]
    if len(foreign):
        axes.scatter(foreign["sample"], foreign["lag"].astype(float), color=ORANGE, s=70,
                     marker="X", label=f"foreign dump ({len(foreign)})", zorder=4)  # fmt: skip
    _whole_ticks(axes, y, x)
    legend_beside(axes)
    return figure


@house_style
def plot_differences(numbers: "pandas.DataFrame", title: str) -> "Figure":
    """Samples by tokens got minus tokens expected, of those that differ."""
    figure, axes = new_figure(title, 3.2)
    differing = numbers.dropna(subset=["difference"])
    differing = differing[differing["difference"] != 0]
    axes.set_xlabel("tokens got minus tokens expected")
    axes.set_ylabel("samples")
    if not len(differing):
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no length differs", ha="center", transform=axes.transAxes)
        return figure
    values = differing["difference"].to_numpy(dtype=float)
    edges = _edges(values)
    codes = [(c, colour) for c, colour, _ in _styles(differing) if c != "agrees"]
    parts = [values[(differing["cause"] == code).to_numpy()] for code, _ in codes]
    axes.hist(
        parts,
        bins=edges.tolist(),
        stacked=True,
        color=[colour for _, colour in codes],
        label=[f"{code} ({len(part)})" for (code, _), part in zip(codes, parts, strict=True)],
        rwidth=0.94,
    )
    axes.axvline(0, color=INK, linewidth=1, linestyle="--")
    axes.yaxis.set_major_locator(_whole_numbers())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    legend_beside(axes)
    return figure


def _styles(numbers: "pandas.DataFrame") -> list[tuple[str, str, str]]:
    """(cause, colour, marker), the greatest cause first; "agrees" is grey and drawn first."""
    counts = numbers["cause"].value_counts()
    codes = [code for code in counts.index if code != "agrees"]
    styles = [
        (code, _COLOURS[at % len(_COLOURS)], MARKERS[at % len(MARKERS)])
        for at, code in enumerate(codes)
    ]
    return [("agrees", GREY, "."), *styles] if "agrees" in counts else styles


def _size(count: int) -> float:
    return float(np.clip(4000 / max(1, count), 6, 60))


def _edges(values: np.ndarray) -> np.ndarray:
    low, high = values.min(), values.max()
    if high - low <= 60:
        return np.arange(low - 0.5, high + 1.5)
    return np.linspace(low, high, 41)


def _whole_ticks(axes: "Axes", lags: np.ndarray, samples: np.ndarray) -> None:
    low, high = min(0.0, lags.min()), max(0.0, lags.max())
    margin = max(0.5, 0.1 * (high - low))
    axes.set_ylim(low - margin, high + margin)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(_whole_numbers())
    axes.xaxis.set_major_formatter("{x:,.0f}" if samples.max() > 9999 else "{x:.0f}")


def _whole_numbers() -> "MaxNLocator":
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins="auto", integer=True)
