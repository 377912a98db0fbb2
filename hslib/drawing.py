"""How every figure looks: ink, colours, markers, one pair of axes (matplotlib).

Knows nothing of what is drawn.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Figures have no ground, so that they stand on a light and on a dark page alike. Contrast is
# WCAG 2's: (L + 0.05) / (l + 0.05) of the relative luminances. White against #111 (JupyterLab's
# dark theme) is 18.9, so no ink has more than sqrt(18.9) = 4.35 on both: this grey has that.
INK = "#797979"
# Okabe and Ito's palette: common kinds of colour blindness tell them apart, markers do so in print.
# AMBER and SKY are darker than theirs, GREY than usual: each has 3.0 or more on white and on #111.
BLUE, ORANGE, GREEN, PINK, AMBER, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#B57F00",
    "#3D94C9",
)
COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, INK)
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
GREY = "#888888"

_INKED = ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"]
_INKED += ["boxplot.whiskerprops.color", "boxplot.capprops.color"]
_STYLE = {"figure.facecolor": "none", "axes.facecolor": "none", **dict.fromkeys(_INKED, INK)}

_P = ParamSpec("_P")


def house_style(draw: "Callable[_P, Figure]") -> "Callable[_P, Figure]":
    """The decorator of every function that draws: no ground, texts and axes in :data:`INK`."""

    @wraps(draw)
    def drawn(*args: _P.args, **kwargs: _P.kwargs) -> "Figure":
        import matplotlib

        with matplotlib.rc_context(_STYLE):
            figure = draw(*args, **kwargs)
        for axes in figure.axes:  # its ticks are made later, when it is rendered
            axes.tick_params(which="both", colors=INK)
        return figure

    return drawn


def ink_on(is_light: bool) -> str:
    """Black or white: for what is written on a coloured cell of a map."""
    return "black" if is_light else "white"


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
