"""A store's statistics as figures (matplotlib), each from one table."""

from typing import TYPE_CHECKING, Any, Literal

from hslib.drawing import (
    AMBER,
    BLUE,
    COLOURS,
    GREEN,
    INK,
    MARKERS,
    ORANGE,
    house_style,
    ink_on,
    legend_beside,
    new_figure,
    open_axes,
)

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@house_style
def plot_lengths(lengths: "pandas.DataFrame", title: str, longest_allowed: int = 0) -> "Figure":
    """Rows by length on a log axis.

    Args:
        lengths: a column ``num_tokens``, one line per row.
        longest_allowed: the job rejected rows with more tokens; 0 = not known.
    """
    import numpy as np

    tokens = lengths["num_tokens"].to_numpy()
    figure, axes = new_figure(title, 3.2)
    if not len(tokens):  # all rows of a shard may have been rejected
        return figure
    low, high = tokens.min(), max(tokens.max(), tokens.min() + 1)
    bins = np.geomspace(low, high, 30).tolist()
    axes.hist(tokens, bins=bins, color=BLUE, rwidth=0.94)
    _log_axis(axes, "x")
    axes.set_xlabel("tokens per row (log scale)")
    axes.set_ylabel("rows")
    _upright(axes, float(np.median(tokens)), f"median {np.median(tokens):g}", "--", "left")
    if longest_allowed:
        _upright(
            axes,
            longest_allowed,
            f"longest row the server takes: {longest_allowed:,}",
            ":",
            "right",
        )
    return figure


