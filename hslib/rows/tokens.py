"""Text to ids, and where in the ids a position of the text is. Knows nothing of conversations."""

import re
from collections.abc import Sequence
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CACHED_HEADERS = 4096


class MergeError(Exception):
    """A token covers both sides of ``position``, or the text before it is tokenized otherwise."""

    def __init__(self, position: int) -> None:
        self.position = position
        super().__init__(position)


class PlainTokenizer:
    """A tokenizer, called without added special tokens: the template has written them."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        if tokenizer.is_fast:  # a tokenizer.json may cut and pad; transformers' own calls undo that
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
        self.turn_texts: frozenset[str] = frozenset()  # added tokens that a template writes
        self._headers: dict[str, list[int]] = {}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        added = self.tokenizer.added_tokens_decoder
        return frozenset({number for number, token in added.items() if token.special})

    @cached_property
    def _special_texts(self) -> tuple[set[str], "re.Pattern[str]"]:
        """Their first two characters, and an expression for them; thinking ends no turn."""
        added = self.tokenizer.added_tokens_decoder
        texts = {added[number].content for number in self.special_ids} | self.turn_texts
        texts -= {"<think>", "</think>"}
        longest_first = sorted(texts, key=lambda text: (-len(text), text))
        return {text[:2] for text in texts}, re.compile("|".join(map(re.escape, longest_first)))

    def special_in(self, text: str) -> str:
        """The first special token that a text spells; "" if it spells none."""
        beginnings, expression = self._special_texts
        if not any(beginning in text for beginning in beginnings):
            return ""
        found = expression.search(text)
        return found[0] if found else ""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text.

        Raises:
            UnicodeEncodeError: a text holds half of a surrogate pair.
        """
        if self.tokenizer.is_fast:
            for text in texts:
                text.encode()  # the library's own error names no cause
            found = self.tokenizer.backend_tokenizer.encode_batch_fast(
                list(texts), add_special_tokens=False
            )
            return [encoding.ids for encoding in found]
        return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def cuts(self, text: str, ids: Sequence[int], positions: Sequence[int]) -> list[int]:
        """How many of the ids stand before each position of the text.

        At each position the ids before it are what the text before it makes alone: what a server
        has when it begins to generate there.

        Raises:
            MergeError: at a position they are not.
        """
        ends = self._byte_ends(text, ids)
        if ends is None:
            return [self._cut_by_prefix(text, ids, position) for position in positions]
        return [self._cut_by_bytes(text, ids, ends, position) for position in positions]

    def _byte_ends(self, text: str, ids: Sequence[int]) -> "np.ndarray | None":
        """int64 [T]: bytes of the text up to each token's end; None where tokens are not it."""
        if self._pieces is None or len(ids) < 2:
            return None
        pieces = itemgetter(*ids)(self._pieces)
        if b"".join(pieces) != text.encode():
            return None
        return np.cumsum(self._sizes[np.asarray(ids)])

    @cached_property
    def _sizes(self) -> np.ndarray:
        """int64: bytes of each id."""
        return np.array([len(piece) for piece in self._pieces or ()], np.int64)

    @cached_property
    def _pieces(self) -> list[bytes] | None:
        """The bytes of each id, of a byte-level vocabulary; None for others."""
        values = {char: value for value, char in _byte_level_alphabet().items()}
        vocabulary = self.tokenizer.get_vocab()
        found = [b""] * (max(vocabulary.values()) + 1)
        for piece, number in vocabulary.items():
            if number in self.tokenizer.added_tokens_decoder:
                found[number] = piece.encode()
            elif all(char in values for char in piece):
                found[number] = bytes(values[char] for char in piece)
            else:
                return None
        return found

    def _cut_by_bytes(self, text: str, ids: Sequence[int], ends: Any, position: int) -> int:
        """Special tokens split the text, so only what follows the last one is tokenized again."""
        wanted = position if text.isascii() else len(text[:position].encode())
        cut = int(np.searchsorted(ends, wanted)) + 1 if wanted else 0
        if cut and ends[cut - 1] != wanted:
            raise MergeError(position)
        start = cut
        while start and ids[start - 1] not in self.special_ids:
            start -= 1
        before = int(ends[start - 1]) if start else 0
        header = text.encode()[before:wanted].decode()
        if self._header(header) != list(ids[start:cut]):
            raise MergeError(position)
        return cut

    def _header(self, text: str) -> list[int]:
        if text not in self._headers:
            if len(self._headers) >= _CACHED_HEADERS:
                self._headers.clear()
            self._headers[text] = self.encode([text])[0] if text else []
        return self._headers[text]

    def _cut_by_prefix(self, text: str, ids: Sequence[int], position: int) -> int:
        before = self.encode([text[:position]])[0]
        if list(ids[: len(before)]) != before:
            raise MergeError(position)
        return len(before)


def _byte_level_alphabet() -> dict[int, str]:
    """Byte -> the character that stands for it in byte-level vocabularies, since GPT-2's."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [value for value in range(256) if value not in set(shown)]
    found = {value: chr(value) for value in shown}
    return {**found, **{value: chr(256 + at) for at, value in enumerate(hidden)}}
