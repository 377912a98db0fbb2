"""What makes ids of text: the tokenizer in a model's folder, or a running server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hslib.errors import DatasetError
from hslib.server import ServerClient

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """How text or messages become ids.

    ``template``: further variables of the chat template, such as ``enable_thinking``.
    """

    add_special_tokens: bool = False
    add_generation_prompt: bool = False
    template: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        parts = ["+special tokens"] * self.add_special_tokens
        parts += ["+generation prompt"] * self.add_generation_prompt
        parts += [f"{name}={value}" for name, value in self.template.items()]
        return " ".join(parts) or "plain"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A Hugging Face tokenizer, as the comparison of two tokenisations needs it."""

    tokenizer: "PreTrainedTokenizerBase"
    name: str = "local"

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no text: BOS, roles, ends of turns."""
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        ids = {number for number, token in added.items() if token.special}
        return frozenset(ids | set(self.tokenizer.all_special_ids)) - {self.unknown_id or -1}

    @cached_property
    def bos_ids(self) -> frozenset[int]:
        return _set_of(self.tokenizer.bos_token_id)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        return _set_of(self.tokenizer.eos_token_id)

    @property
    def unknown_id(self) -> int | None:
        found = self.tokenizer.unk_token_id
        return found if isinstance(found, int) else None

    @cached_property
    def size(self) -> int:
        return len(self.tokenizer)

    def encode(self, text: str, recipe: Recipe) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=recipe.add_special_tokens))

    def encode_chat(self, messages: Messages, recipe: Recipe) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,  # with tokenize=True len() of the result may be 2: a dict of lists
            add_generation_prompt=recipe.add_generation_prompt,
            **recipe.template,
        )
        return self.encode(str(text), recipe)

    def decode(self, ids: Sequence[int]) -> str:
        """Text with special tokens written out."""
        known = [number for number in ids if 0 <= number < self.size]
        return str(
            self.tokenizer.decode(
                known, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary writes it."""
        found = self.tokenizer.convert_ids_to_tokens([i if i < self.size else 0 for i in ids])
        return [
            str(piece) if number < self.size else f"<{number}: not in the vocabulary>"
            for number, piece in zip(ids, found, strict=True)
        ]


def _set_of(number: int | list[int] | None) -> frozenset[int]:
    if number is None:
        return frozenset()
    return frozenset(number if isinstance(number, list) else [number])


@dataclass(frozen=True, eq=False)
class ServerVocabulary(Vocabulary):
    """A running server makes the ids; what they mean is read from the local tokenizer."""

    client: ServerClient = field(kw_only=True)

    def encode(self, text: str, recipe: Recipe) -> list[int]:
        return self.client.tokenize(text, recipe.add_special_tokens)

    def encode_chat(self, messages: Messages, recipe: Recipe) -> list[int]:
        return self.client.tokenize_chat(
            list(messages), recipe.add_generation_prompt, recipe.template
        )


def load_vocabulary(
    path: str | Path, slow: bool = False, trust_remote_code: bool = False
) -> Vocabulary:
    """Load the tokenizer of a model's folder; nothing is downloaded.

    Args:
        slow: the Python implementation, where the model has one.
        trust_remote_code: run the folder's own code, which some models need (Kimi).

    Raises:
        DatasetError: the folder holds no tokenizer that transformers can load, or no slow one.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(path),
            use_fast=not slow,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
        )
    except (OSError, ValueError, ImportError) as error:
        raise DatasetError(
            f"no tokenizer can be loaded: {str(error).splitlines()[0]}",
            path=str(path),
            fix="name the model's folder (tokenizer.json or tokenizer.model in it); set "
            "trust_remote_code if it brings its own code",
        ) from error
    if slow and tokenizer.is_fast:
        raise DatasetError(
            "this model has no tokenizer in Python", path=str(path), fix="set slow_tokenizer False"
        )
    return Vocabulary(tokenizer, "slow" if slow else "local")
