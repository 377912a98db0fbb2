"""What makes ids of text: the tokenizer in a model's folder, or a running server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hslib.errors import DatasetError, RequestError
from hslib.model import require_folder
from hslib.server import ServerClient

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[dict[str, Any]]
_OF_A_NEWER_LIBRARY = ("untagged enum", "unknown variant", "missing field", "invalid type")
_CHARACTER = 6  # tokens; no character has more bytes


class RenderError(DatasetError):
    """A row that can't be rendered; ``fields['reason']`` is a short code."""


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True)
class Rendering:
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
    name: str = "tokenizer"

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

    def encode(self, text: str, recipe: Rendering) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=recipe.add_special_tokens))

    def encode_chat(self, messages: Messages, recipe: Rendering, tools: Messages = ()) -> list[int]:
        """Through the chat template.

        Raises:
            RenderError: there is no template, or it does not render this conversation.
        """
        from jinja2 import TemplateError

        if self.tokenizer.chat_template is None:
            raise RenderError(
                "the tokenizer's folder has no chat template",
                reason="no_template",
                fix="put chat_template.jinja, as the server uses it, into the folder",
            )
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,  # with tokenize=True len() of the result may be 2: a dict of lists
                add_generation_prompt=recipe.add_generation_prompt,
                **recipe.template,
            )
        except (TemplateError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise RenderError(
                f"the chat template refuses the row: {_first_line(error)}",
                reason="template_refuses",
                fix="write roles and tool calls as this model's template knows them, or drop "
                "the row",
            ) from error
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
        found = self.tokenizer.convert_ids_to_tokens([i if 0 <= i < self.size else 0 for i in ids])
        return [
            str(piece) if 0 <= number < self.size else f"<{number}: not in the vocabulary>"
            for number, piece in zip(ids, found, strict=True)
        ]


def readable(vocabulary: Vocabulary, ids: Sequence[int]) -> list[tuple[tuple[int, ...], str]]:
    """(ids, text) of the smallest parts that are whole characters; a piece where none is."""
    found, start = [], 0
    while start < len(ids):
        stop = start + 1
        text = vocabulary.decode(ids[start:stop])
        while (not text or "\ufffd" in text) and stop < min(len(ids), start + _CHARACTER):
            stop += 1
            text = vocabulary.decode(ids[start:stop])
        if not text or "\ufffd" in text:  # no character begins here
            stop, text = start + 1, vocabulary.pieces(ids[start : start + 1])[0]
        found.append((tuple(ids[start:stop]), text))
        start = stop
    return found


def _set_of(number: int | list[int] | None) -> frozenset[int]:
    if number is None:
        return frozenset()
    return frozenset(number if isinstance(number, list) else [number])


@dataclass(frozen=True, eq=False)
class ServerVocabulary(Vocabulary):
    """A running server makes the ids; what they mean is read from the local tokenizer."""

    client: ServerClient = field(kw_only=True)

    def encode(self, text: str, recipe: Rendering) -> list[int]:
        return self.client.tokenize(text, recipe.add_special_tokens)

    def encode_chat(self, messages: Messages, recipe: Rendering, tools: Messages = ()) -> list[int]:
        """Raises :class:`RenderError` where the server refuses the row, or can't get its tools."""
        if tools:
            raise RenderError(
                "the server's /tokenize takes no tools",
                reason="tools",
                fix="leave server_url empty: the folder's own template takes them",
            )
        try:
            return self.client.tokenize_chat(
                list(messages), recipe.add_generation_prompt, recipe.template
            )
        except RequestError as error:
            if error.fields.get("status") not in (400, 422):
                raise
            raise RenderError(error.message, reason="server_refuses", fix=error.fix) from error


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

    require_folder(Path(path))
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(path),
            use_fast=not slow,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
        )
    except Exception as error:  # the tokenizers library raises Exception itself
        is_newer = any(word in str(error) for word in _OF_A_NEWER_LIBRARY)
        raise DatasetError(
            f"no tokenizer can be loaded: {_first_line(error)}",
            path=str(path),
            fix="a newer library wrote tokenizer.json: update tokenizers and transformers to the "
            "versions of the server"
            if is_newer
            else "name the model's folder (tokenizer.json or tokenizer.model in it); set "
            "trust_remote_code if it brings its own code",
        ) from error
    if slow and tokenizer.is_fast:
        raise DatasetError(
            "this model has no tokenizer in Python", path=str(path), fix="set slow_tokenizer False"
        )
    return Vocabulary(tokenizer, "slow tokenizer" if slow else "tokenizer")
