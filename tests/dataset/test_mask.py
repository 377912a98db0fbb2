"""Which tokens train, from whatever column says it."""

from typing import Any

import pytest

from hslib.dataset import Limits, Rejection, Sample, check_row

IDS = [7, 8, 9, 5]


def read(column: str = "", **columns: Any) -> Sample | Rejection:
    return check_row(0, {"input_ids": IDS, **columns}, Limits(100, 8), column)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("loss_mask", [0, 0, 1, 1]),
        ("labels", [-100, -100, 9, 5]),
        ("assistant_masks", [0, 0, 1, 1]),
        ("assistant_mask", [0, 0, 1, 1]),
        ("assistant_tokens_mask", [False, False, True, True]),
        ("completion_mask", [0, 0, 1, 1]),
        ("prompt_mask", [1, 1, 0, 0]),
        ("prompt_tokens_mask", [1, 1, 0, 0]),
    ],
)
def test_the_mask_is_read_from_the_column_that_has_it(name: str, values: list[int]) -> None:
    found = read(**{name: values, "score": 3, "loss_mask": values if name == "loss_mask" else None})
    assert isinstance(found, Sample)
    assert (found.loss_mask.tolist(), found.mask_column) == ([0, 0, 1, 1], name)


def test_a_row_without_any_trains_at_every_token_and_says_so() -> None:
    found = read(labels="math")
    assert isinstance(found, Sample)
    assert (found.loss_mask.tolist(), found.mask_column) == ([1, 1, 1, 1], "")


def test_columns_that_agree_are_one_and_the_first_is_named() -> None:
    found = read(labels=[-100, 8, -100, 5], prompt_mask=[1, 0, 1, 0], loss_mask=[0, 1, 0, 1])
    assert isinstance(found, Sample)
    assert (found.loss_mask.tolist(), found.mask_column) == ([0, 1, 0, 1], "loss_mask")


@pytest.mark.parametrize("labels", [IDS, [3], [], [0.1, 0.9, 0.0, 0.0], ["a"], [{"a": 1}]])
def test_labels_that_say_nothing_of_what_trains_are_left_out(labels: list[Any]) -> None:
    """A copy of the ids, a class, topics."""
    found = read(labels=labels, loss_mask=[0, 1, 0, 1])
    assert isinstance(found, Sample) and found.loss_mask.tolist() == [0, 1, 0, 1]
    alone = read(labels=IDS)
    assert isinstance(alone, Sample) and alone.mask_column == "", "and the job says so, loudly"


def test_the_column_that_is_named_is_the_only_one_that_counts() -> None:
    columns = {
        "loss_mask": [1, 1, 1, 1],
        "non_prompt_mask": [0, 0, 0, 1],
        "prompt_mask": [1, 0, 1, 1],
    }
    mine, inverted = read("non_prompt_mask", **columns), read("prompt_mask", **columns)
    assert isinstance(mine, Sample) and mine.loss_mask.tolist() == [0, 0, 0, 1]
    assert isinstance(inverted, Sample) and inverted.loss_mask.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("columns", "reason", "evidence"),
    [
        ({"loss_mask": [1]}, "mask_length", "loss_mask has 1 entries, input_ids 4"),
        ({"loss_mask": [1, 2, 0, 0]}, "mask_values", "loss_mask is [1, 2, 0, 0]"),
        ({"loss_mask": [1, 300, 0, 0]}, "mask_values", "300"),
        ({"loss_mask": [1, 0.5, 0, 0]}, "mask_values", "0.5"),
        ({"loss_mask": [1, float("nan"), 0, 0]}, "mask_values", "nan"),
        ({"loss_mask": [[1], [0]]}, "mask_values", "[[1], [0]]"),
        ({"loss_mask": "0011"}, "mask_values", "'0011'"),
        ({"prompt_mask": [1, 0, 2, 0]}, "mask_values", "prompt_mask is"),
        ({"labels": [7, 8]}, "mask_length", "labels has 2 entries"),
        ({"labels": [7.5, 8, 9, 5]}, "mask_values", "7.5"),
        ({"labels": [[7], [8, 9]]}, "mask_values", "[[7], [8, 9]]"),
        ({"labels": [[7], [8], [9], [5]]}, "mask_values", "[[7], [8], [9], [5]]"),
        ({"labels": [-100, 8, 4, 5]}, "labels_disagree", "labels has 4 at position 2, input_ids 9"),
        ({"labels": [-100, -1, 9, 5]}, "labels_disagree", "labels has -1 at position 1"),
    ],
)
def test_a_bad_mask_rejects_the_row(columns: dict[str, Any], reason: str, evidence: str) -> None:
    found = read(**columns)
    assert isinstance(found, Rejection)
    assert found.reason == reason
    assert evidence in found.detail


def test_labels_that_are_shifted_already_are_called_that() -> None:
    shifted = read(labels=[-100, 9, 5, -100])
    assert isinstance(shifted, Rejection)
    assert shifted.reason == "labels_disagree"
    assert "they fit when shifted by one" in shifted.detail


@pytest.mark.parametrize("labels", [[-100, 9, 9, -100], [-100, -100, -100, 4]])
def test_labels_of_other_ids_are_not_called_shifted(labels: list[int]) -> None:
    other = read(labels=labels)
    assert isinstance(other, Rejection)
    assert "shifted" not in other.detail


def test_columns_that_disagree_reject_the_row_with_both_and_the_position() -> None:
    found = read(loss_mask=[0, 1, 1, 1], labels=[-100, -100, 9, -100])
    assert isinstance(found, Rejection)
    assert found.reason == "masks_disagree"
    assert "by loss_mask the token at position 1 trains, by labels not" in found.detail
    assert "at 2 of 4 positions" in found.detail
    assert "mask_column" in found.fix


def test_a_row_without_the_column_that_is_named_is_rejected() -> None:
    found = read("mask", loss_mask=[1, 1, 1, 1])
    assert isinstance(found, Rejection)
    assert found.reason == "no_mask"
