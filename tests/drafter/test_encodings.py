"""What is said of drafters that were trained on encoded states."""

from pathlib import Path

import pytest

from hslib.drafter.encodings import EncodingComparison, _same_rows, compare_encodings
from hslib.parameters import ExportParameters
from hslib.store import Store

PLAIN = ((0.80, 0.60, 0.50), (0.82, 0.63, 0.50), (0.78, 0.60, 0.56))


def shifted(by: float, position: int) -> tuple[tuple[float, ...], ...]:
    moved = [list(shares) for shares in PLAIN]
    for shares in moved:
        shares[position] += by
    return tuple(map(tuple, moved))


def test_differences_are_of_means_and_noise_is_what_seeds_differ_by() -> None:
    found = EncodingComparison(PLAIN, shifted(-0.03, 0), lossless_is_identical=True)
    assert found.differences() == pytest.approx((-0.03, 0, 0))
    assert found.spreads() == pytest.approx((0.04, 0.03, 0.06))
    assert found.sentence() == (
        "The export of a lossless copy has the same bytes, so that it trains the same drafter.\n"
        "FP8 changes the mean acceptance of 3 seeds by less than the seeds differ."
    )


@pytest.mark.parametrize(("by", "position"), [(-0.05, 0), (0.04, 1), (-0.07, 2)])
def test_more_than_the_seeds_differ_by_is_said_with_its_size(by: float, position: int) -> None:
    told = EncodingComparison(PLAIN, shifted(by, position), False).sentence()
    assert told.startswith("The export of a lossless copy HAS OTHER BYTES: it is not lossless.")
    assert f"MORE than the seeds differ: {by:+.2f} at position {position + 1}." in told


def test_a_figure_has_a_point_per_seed() -> None:
    found = EncodingComparison(PLAIN, shifted(0.01, 0), True)
    assert len(found.numbers()) == 2 * 3 * 3
    (axes,) = found.plot("title").axes
    assert axes.get_ylabel() and axes.get_xlabel() and axes.get_legend()


def test_exports_are_compared_byte_by_byte(tmp_path: Path) -> None:
    line = '{"row":0,"index":0,"source":"c","file":"row","size_bytes":3}\n'
    for name, data in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "export.jsonl").write_text(line)
        (tmp_path / name / "row").write_bytes(data)
    assert _same_rows(tmp_path / "a", tmp_path / "b")
    assert not _same_rows(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize(
    "values",
    [
        {"run_dir": "own"},
        {"encoding_seeds": 2, "num_steps": 0},
        {"encoding_seeds": 2, "trainer": "specforge"},
        {"encoding_seeds": 2, "drafter": "mtp"},
    ],
)
def test_nothing_is_trained_that_was_not_asked_for(
    tmp_path: Path, values: dict[str, object], demo_like: Store
) -> None:
    config = ExportParameters.from_values({"run_dir": str(tmp_path / "run"), **values})
    assert compare_encodings(config, demo_like) is None
    assert not (tmp_path / "run").exists()


@pytest.fixture
def demo_like(tmp_path: Path) -> Store:
    from make.stores import made_up_rows, write_store

    return write_store(tmp_path / "store", made_up_rows(2))
