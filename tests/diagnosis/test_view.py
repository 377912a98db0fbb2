"""What a person sees: the diff, the menus, the figures, the tables, the terminal."""

import json
from pathlib import Path

import numpy as np
import pytest
from make.logs import edited, lengths, observed
from make.tokenizations import PLAIN, byte_level, pair_of

from hslib import demo, diagnosis
from hslib.diagnosis import tables, view
from hslib.diagnosis.filing.observations import observe
from hslib.diagnosis.tokens.causes import compare
from hslib.diagnosis.tokens.recipes import Compared, Source
from hslib.parameters import DiagnosisParameters
from hslib.terminal import main


def compared(texts: list[tuple[str, str]]) -> Compared:
    vocabulary = byte_level()
    rows = [
        compare(n, pair_of(vocabulary, *(vocabulary.encode(text, PLAIN) for text in pair)))
        for n, pair in enumerate(texts)
    ]
    sources = [Source(name, vocabulary, PLAIN) for name in ("stored", "local")]
    return Compared(*sources, tuple(rows))


LONG = "the river bends where old stones rest " * 8
ROWS = compared(
    [
        ("the river", "the river"),
        (LONG + "again", LONG + "again\n"),
        ("<|end|>the", "<s><|end|>the"),
        ("<b>the", "<i>the"),
    ]
)


def test_the_diff_shows_both_sides_and_counts_what_is_equal() -> None:
    page = view.diff_html(ROWS.comparisons[1], ("stored", "local"))
    assert "stripped" in page
    assert "↵" in page
    assert "equal tokens" in page
    assert page.count("#0072B2") == 1
    assert "nothing" in page
    assert page.index("expected: stored") < page.index("got: local")


def test_special_tokens_are_framed_and_text_is_no_markup() -> None:
    page = view.diff_html(ROWS.comparisons[2], ("a", "b"))
    assert "border:1px solid #555" in page
    assert "&lt;s&gt;" in page
    assert "<i>the" not in view.diff_html(ROWS.comparisons[3], ("<x>", "b"))
    assert "&lt;x&gt;" in view.diff_html(ROWS.comparisons[3], ("<x>", "b"))


def test_styles_are_inline_for_a_notebook_that_is_not_trusted_loses_others() -> None:
    page = view.diff_html(ROWS.comparisons[1], ("stored", "local"))
    assert "<style" not in page and "class=" not in page


def test_the_still_picture_is_of_the_worst_row() -> None:
    assert "row 3" in view.still([ROWS]) or "row 1" in view.still([ROWS])
    equal = compared([("the", "the")])
    assert "equal ids in all rows" in view.still([equal])


def test_menus_narrow_each_other_and_change_the_picture() -> None:
    chosen = view.Explorer([compared([("the", "the")]), ROWS])
    assert "3 differ" in chosen.pair.options[0][0], "pairs that differ come first"
    codes = [code for _, code in chosen.cause.options]
    assert set(codes) == {"", "stripped", "bos", "other_ids", "="}
    chosen.cause.value = "bos"
    assert [value for _, value in chosen.row.options] == [2]
    assert "row 2" in chosen.picture.value
    chosen.cause.value = "="
    assert "the ids are equal" in chosen.picture.value
    chosen.pair.value = 1
    assert "row 0" in chosen.picture.value, "a pair that agrees shows a row, too"
    chosen.pair.value = 0
    before = chosen.picture.value
    chosen.row.value = next(v for _, v in chosen.row.options if f"row {v}:" not in before)
    assert chosen.picture.value != before


def test_menus_are_for_people_and_a_still_picture_for_runners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("VSCODE_PID", raising=False)
    assert "expected: stored" in view.explorer([ROWS]).data
    monkeypatch.setenv("JPY_SESSION_NAME", "x.ipynb")
    assert len(view.explorer([ROWS]).children) == 3


def found_in(evidence: str = "") -> diagnosis.Diagnosis:
    return diagnosis.run(DiagnosisParameters.from_values({"log_path": evidence}))


