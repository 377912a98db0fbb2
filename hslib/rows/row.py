"""Rows out of a few conversations: rendered, tokenized at once, masked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hslib.dataset import Rejection
from hslib.rows.chat import Chat
from hslib.rows.conversation import read_conversation
from hslib.rows.passages import Passage, passages
from hslib.rows.tokens import MergeError


@dataclass(frozen=True, eq=False)
class Row:
    """``input_ids`` int32 [T], ``loss_mask`` uint8 [T]: 1 on what the model must generate.

    ``index``: the conversation's number in its source. ``turn``: the message that trains, None
    where all that were asked for do.
    """

    index: int
    id: str
    turn: int | None
    input_ids: np.ndarray
    loss_mask: np.ndarray

    def as_dict(self) -> dict[str, Any]:
        """As a line of the dataset that notebook 03 reads."""
        return {
            "id": self.id,
            "input_ids": self.input_ids,
            "loss_mask": self.loss_mask,
            "source_index": self.index,
            "turn": self.turn,
        }


def make_rows(
    chat: Chat, raw: Iterable[tuple[int, Mapping[str, Any] | Rejection]]
) -> list[Row | Rejection]:
    """The rows of parsed lines in their order, and rejections where they stand."""
    found: list[Passage | Rejection] = []
    for index, line in raw:
        read = line if isinstance(line, Rejection) else read_conversation(index, line)
        found += [read] if isinstance(read, Rejection) else passages(chat, read)
    ready = [_encodable(item) for item in found]
    texts = [item.text for item in ready if isinstance(item, Passage)]
    ids = iter(chat.tokens.encode(texts))
    return [item if isinstance(item, Rejection) else _row(chat, item, next(ids)) for item in ready]


def _encodable(item: Passage | Rejection) -> Passage | Rejection:
    if isinstance(item, Passage):
        try:
            item.text.encode()
        except UnicodeEncodeError as error:
            half = ascii(item.text[error.start])
            return item.reject(
                "half_character", f"{half} is half of a surrogate pair", "correct the text"
            )
    return item


def _row(chat: Chat, passage: Passage, ids: list[int]) -> Row | Rejection:
    longest = chat.recipe.max_tokens
    if longest and len(ids) > longest:
        return passage.reject(
            "too_long",
            f"{len(ids)} tokens, the limit is {longest}",
            "raise max_tokens, or split the conversation; rows are never cut",
        )
    positions = [position for span in passage.spans for position in span]
    try:
        cuts = chat.tokens.cuts(passage.text, ids, positions)
    except MergeError as error:
        around = passage.text[max(0, error.position - 20) : error.position + 20]
        return passage.reject(
            "merged",
            f"one token covers the prompt's end and the answer's beginning, in {around!r}",
            "let the answer begin with a letter or digit, or use a template whose prompt ends in a "
            "special token",
        )
    mask = np.zeros(len(ids), np.uint8)
    for start, end in zip(cuts[::2], cuts[1::2], strict=True):
        mask[start:end] = 1
    conversation = passage.conversation
    row_id = conversation.id if passage.turn is None else f"{conversation.id}:{passage.turn}"
    return Row(conversation.index, row_id, passage.turn, np.asarray(ids, "<i4"), mask)
