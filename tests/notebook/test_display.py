"""What notebooks show: rounded numbers, scrolling tables, bars that leave only words behind."""

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hslib import notebook
from hslib.notebook.live import LiveOutput
from hslib.parameters import StatisticsParameters


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2.880739, "2.9"),
        (43.307, "43"),
        (1234.5, "1,200"),
        (99.7, "100"),
        (-99.7, "-100"),
        (0.0, "0"),
        (0.00012345, "0.00012"),
        (float("nan"), ""),
        (math.inf, "inf"),
        (7, 7),
        ("final", "final"),
        (True, True),
    ],
)
def test_numbers_keep_two_digits_and_other_things_stay(value: Any, shown: Any) -> None:
    assert notebook.rounded(pd.DataFrame({"x": [value]})).loc[0, "x"] == shown


def test_a_column_near_zero_gets_decimals_and_no_negative_zero() -> None:
    table = pd.DataFrame({"mean": [-0.003, 0.0482], "std": [1.5039, 2.0]})
    assert notebook.rounded(table, mean=2)["mean"].tolist() == ["0.00", "0.05"]


def test_the_last_bits_of_a_sum_do_not_show() -> None:
    table = pd.DataFrame({"x": [26.570159, 0.870988]})
    assert notebook.rounded(table).equals(notebook.rounded(table * (1 + 1e-5)))
    assert not notebook.rounded(table).equals(notebook.rounded(table * 1.1))


def test_a_long_table_scrolls_and_an_empty_one_is_words() -> None:
    long = notebook.long_table(pd.DataFrame({"index": range(500), "x": ["<b>"] * 500}), "Nothing.")
    text = long._repr_html_()
    assert "overflow:auto" in text
    assert text.count("<tr") == 501
    assert "<b>" not in text
    assert notebook.long_table(pd.DataFrame(), "Nothing wrong.").data == "Nothing wrong."


def test_tables_keep_their_alignment_where_a_notebook_is_not_trusted() -> None:
    """JupyterLab takes a <style> out of such a one's outputs, and keeps inline styles."""
    facts = notebook.table({"rows": 3, "model": "<x>"}, ("run", ""))
    wide = notebook.wide(pd.DataFrame({"cause": ["long " * 50], "samples": [3]}))
    for shown in (facts, wide, notebook.long_table(pd.DataFrame({"a": ["x"]}))):
        text = shown._repr_html_()
        assert "<style" not in text and "text-align:left" in text
    assert "text-align:right" in wide._repr_html_(), "numbers"
    assert "&lt;x&gt;" in facts._repr_html_()
    assert repr(facts) == "rows   3\nmodel  <x>"


def test_a_verdict_is_words_that_break_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    notebook.verdict("All is <well>.", "", "Twice.")
    assert shown[0]["text/plain"] == "All is <well>.\nTwice."
    assert shown[0]["text/html"].count("<p style") == 2
    assert "word-break:normal" in shown[0]["text/html"]


def test_metrics_of_several_cells_are_merged(tmp_path: Path) -> None:
    config = StatisticsParameters(run_dir=str(tmp_path))
    notebook.save_metrics(config, ok=3)
    path = notebook.save_metrics(config, anomalies=0)
    assert json.loads(path.read_text()) == {"anomalies": 0, "ok": 3}


def test_a_bar_leaves_only_words(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        LiveOutput,
        "show",
        lambda _self, content, is_last: shown.append((content.data, is_last)),
    )
    bar = notebook.progress_bar("samples read")
    for done in (1, 2, 3):
        bar(done, 3)
    assert shown[-1] == ("samples read: 3", True)
    assert [last for _, last in shown[:-1]] == [False] * (len(shown) - 1)
