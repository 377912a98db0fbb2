"""Tables to figures (matplotlib). Knows nothing of stores or files."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_BLUE = "#0072B2"  # Okabe-Ito, told apart by all common kinds of colour vision


def length_histogram(numbers: "pandas.DataFrame", title: str) -> "Figure":
    """Rows by length on a log axis.

    Args:
        numbers: a column ``num_tokens``, one line a row.
    """
    import numpy as np
    from matplotlib.figure import Figure

    lengths = numbers["num_tokens"].to_numpy()
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    axes = figure.subplots()
    low, high = lengths.min(), max(lengths.max(), lengths.min() + 1)
    axes.hist(lengths, bins=np.geomspace(low, high, 30).tolist(), color=_BLUE, edgecolor="white")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("tokens a row (log scale)")
    axes.set_ylabel("rows")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(float(np.median(lengths)), color="black", linestyle="--", linewidth=1)
    axes.annotate(
        f" median {np.median(lengths):g}",
        (float(np.median(lengths)), 1.0),
        xycoords=("data", "axes fraction"),
        va="top",
    )
    return figure
