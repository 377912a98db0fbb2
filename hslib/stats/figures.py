"""Tables to figures (matplotlib). Knows nothing of stores or files."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe-Ito, told apart by all common kinds of colour vision; markers tell states apart in print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"


def _new(title: str, height: float = 3.4) -> "tuple[Figure, Axes]":
    """One pair of axes, 7.5 inches wide: 800 px on a screen, a column and a half in print."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _log(axes: "Axes", which: str) -> None:
    """A log axis labelled 1, 10, 100 and not by powers, with labels between in a short range."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log"})
    low, high = axis.get_view_interval()
    short = high / low < 30
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def length_histogram(numbers: "pandas.DataFrame", title: str, longest_allowed: int = 0) -> "Figure":
    """Rows by length on a log axis.

    Args:
        numbers: a column ``num_tokens``, one line a row.
        longest_allowed: tokens where longer rows were cut off from the job; 0 = not known.
    """
    import numpy as np

    lengths = numbers["num_tokens"].to_numpy()
    figure, axes = _new(title, height=3.2)
    low, high = lengths.min(), max(lengths.max(), lengths.min() + 1)
    bins = np.geomspace(low, high, 30).tolist()
    axes.hist(lengths, bins=bins, color=COLOURS[0], edgecolor="white")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("tokens a row (log scale)")
    axes.set_ylabel("rows")
    _upright(axes, float(np.median(lengths)), f"median {np.median(lengths):g}", "--", "left")
    if longest_allowed:
        _upright(axes, longest_allowed, f"cut: {longest_allowed:,} tokens", ":", "right")
    return figure


def _upright(axes: "Axes", at: float, words: str, style: str, side: str) -> None:
    axes.axvline(at, color="black", linestyle=style, linewidth=1)
    axes.annotate(
        f" {words} ",
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        va="top",
        ha="left" if side == "left" else "right",
    )


def norm_boxes(norms: "pandas.DataFrame", title: str) -> "Figure":
    """Token norms of each state: box 25 to 75 %, whiskers 1 to 99 %, with the tail marks between.

    Args:
        norms: ``state`` and ``p1 .. p99``.
    """
    figure, axes = _new(title)
    boxes = [
        {
            "label": str(line.state),
            "whislo": line.p1,
            "q1": line.p25,
            "med": line.p50,
            "q3": line.p75,
            "whishi": line.p99,
            "fliers": [line.p5, line.p95],
        }
        for line in norms.itertuples()
    ]
    axes.bxp(
        boxes,
        patch_artist=True,
        widths=0.5,
        boxprops={"facecolor": "#9ecae8", "edgecolor": COLOURS[0]},
        medianprops={"color": "black", "linewidth": 1.5},
        flierprops={"marker": "_", "markersize": 12, "markeredgecolor": COLOURS[1]},
    )
    _log(axes, "y")
    axes.set_ylabel("L2 norm of a token's state (log scale)")
    axes.set_xlabel("box: 25 to 75 %, line: median, orange: 5 and 95 %, whiskers: 1 and 99 %")
    return figure


def norm_by_position(positions: "pandas.DataFrame", title: str) -> "Figure":
    """Mean token norm by position; the first tokens stand alone, later ones in bins.

    Args:
        positions: ``state, first, last, tokens, mean_l2, std_l2``.
    """
    import numpy as np

    figure, axes = _new(title)
    for number, (state, lines) in enumerate(positions.groupby("state", sort=False)):
        lines = lines[lines["tokens"] > 0]
        middle = np.sqrt((lines["first"] + 1.0) * (lines["last"] + 1.0))
        colour = COLOURS[number % len(COLOURS)]
        mean, spread = lines["mean_l2"], lines["std_l2"]
        axes.plot(
            middle, mean, color=colour, marker=_MARKERS[number % 7], markersize=4, label=str(state)
        )
        factor = 1 + spread / np.maximum(mean, 1e-30)
        axes.fill_between(middle, mean / factor, mean * factor, color=colour, alpha=0.12, lw=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    _log(axes, "y")
    axes.set_xlabel("position in the row, from 1 (log scale; band: a relative standard deviation)")
    axes.set_ylabel("mean L2 norm (log scale)")
    _legend(figure, axes)
    return figure


def _legend(figure: "Figure", axes: "Axes") -> None:
    """Beside the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)