def test_the_tables_tell_the_case_study() -> None:
    found = found_in()
    numbers = tables.sample_table(found)
    assert numbers["sample"].tolist() == [81, 82, 83, 84, 85, 86, 87]
    assert numbers["lag"].tolist() == [3, 3, 3, 3, 4, 4, 4]
    assert numbers["cause"].tolist() == ["shift"] * 4 + ["foreign"] + ["shift"] * 2
    assert numbers["difference"].isna().tolist() == [False] * 6 + [True]
    assert numbers["holds"].dropna().to_dict() == {3: 81, 5: 82, 6: 83}
    causes = tables.cause_table(found)
    assert causes["samples"].tolist() == [6, 1]
    assert causes.loc["shift", "examples"].startswith("84: got 4710, expected 291, holds 81's")


@pytest.mark.parametrize("code", ["shift", "limit", "unknown", "none"])
def test_figures_have_titles_axes_and_a_point_a_sample(code: str) -> None:
    seen = observe(range(9), range(9, 18), range(9, 18), "x") if code == "none" else None
    found = diagnosis.diagnose_counts(seen or observed(code, 1))
    numbers = tables.sample_table(found)
    for draw in (
        diagnosis.plot_got,
        diagnosis.plot_lags,
        diagnosis.plot_differences,
    ):
        (axes,) = draw(numbers, "a run, n samples").axes
        assert axes.get_title() == "a run, n samples"
        assert axes.get_xlabel() and axes.get_ylabel()
    scatter = diagnosis.plot_got(numbers, "x").axes[0]
    points = sum(len(part.get_offsets()) for part in scatter.collections)
    assert points == len(numbers)


def test_thousands_of_samples_are_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    expected = lengths(rng, 3000)
    seen = observe(range(3000), expected, edited(rng, expected).got, "made")
    numbers = tables.sample_table(diagnosis.diagnose_counts(seen))
    diagnosis.plot_lags(numbers, "x").savefig(tmp_path / "lag.png")
    assert (tmp_path / "lag.png").stat().st_size > 5000


def test_the_terminal_prints_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(demo.case_study_path())]) == 1
    printed = capsys.readouterr().out
    assert "SYNCHRONISATION, not the tokenizer" in printed
    assert "TOKENIZATION NOT COMPARED: --dataset and --tokenizer not known" in printed


def test_the_terminal_compares_tokens_when_a_tokenizer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.log").write_text("sample 0: got 5 tokens, expected 5\n")
    arguments = ["diagnose", str(tmp_path / "x.log"), "--tokenizer", str(demo.model_path())]
    assert main([*arguments, "--sample-limit", "9"]) == 1
    assert "TOKENIZATION NOT COMPARED: --dataset not known" in capsys.readouterr().out
    rows = [json.loads(line) for line in demo.dataset_path().read_text().splitlines()[:3]]
    rows[1]["input_ids"] = rows[1]["input_ids"][:-4]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "x.log").write_text("sample 0: got 20 tokens, expected 20\n")
    assert len(rows[0]["input_ids"]) == 20
    assert main([*arguments, "--dataset", str(data)]) == 1
    printed = capsys.readouterr().out
    assert "truncated: 1 row:" in printed
    assert "row 1 (line 2): dataset stops after" in printed
    assert "at position " in printed


def test_the_terminal_says_what_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(tmp_path)]) == 1
    assert "no log, journal, store or dump directory" in capsys.readouterr().err


def test_nothing_to_compare_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.log").write_text("Loaded 9 samples\nServer is ready!\n")
    assert main(["diagnose", str(tmp_path / "x.log")]) == 1
    assert "NOTHING TO COMPARE" in capsys.readouterr().out


def test_metrics_are_numbers_and_names() -> None:
    values = diagnosis.metrics(found_in(), [ROWS])
    assert values["diagnosis"] == "shift"
    assert values["samples_by_cause"] == {"shift": 6, "foreign": 1}
    json.dumps(values)
