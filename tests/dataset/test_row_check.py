"""A parsed row becomes a sample, or says why not."""

from typing import Any

import pytest
import xxhash

from hslib.dataset import Limits, Rejection, Sample, check_row

LIMITS = Limits(vocab_size=100, max_tokens=8, placeholders={90: "image_token_id"})


def rejection(row: dict[str, Any], mask_column: str = "") -> Rejection:
    result = check_row(4, row, LIMITS, mask_column)
    assert isinstance(result, Rejection), result
    assert (result.index, bool(result.fix)) == (4, True)
    return result


@pytest.mark.parametrize(
    ("row", "reason", "evidence"),
    [
        ({"text": "x"}, "no_ids", "text"),
        ({"input_ids": None}, "no_ids", "input_ids"),
        ({"input_ids": []}, "empty", "[]"),
        ({"input_ids": [1, 2.0]}, "not_integers", "2.0"),
        ({"input_ids": [1, float("nan")]}, "not_integers", "nan"),
        ({"input_ids": [1, True]}, "not_integers", "True"),
        ({"input_ids": [[1, 2]]}, "not_integers", "[[1, 2]]"),
        ({"input_ids": "1 2"}, "not_integers", "'1 2'"),
        ({"input_ids": {"input_ids": [1]}}, "not_integers", "input_ids"),
        ({"input_ids": [1, -1]}, "out_of_vocabulary", "id -1 at position 1"),
        ({"input_ids": [1, 100]}, "out_of_vocabulary", "id 100 at position 1"),
        ({"input_ids": [2**40]}, "out_of_vocabulary", str(2**40)),
        ({"input_ids": [3, 2**70]}, "out_of_vocabulary", str(2**70)),
        ({"input_ids": [1] * 9}, "too_long", "9 tokens, the limit is 8"),
        ({"input_ids": [1], "id": "\ud83d"}, "bad_id", "half of a surrogate pair"),
        ({"input_ids": [1, 2, 90]}, "placeholder", "id 90 at position 2 is the model's image_tok"),
        ({"input_ids": [1, 2], "attention_mask": [0, 1]}, "padded", "1 zeros, the first at posi"),
        ({"input_ids": [1, 2], "attention_mask": [1, 0]}, "padded", "position 1"),
        ({"input_ids": [1, 2], "attention_mask": [1, 2]}, "mask_values", "attention_mask is [1, 2"),
        ({"input_ids": [1, 2], "attention_mask": [1]}, "mask_length", "attention_mask has 1 ent"),
    ],
)
def test_a_bad_row_is_rejected_with_reason_evidence_and_fix(
    row: dict[str, Any], reason: str, evidence: str
) -> None:
    found = rejection(row)
    assert found.reason == reason
    assert evidence in found.detail


@pytest.mark.parametrize("name", ["messages", "conversations"])
def test_a_conversation_without_ids_says_what_makes_rows_of_it(name: str) -> None:
    found = rejection({name: [{"role": "user", "content": "hi"}]})
    assert found.reason == "no_ids"
    assert "python -m hslib rows" in found.fix


def test_a_row_at_the_limits_is_a_sample() -> None:
    row = {"input_ids": [0, 99] * 4, "loss_mask": [0, True] * 4, "attention_mask": [1] * 8}
    sample = check_row(0, row, LIMITS)
    assert isinstance(sample, Sample)
    assert sample.input_ids.tolist() == [0, 99] * 4
    assert sample.loss_mask.tolist() == [0, 1] * 4
    assert (sample.id, sample.mask_column) == ("0", "loss_mask")


def test_a_model_of_text_alone_has_no_placeholders() -> None:
    assert isinstance(check_row(0, {"input_ids": [90]}, Limits(100, 8)), Sample)


def test_the_digest_is_xxh3_128_of_little_endian_int32() -> None:
    sample = check_row(0, {"input_ids": [1, 99]}, Limits(100, 8))
    assert isinstance(sample, Sample)
    assert sample.digest == xxhash.xxh3_128_hexdigest(b"\x01\0\0\0\x63\0\0\0")


def test_equal_count_and_other_ids_have_another_digest() -> None:
    first, second = (check_row(0, {"input_ids": ids}, LIMITS) for ids in ([1, 2], [2, 1]))
    assert isinstance(first, Sample)
    assert isinstance(second, Sample)
    assert first.digest != second.digest