def _log_axis(axes: "Axes", name: Literal["x", "y"]) -> None:
    """A log axis labelled 1, 10, 100 instead of by powers; a short range gets 2 and 5 too."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    is_short = high / low < 30
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if is_short else (1.0,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _upright(axes: "Axes", at: float, words: str, style: str, side: str) -> None:
    axes.axvline(at, color=INK, linestyle=style, linewidth=1)
    axes.annotate(f" {words} ", (at, 1.0), xycoords=("data", "axes fraction"), va="top", ha=side)


@house_style
def plot_norms(norms: "pandas.DataFrame", title: str) -> "Figure":
    """Token norms of each state: boxes 25 to 75 %, whiskers 1 to 99 %.

    Args:
        norms: ``state`` and ``p1 .. p99``.
    """
    figure, axes = new_figure(title, 3.4)
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
        boxprops={"facecolor": (BLUE, 0.25), "edgecolor": BLUE},
        medianprops={"color": INK, "linewidth": 2.0},
        flierprops={"marker": "_", "markersize": 12, "markeredgecolor": ORANGE},
    )
    _log_axis(axes, "y")
    axes.set_ylabel("L2 norm of a token's state (log scale)")
    axes.set_xlabel("box: 25 to 75 %, line: median, orange: 5 and 95 %, whiskers: 1 and 99 %")
    return figure


@house_style
def plot_positions(positions: "pandas.DataFrame", title: str) -> "Figure":
    """Mean token norm by position: the first tokens one by one, later ones in bins.

    Args:
        positions: ``state, first, last, tokens, mean_l2, std_l2``.
    """
    import numpy as np

    figure, axes = new_figure(title, 3.4)
    for number, (state, lines) in enumerate(positions.groupby("state", sort=False)):
        lines = lines[lines["tokens"] > 0]
        middle = np.sqrt((lines["first"] + 1.0) * (lines["last"] + 1.0))
        mean, spread = lines["mean_l2"], lines["std_l2"]
        style = _style(number)
        axes.plot(middle, mean, label=str(state), **style)
        factor = 1 + spread / np.maximum(mean, 1e-30)
        colour = style["color"]
        axes.fill_between(middle, mean / factor, mean * factor, color=colour, alpha=0.2, lw=0)
    _log_axis(axes, "x")
    _log_axis(axes, "y")
    axes.set_xlabel("position in the row, from 1 (log scale; band: a relative standard deviation)")
    axes.set_ylabel("mean L2 norm (log scale)")
    legend_beside(axes)
    return figure


def _style(number: int) -> dict[str, Any]:
    """Colour and marker of the n-th state."""
    at = number % len(COLOURS)
    return {"color": COLOURS[at], "marker": MARKERS[at], "markersize": 4}


@house_style
def plot_similarity(similarity: "pandas.DataFrame", title: str) -> "Figure":
    """Mean cosine of every two states of one token: a coloured table with the numbers in it."""
    names, values = list(similarity.columns), similarity.to_numpy()
    figure, axes = new_figure(title, max(3.0, 1.2 + 0.5 * len(names)))
    low = min(0.0, values.min())
    image = axes.imshow(values, cmap="cividis", aspect="auto", vmin=low, vmax=1.0)
    axes.set_xticks(range(len(names)), names, rotation=0 if len(names) < 8 else 60)
    axes.set_yticks(range(len(names)), names)
    middle = (1.0 + low) / 2
    for row in range(len(names)):
        for column in range(len(names)):
            value = values[row, column]
            ink = ink_on(value > middle)
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink)
    figure.colorbar(image, ax=axes, label="mean cosine similarity")
    return figure


@house_style
def plot_spectrum(spectra: "pandas.DataFrame", title: str) -> "Figure":
    """Explained variance by number of components.

    Args:
        spectra: ``state, component, share, cumulative``.
    """
    figure, axes = new_figure(title, 3.4)
    for number, (state, lines) in enumerate(spectra.groupby("state", sort=False)):
        shares = lines["cumulative"] * 100
        axes.plot(lines["component"], shares, markevery=0.1, label=str(state), **_style(number))
    axes.axhline(90, color=INK, linestyle=":", linewidth=1)
    _log_axis(axes, "x")
    axes.set_ylim(0, 102)
    axes.set_xlabel("principal components (log scale)")
    axes.set_ylabel("variance explained (%)")
    legend_beside(axes)
    return figure


@house_style
def plot_compression(compared: "pandas.DataFrame", title: str) -> "Figure":
    """Bytes left by each method, with its speed.

    Args:
        compared: of :func:`hslib.stats.compare_compression`.
    """
    figure, axes = new_figure(title, 0.9 + 0.55 * len(compared))
    lossless = compared["lossless"].to_numpy(bool)
    axes.barh(
        compared["encoding"],
        compared["ratio"] * 100,
        color=[BLUE if exact else "none" for exact in lossless],
        hatch=["" if exact else "///" for exact in lossless],
        edgecolor=[BLUE if exact else AMBER for exact in lossless],
    )
    for row, line in enumerate(compared.itertuples()):
        words = f"{line.ratio:.0%}  {line.pack_mb_s:,.0f} MB/s in, {line.unpack_mb_s:,.0f} MB/s out"
        words += "" if line.lossless else f", error {line.relative_error:.1%}"
        axes.text(102, row, words, va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 180)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.axvline(100, color=INK, linewidth=1, linestyle=":")
    axes.set_xlabel("bytes left of the states (%); hatched: not lossless; speeds of one thread")
    return figure


@house_style
def plot_throughput(rates: "pandas.DataFrame", title: str) -> "Figure":
    """Rate and latency over the job's working time.

    Args:
        rates: of :func:`hslib.stats.rates_over_time`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True)
    open_axes(upper, lower)
    upper.set_title(title, fontsize=11)
    minutes = float(rates["to_minutes"].iloc[-1])
    unit, scale = ("seconds", 60.0) if minutes < 5 else ("minutes", 1.0)
    unit, scale = ("hours", 1 / 60) if minutes > 300 else (unit, scale)
    edges = [scale * edge for edge in (*rates["from_minutes"], minutes)]
    upper.stairs(rates["mb_per_s"], edges, color=BLUE, fill=True)
    upper.set_ylabel("MB/s stored")
    upper.set_ylim(bottom=0)
    for name, words, colour, style in (
        ("latency_p50_s", "median", GREEN, "-"),
        ("latency_p95_s", "95 %", ORANGE, "--"),
    ):
        lower.stairs(rates[name], edges, baseline=None, color=colour, ls=style, lw=1.8, label=words)
    lower.set_ylabel("request to commit (s)")
    highest = float(rates[["latency_p50_s", "latency_p95_s"]].max().max())
    lower.set_ylim(0, highest * 1.1 if highest > 0 else 1)
    lower.set_xlabel(f"{unit} of work (pauses left out)")
    lower.legend(frameon=False, fontsize=9, loc="lower left", ncols=2)
    return figure
