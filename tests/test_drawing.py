"""Every figure can be read on a light page and on a dark one."""

import ast
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from make.logs import observed
from make.stores import made_up_rows, write_store
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import Image

from hslib import diagnosis, drawing, notebook, stats
from hslib.diagnosis import tables
from hslib.drafter.eagle3 import Point, Training
from hslib.drafter.encodings import EncodingComparison
from hslib.drafter.experiment import Experiment, TrainedDrafter
from hslib.drafter.figures import acceptance_numbers, plot_acceptance, plot_learning
from hslib.drafter.on_policy import OnPolicy
from hslib.probe import figures as probe_figures
from hslib.probe.head import HeadReading
from hslib.probe.layers import ProbeReport

PACKAGE = Path(drawing.__file__).parent
GROUNDS = {"white": (255, 255, 255), "dark": (0x11, 0x11, 0x11)}
LEAST, LEAST_OF_INK = 3.0, 4.3  # WCAG 2's for graphics; what one grey can have on both grounds


def luminance(colours: np.ndarray) -> np.ndarray:
    """WCAG 2's relative luminance of colours uint8 ``[..., 3]``."""
    shares = np.asarray(colours) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    found: np.ndarray = linear @ np.array([0.2126, 0.7152, 0.0722])
    return found


def contrast(colours: np.ndarray) -> np.ndarray:
    """The smaller of the ratios against the two grounds."""
    ratios = []
    for ground in GROUNDS.values():
        a, b = luminance(colours) + 0.05, luminance(np.array(ground)) + 0.05
        ratios.append(np.maximum(a, b) / np.minimum(a, b))
    return np.minimum(*ratios)


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])


def test_ink_and_colours_have_contrast_on_both_grounds() -> None:
    assert contrast(rgb(drawing.INK)) > LEAST_OF_INK
    for colour in (*drawing.COLOURS, drawing.GREY):
        assert contrast(rgb(colour)) > LEAST, colour
    assert contrast(rgb("#999999")) < LEAST, "the measure can fail"


SHARES = ((0.8, 0.6, 0.5), (0.82, 0.63, 0.5))


def drafters() -> Experiment:
    points = tuple(Point(n, 5.0 - n / 40, (0.1 + n / 200, 0.1, 0.05)) for n in range(0, 101, 20))
    last = (0.6, 0.4, 0.3)
    pair = [
        TrainedDrafter(name, Training(points, Path()), last, last, 0.5)
        for name in ("right", "misfiled")
    ]
    return Experiment(pair[0], pair[1], last)


def layers() -> ProbeReport:
    claims = ("2", "final (after norm)")
    columns = ("0", "1", "2", "3", "final (after norm)")
    return ProbeReport(
        claims, columns, np.array([[1, 0.6, 0.01, 0.4, 2], [2, 2, 2, 1, 0.01]]), (), 4
    )


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    """One of each kind, by its function's name."""
    store = write_store(tmp_path_factory.mktemp("drawing") / "store", made_up_rows(24))
    found = stats.measure(store)
    compared = stats.compare_compression(stats.draw_states(store, 0, 100_000))
    shifted, unknown = (
        tables.sample_table(diagnosis.diagnose_counts(observed(code, 1)))
        for code in ("shift", "unknown")
    )
    readings = [HeadReading("boundary 2", 0.2, -3.0), HeadReading("final", 0.7, -1.0)]
    title = "demo, 24 samples"
    return {
        "plot_lengths": stats.plot_lengths(found.masks, title, 400),
        "plot_norms": stats.plot_norms(found.norms, title),
        "plot_positions": stats.plot_positions(found.positions, title),
        "plot_similarity": stats.plot_similarity(found.similarity, title),
        "plot_spectrum": stats.plot_spectrum(found.spectra, title),
        "plot_compression": stats.plot_compression(compared, title),
        "plot_throughput": stats.plot_throughput(
            stats.rates_over_time(store.entries.values()), title
        ),
        "plot_got": diagnosis.plot_got(shifted, title),
        "plot_lags": diagnosis.plot_lags(shifted, title),
        "plot_differences": diagnosis.plot_differences(unknown, title),
        "plot_errors": probe_figures.plot_errors(layers(), title),
        "plot_head": probe_figures.plot_head(readings, title),
        "plot_learning": plot_learning(drafters(), title),
        "plot_acceptance": plot_acceptance(acceptance_numbers(drafters()), title),
        "plot": OnPolicy((0.5, 0.3, 0.2), (0.6, 0.4, 0.2)).plot(title),
        "plot_encodings": EncodingComparison(SHARES, SHARES[::-1], True).plot(title),
    }


NAMES = ["plot_lengths", "plot_norms", "plot_positions", "plot_similarity", "plot_spectrum"]
NAMES += ["plot_compression", "plot_throughput", "plot_got", "plot_lags", "plot_differences"]
NAMES += ["plot_errors", "plot_head", "plot_learning", "plot_acceptance", "plot"]
NAMES += ["plot_encodings"]


def without_maps(figure: Figure) -> None:
    """A map has its own ground: hidden, with what is drawn on it."""
    for artist in figure.findobj(lambda one: isinstance(one, AxesImage | QuadMesh)):
        artist.set_visible(False)
        for drawn in (*artist.axes.texts, *artist.axes.lines):
            drawn.set_visible(False)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_figure_has_no_ground_and_contrast_on_both(
    figures: dict[str, Figure], name: str, tmp_path: Path
) -> None:
    without_maps(figures[name])
    notebook.save_figure(figures[name], pd.DataFrame(), tmp_path, name)
    with Image.open(tmp_path / f"figures/{name}.png") as image:
        pixels = np.asarray(image.convert("RGBA"))
    colours, alpha = pixels[..., :3], pixels[..., 3]
    edges = np.concatenate([alpha[0], alpha[-1], alpha[:, 0], alpha[:, -1]])
    assert not edges.any(), "transparent"
    opaque, counts = np.unique(colours[alpha == 255], axis=0, return_counts=True)
    weak = contrast(opaque) < 2.9  # where two colours meet, one between them
    assert counts[weak].sum() < 0.002 * counts.sum(), opaque[weak][:5]
    is_ink = np.abs(opaque.astype(int) - rgb(drawing.INK)).max(axis=1) <= 2
    assert counts[is_ink].sum() > 500, "texts and axes are in ink"


def test_every_function_that_draws_is_in_the_house_style() -> None:
    drawing_functions = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.FunctionDef)
                and ast.unparse(node.returns or node) == "'Figure'"
            ):
                styles = [ast.unparse(decorator) for decorator in node.decorator_list]
                drawing_functions[f"{path.relative_to(PACKAGE)}: {node.name}"] = styles
    drawing_functions.pop("drawing.py: drawn")  # the decorator itself
    assert len(drawing_functions) >= len(NAMES)
    assert all("house_style" in styles for styles in drawing_functions.values()), drawing_functions