def similarity_map(similarity: "pandas.DataFrame", title: str) -> "Figure":
    """Mean cosine of every two states of a token, as a table of colours with the numbers in it."""
    names, values = list(similarity.columns), similarity.to_numpy()
    figure, axes = _new(title, height=max(3.0, 1.2 + 0.5 * len(names)))
    low = min(0.0, values.min())
    image = axes.imshow(values, cmap="cividis", aspect="auto", vmin=low, vmax=1.0)
    axes.set_xticks(range(len(names)), names, rotation=0 if len(names) < 8 else 60)
    axes.set_yticks(range(len(names)), names)
    dark = (1.0 + low) / 2
    for row in range(len(names)):
        for column in range(len(names)):
            value = values[row, column]
            colour = "black" if value > dark else "white"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=axes, label="mean cosine similarity")
    return figure


def spectrum(spectra: "pandas.DataFrame", title: str) -> "Figure":
    """Explained variance by number of components.

    Args:
        spectra: ``state, component, share, cumulative``.
    """
    figure, axes = _new(title)
    for number, (state, lines) in enumerate(spectra.groupby("state", sort=False)):
        axes.plot(
            lines["component"],
            lines["cumulative"] * 100,
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKERS[number % 7],
            markersize=4,
            markevery=0.1,
            label=str(state),
        )
    axes.axhline(90, color="grey", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 102)
    axes.set_xlabel("principal components (log scale)")
    axes.set_ylabel("variance explained (%)")
    _legend(figure, axes)
    return figure


def compressibility(table: "pandas.DataFrame", title: str) -> "Figure":
    """What is left of the bytes by each method, with its speed.

    Args:
        table: of :func:`hslib.stats.compression.compare`.
    """
    figure, axes = _new(title, height=0.9 + 0.55 * len(table))
    lossless = table["lossless"].to_numpy(bool)
    axes.barh(
        table["method"],
        table["ratio"] * 100,
        color=[COLOURS[0] if exact else COLOURS[4] for exact in lossless],
        hatch=["" if exact else "//" for exact in lossless],
        edgecolor="white",
    )
    words = [
        f"{line.ratio:.0%}  {line.pack_mb_s:,.0f} MB/s in, {line.unpack_mb_s:,.0f} MB/s out"
        + ("" if line.lossless else f", error {line.relative_error:.1%}")
        for line in table.itertuples()
    ]
    for row, text in enumerate(words):
        axes.text(102, row, text, va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 180)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.axvline(100, color="grey", linewidth=1, linestyle=":")
    axes.set_xlabel("bytes left of the states (%); hatched: not lossless; speeds of one thread")
    return figure


def throughput(table: "pandas.DataFrame", title: str) -> "Figure":
    """Rate and latency over the job's working time.

    Args:
        table: of :func:`hslib.stats.throughput.over_time`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    upper.set_title(title, fontsize=11)
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    minutes = float(table["to_minutes"].iloc[-1])
    unit, scale = ("seconds", 60.0) if minutes < 5 else ("minutes", 1.0)
    unit, scale = ("hours", 1 / 60) if minutes > 300 else (unit, scale)
    edges = [scale * edge for edge in (*table["from_minutes"], minutes)]
    upper.stairs(table["mb_per_s"], edges, color=COLOURS[0], fill=True, alpha=0.8)
    upper.set_ylabel("MB/s stored")
    upper.set_ylim(bottom=0)
    for name, words, colour, style in (
        ("latency_p50_s", "median", COLOURS[2], "-"),
        ("latency_p95_s", "95 %", COLOURS[1], "--"),
    ):
        lower.stairs(table[name], edges, baseline=None, color=colour, ls=style, lw=1.8, label=words)
    lower.set_ylabel("request to commit (s)")
    highest = float(table[["latency_p50_s", "latency_p95_s"]].max().max())
    lower.set_ylim(0, highest * 1.1 if highest > 0 else 1)
    lower.set_xlabel(f"{unit} of work (pauses left out)")
    lower.legend(frameon=False, fontsize=9, loc="lower left", ncols=2)
    return figure


FIGURES: dict[str, Callable[..., "Figure"]] = {
    "lengths": length_histogram,
    "norms": norm_boxes,
    "positions": norm_by_position,
    "similarity": similarity_map,
    "spectrum": spectrum,
    "compressibility": compressibility,
    "throughput": throughput,
}
