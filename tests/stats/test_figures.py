"""Every figure: drawn from its table, titled, with labelled axes, within 800 pixels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from make.stores import DEMO_BOUNDARIES, demo_rows, write_store
from matplotlib.figure import Figure

from hslib import notebook, stats

FIGURES: dict[str, Callable[..., Figure]] = {
    "lengths": stats.plot_lengths,
    "norms": stats.plot_norms,
    "positions": stats.plot_positions,
    "similarity": stats.plot_similarity,
    "spectrum": stats.plot_spectrum,
    "compression": stats.plot_compression,
    "throughput": stats.plot_throughput,
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    store = write_store(
        tmp_path_factory.mktemp("figures") / "store", demo_rows(32), DEMO_BOUNDARIES
    )
    found = stats.measure(store)
    return {
        "lengths": found.masks,
        "norms": found.norms,
        "positions": found.positions,
        "similarity": found.similarity,
        "spectrum": found.spectra,
        "compression": stats.compare_compression(stats.draw_states(store, 0, 100_000)),
        "throughput": stats.rates_over_time(store.entries.values()),
    }


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_figure_has_title_labels_and_a_csv_beside_it(
    tables: dict[str, pd.DataFrame], name: str, tmp_path: Path
) -> None:
    figure = FIGURES[name](tables[name], "demo, 32 samples")
    assert figure.axes[0].get_title() == "demo, 32 samples"
    assert all(
        axes.get_ylabel() or axes.get_xlabel() or name == "similarity" for axes in figure.axes
    )
    notebook.save_figure(figure, tables[name], tmp_path, name)
    assert (tmp_path / f"figures/{name}.png").stat().st_size > 5000
    numbers = pd.read_csv(tmp_path / f"figures/{name}.csv")
    assert len(numbers) == len(tables[name])
    assert figure.get_figwidth() == 7.5


def drawn(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_the_longest_row_that_the_server_takes_is_drawn_where_it_is_known(
    tables: dict[str, pd.DataFrame],
) -> None:
    with_limit = stats.plot_lengths(tables["lengths"], "x", longest_allowed=4090)
    assert " longest row the server takes: 4,090 " in drawn(with_limit)
    without = stats.plot_lengths(tables["lengths"], "x")
    assert not [text for text in drawn(without) if "takes" in text]


def test_the_map_shows_its_numbers_in_ink_that_can_be_read() -> None:
    names = ["a", "b"]
    values = pd.DataFrame([[1.0, -0.5], [-0.5, 1.0]], index=names, columns=names)
    texts = stats.plot_similarity(values, "x").axes[0].texts
    assert [(t.get_text(), t.get_color()) for t in texts[:2]] == [
        ("1.00", "black"),
        ("-0.50", "white"),
    ]


@pytest.mark.parametrize(
    ("minutes", "unit"), [(0.5, "seconds"), (60.0, "minutes"), (600.0, "hours")]
)
def test_time_is_in_the_unit_that_suits_it(minutes: float, unit: str) -> None:
    table = pd.DataFrame(
        {
            "from_minutes": [0.0, minutes / 2],
            "to_minutes": [minutes / 2, minutes],
            "mb_per_s": [1.0, 2.0],
            "latency_p50_s": [1.0, np.nan],
            "latency_p95_s": [2.0, np.nan],
        }
    )
    assert stats.plot_throughput(table, "x").axes[1].get_xlabel().startswith(unit)


@pytest.mark.parametrize("draw", [stats.plot_norms, stats.plot_positions])
def test_many_decades_get_labels_of_powers_of_ten_written_out(draw: Callable[..., Figure]) -> None:
    quantiles = {f"p{q}": [0.01 * q, 1000.0 * q] for q in (1, 5, 25, 50, 75, 95, 99)}
    table = pd.DataFrame({"state": ["boundary 2", "final"]} | quantiles)
    if draw is stats.plot_positions:
        table = pd.DataFrame(
            {
                "state": ["final"] * 2,
                "first": [0, 8],
                "last": [0, 15],
                "tokens": [5, 40],
                "mean_l2": [0.01, 90_000.0],
                "std_l2": [0.001, 10.0],
            }
        )
    figure = draw(table, "x")
    figure.canvas.draw()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert "100" in labels
