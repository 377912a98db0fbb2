"""One parsed row: a sample, or the reason why it can't be one. Pure."""

from typing import Any

import numpy as np

from hslib.dataset.mask import Mask, read_flags, read_mask, show
from hslib.dataset.media import find_media
from hslib.dataset.sample import Limits, Rejection, RowFault, Sample

_INT32_MAX = 2**31 - 1


def check_row(
    index: int, row: dict[str, Any], limits: Limits, mask_column: str = ""
) -> Sample | Rejection:
    """A parsed row as a sample, or the reason why it can't be one.

    Args:
        mask_column: the only column that says which tokens train; "" = those that are known.
    """
    given = row.get("id")
    has_id = given is not None and given == given  # NaN is pandas' nothing
    row_id = str(given) if has_id else str(index)
    if fault := _bad_id(row_id):
        return Rejection(index, str(index), *fault)
    ids = _read_ids(row, limits)
    if isinstance(ids, RowFault):
        return Rejection(index, row_id, *ids)
    fault = _not_text(row, ids, limits) or _padded(row, len(ids))
    mask = fault or read_mask(row, ids, mask_column)
    if isinstance(mask, Mask):
        return Sample(index, row_id, ids, mask.values, mask.column, has_id)
    return Rejection(index, row_id, *mask)


def _bad_id(row_id: str) -> RowFault | None:
    if row_id.isascii():
        return None
    try:
        row_id.encode()
    except UnicodeEncodeError:
        detail = f"the id {row_id!r} is not text: it has half of a surrogate pair"
        return RowFault("bad_id", detail, "write it as UTF-8")
    return None


def _read_ids(row: dict[str, Any], limits: Limits) -> np.ndarray | RowFault:
    ids = row.get("input_ids")
    if ids is None:
        return _no_ids(row)
    if not isinstance(ids, list) or set(map(type, ids)) - {int}:
        fix = "write one flat list of integers"
        return RowFault("not_integers", f"input_ids is {show(ids)}", fix)
    if not ids:
        return RowFault("empty", "input_ids is []", "drop the row")
    lowest, highest = min(ids), max(ids)
    if lowest < 0 or highest >= limits.vocab_size or highest > _INT32_MAX:
        wrong = lowest if lowest < 0 else highest
        return RowFault(
            "out_of_vocabulary",
            f"id {wrong} at position {ids.index(wrong)}, the vocabulary is "
            f"0..{limits.vocab_size - 1}",
            "tokenize with the served model's tokenizer; one such id would kill the server",
        )
    if len(ids) > limits.max_tokens:
        return RowFault(
            "too_long",
            f"{len(ids)} tokens, the limit is {limits.max_tokens}",
            "raise context_length or max_tokens, or split the row; rows are never cut",
        )
    return np.asarray(ids, "<i4")


def _no_ids(row: dict[str, Any]) -> RowFault:
    fix = "tokenize it into input_ids"
    if row.get("messages") or row.get("conversations"):
        fix = "make rows of the conversations: python -m hslib rows, or notebook 00"
    names = show(list(row)[:8]) if row else "no field that is read"
    return RowFault("no_ids", f"the row has only: {names}", fix)


def _not_text(row: dict[str, Any], ids: np.ndarray, limits: Limits) -> RowFault | None:
    fix = "leave it out, or write it as text: only ids are sent, and images or sound would be lost"
    if limits.placeholders and not limits.placeholders.keys().isdisjoint(row["input_ids"]):
        at = int(np.flatnonzero(np.isin(ids, list(limits.placeholders)))[0])
        token = int(ids[at])
        name = limits.placeholders[token]
        return RowFault("placeholder", f"id {token} at position {at} is the model's {name}", fix)
    if media := find_media(row):
        return RowFault("media", f"the row has {media}", fix)
    return None


def _padded(row: dict[str, Any], num_tokens: int) -> RowFault | None:
    attended = row.get("attention_mask")
    if attended is None:
        return None
    flags = read_flags("attention_mask", attended, num_tokens)
    if isinstance(flags, RowFault):
        return flags
    if flags.all():
        return None
    zeros = np.flatnonzero(flags == 0)
    detail = f"attention_mask has {zeros.size} zeros, the first at position {zeros[0]}"
    return RowFault("padded", detail, "write the row's own ids, without padding")
