"""One parsed row: a sample, or the reason why it can't be one. Pure."""

from typing import Any

import numpy as np

from hslib.dataset.sample import Limits, Rejection, Sample

_INT32_MAX = 2**31 - 1


def check_row(index: int, row: dict[str, Any], limits: Limits) -> Sample | Rejection:
    """A parsed row as a sample, or the reason why it can't be one. Pure."""
    has_id = row.get("id") is not None
    row_id = str(row["id"]) if has_id else str(index)

    def reject(reason: str, detail: str, fix: str) -> Rejection:
        return Rejection(index, row_id, reason, detail, fix)

    if "input_ids" not in row or row["input_ids"] is None:
        keys = ", ".join(list(row)[:8])
        return reject("no_ids", f"the row has only: {keys}", "tokenize it into input_ids")
    ids = row["input_ids"]
    if not isinstance(ids, list) or set(map(type, ids)) - {int}:
        return reject(
            "not_integers", f"input_ids is {_show(ids)}", "write one flat list of integers"
        )
    if not ids:
        return reject("empty", "input_ids is []", "drop the row")
    lowest, highest = min(ids), max(ids)
    if lowest < 0 or highest >= limits.vocab_size or highest > _INT32_MAX:
        wrong = lowest if lowest < 0 else highest
        return reject(
            "out_of_vocabulary",
            f"id {wrong} at position {ids.index(wrong)}, the vocabulary is "
            f"0..{limits.vocab_size - 1}",
            "tokenize with the served model's tokenizer; one such id would kill the server",
        )
    if len(ids) > limits.max_tokens:
        return reject(
            "too_long",
            f"{len(ids)} tokens, the limit is {limits.max_tokens}",
            "raise context_length or max_tokens, or split the row; rows are never cut",
        )
    mask = row.get("loss_mask")
    if mask is None:
        ones = np.ones(len(ids), np.uint8)
        return Sample(index, row_id, np.asarray(ids, "<i4"), ones, False, has_id)
    problem = _mask_problem(mask, len(ids))
    if problem:
        return reject(*problem)
    return Sample(index, row_id, np.asarray(ids, "<i4"), np.asarray(mask, np.uint8), has_id=has_id)


def _mask_problem(mask: Any, num_tokens: int) -> tuple[str, str, str] | None:
    if not isinstance(mask, list) or set(map(type, mask)) - {int, bool} or set(mask) - {0, 1}:
        return "mask_values", f"loss_mask is {_show(mask)}", "write one flat list of 0 and 1"
    if len(mask) != num_tokens:
        return (
            "mask_length",
            f"loss_mask has {len(mask)} entries, input_ids {num_tokens}",
            "make one mask entry per id",
        )
    return None


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
