"""Planted defects are found, named by sample and state, and nothing else is."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from make.stores import DEMO_BOUNDARIES, Row, demo_rows, made_up_rows, write_store

from hslib.stats import measure
from hslib.stats.anomalies import FEATURES, outside, robust_scores

Find = Callable[[list[Row]], "pd.DataFrame"]


@pytest.fixture
def find(tmp_path: Path) -> Find:
    """Store rows and list the anomalies."""

    def run(rows: list[Row]) -> "pd.DataFrame":
        boundaries = DEMO_BOUNDARIES if rows[0][1].shape[2] == 96 else (1, 3, 5)
        return measure(write_store(tmp_path / "store", rows, boundaries)).anomalies

    return run


@pytest.fixture
def rows() -> list[Row]:
    """Real ones: the demo's rows and transformers' states, copied to be spoiled."""
    return [(sample, states.clone()) for sample, states in demo_rows(32)]


def lines(found: "pd.DataFrame") -> set[tuple[int, str, str]]:
    return set(found[["index", "state", "reason"]].itertuples(index=False, name=None))


def test_a_sound_store_has_none(find: Find, rows: list[Row]) -> None:
    assert find(rows).empty


def test_a_nan_is_found(find: Find, rows: list[Row]) -> None:
    rows[5][1][3, 1, 40] = float("nan")
    found = find(rows)
    assert lines(found) == {(rows[5][0].index, "boundary 5", "non-finite")}
    assert found.iloc[0]["detail"] == "1 values are NaN or inf"


@pytest.mark.parametrize("value", [0.0, 1.25])
def test_a_constant_layer_is_found(find: Find, rows: list[Row], value: float) -> None:
    rows[7][1][:, 2] = value
    found = find(rows)
    assert (rows[7][0].index, "boundary 7", "constant") in lines(found)
    assert set(found["index"]) == {rows[7][0].index}


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_layer_scaled_by_two_is_found(find: Find, rows: list[Row], factor: float) -> None:
    """The final state is normed, so its kind is narrow."""
    rows[9][1][:, 3] *= factor
    assert lines(find(rows)) == {(rows[9][0].index, "final", "far off")}


def test_a_layer_scaled_by_two_before_the_norm_is_found_where_samples_are_alike(
    find: Find,
) -> None:
    rows = made_up_rows(30)
    rows[11][1][:, 0] *= 2
    assert lines(find(rows)) == {(11, "boundary 1", "far off")}


def test_two_swapped_samples_are_found_and_each_named_as_the_others(
    find: Find, rows: list[Row]
) -> None:
    a, b = pair_of_equal_length(rows)
    (sample_a, states_a), (sample_b, states_b) = rows[a], rows[b]
    rows[a], rows[b] = (sample_a, states_b), (sample_b, states_a)
    found = find(rows)
    assert lines(found) == {(s.index, "", "foreign states") for s in (sample_a, sample_b)}
    details = found.set_index("index")["detail"]
    assert details[sample_a.index].endswith(f"the ids of sample {sample_b.index}")
    assert details[sample_b.index].endswith(f"the ids of sample {sample_a.index}")


def pair_of_equal_length(rows: list[Row]) -> tuple[int, int]:
    """Two rows of one length that share less than half of their ids."""
    for a, (first, _) in enumerate(rows):
        for b, (second, _) in enumerate(rows[:a]):
            if first.num_tokens == second.num_tokens:
                shared = (first.input_ids == second.input_ids)[4:].mean()
                if shared < 0.5:
                    return b, a
    raise AssertionError("the demo has no such pair")


def test_states_shifted_by_one_row_are_found(find: Find, rows: list[Row]) -> None:
    sample, states = rows[12]
    rows[12] = (sample, states.roll(1, dims=0))
    assert (sample.index, "", "foreign states") in lines(find(rows))


def test_states_filed_twice_under_different_ids_are_found(find: Find) -> None:
    rows = made_up_rows(30)
    rows[21] = (rows[21][0], rows[20][1])
    found = find(rows)
    same = found[found["reason"] == "same states"]
    assert same["index"].tolist() == [21]
    assert "sample 20" in same.iloc[0]["detail"]
    assert (21, "", "foreign states") in lines(found), "and they are not its own"


def test_the_same_row_twice_is_no_anomaly(find: Find) -> None:
    rows = made_up_rows(30)
    again = dataclasses.replace(rows[21][0], input_ids=rows[20][0].input_ids)
    rows[21] = (again, rows[20][1])
    assert find(rows).empty


def test_a_massive_activation_is_found(find: Find, rows: list[Row]) -> None:
    rows[15][1][2, 0, 33] = 20_000.0
    assert (rows[15][0].index, "boundary 2", "far off") in lines(find(rows))


def test_a_layer_stored_twice_is_found(find: Find, rows: list[Row]) -> None:
    rows[3][1][:, 2] = rows[3][1][:, 1]
    assert (rows[3][0].index, "boundary 5", "layer twice") in lines(find(rows))


def test_rows_repeated_within_a_sample_are_found(find: Find, rows: list[Row]) -> None:
    states = rows[4][1]
    states[1::2] = states[:-1:2] if len(states) % 2 else states[::2]
    found = find(rows)
    assert (rows[4][0].index, "boundary 2", "rows repeated") in lines(found)


def test_bytes_that_are_not_what_the_server_measured_are_found(
    tmp_path: Path, rows: list[Row]
) -> None:
    store = write_store(tmp_path / "store", rows, DEMO_BOUNDARIES)
    entry = store.entries[rows[6][0].index]
    entry.layers[1]["mean_l2"] *= 1.1
    found = measure(store).anomalies
    assert lines(found) == {(rows[6][0].index, "boundary 5", "not what was dumped")}


# --- the scores ---------------------------------------------------------------------------


def test_scores_are_robust_to_what_they_are_to_find() -> None:
    values = np.append(np.random.default_rng(0).normal(5, 1, 99), 1e6)
    scores = robust_scores(values, 0.01)
    assert np.abs(scores[:-1]).max() < 5
    assert scores[-1] > 1e5


def test_the_floor_keeps_equal_values_from_being_far_apart() -> None:
    assert np.abs(robust_scores(np.array([1.0, 1, 1, 1, 1.001]), 0.1)).max() < 0.011


def test_a_second_kind_is_not_outside() -> None:
    """A third of the samples are 20 times as large: that is how this store is."""
    values = np.append(np.random.default_rng(0).normal(0, 0.01, 60), np.full(30, 4.3))
    floor = FEATURES[1].floor
    scores = robust_scores(values, floor)
    assert scores.max() > 8
    assert not outside(values, scores, floor).any()
    alone = np.append(values[:60], 4.3)
    assert outside(alone, robust_scores(alone, floor), floor).tolist() == [False] * 60 + [True]


def test_few_samples_have_no_kind(tmp_path: Path) -> None:
    rows = made_up_rows(6)
    rows[2][1][:, 0] *= 100
    assert measure(write_store(tmp_path / "store", rows)).anomalies.empty


def test_random_ids_and_states_are_not_called_foreign(find: Find) -> None:
    """Nothing can be told from them, so nothing is."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        (sample, torch.randn(states.shape, generator=generator).to(torch.bfloat16))
        for sample, states in made_up_rows(30)
    ]
    assert find(rows).empty
