"""How every figure looks: colours, markers, one pair of axes (matplotlib).

Knows nothing of what is drawn.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: common kinds of colour blindness tell them apart, markers do so in print
BLUE, ORANGE, GREEN, PINK, AMBER, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, "#000000")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
GREY = "#999999"


def new_figure(title: str, height: float, width: float = 7.5) -> "tuple[Figure, Axes]":
    """A figure with one pair of axes; inches. 7.5 are 800 px on a screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11)
    open_axes(axes)
    return figure, axes


def open_axes(*panels: "Axes") -> None:
    """Without the lines above and to the right."""
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)


def legend_beside(axes: "Axes") -> None:
    """A legend right of the axes, where it hides nothing; none for unlabelled lines."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
