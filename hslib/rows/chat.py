"""The model's own tokenizer and chat template."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from hslib.errors import DatasetError, ParameterError
from hslib.model import require_folder
from hslib.rows.conversation import Conversation, Message
from hslib.rows.recipe import Recipe
from hslib.rows.tokens import PlainTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]  # characters
_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")
_CALL = {"type": "function", "id": "call00001", "function": {"name": "f", "arguments": {}}}
# what a template may raise that is handed a message it does not know
TEMPLATE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class TemplateRefusal(Exception):  # noqa: N818 - it says what happened, to one conversation
    """The template can't render these messages; the text says why."""


class Chat:
    """Renders messages with one template, and knows which tokens end an answer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", recipe: Recipe) -> None:
        self.tokens = PlainTokenizer(tokenizer)
        self.tokenizer, self.recipe = tokenizer, recipe
        self._template = _template_text(recipe)
        self.end_texts = _end_texts(tokenizer, recipe)
        self._variables = {**_dated(self.template_text, recipe), **recipe.template}
        self.tokens.turn_texts = self._turn_texts()

    def _turn_texts(self) -> frozenset[str]:
        """Added tokens around plain messages; DeepSeek's are not marked as special."""
        asked: Message = {"role": "user", "content": "x"}
        try:
            text = self._render([asked, {"role": "assistant", "content": "x"}, asked], prompt=True)
        except TemplateRefusal:
            return frozenset()
        added = self.tokenizer.added_tokens_decoder.values()
        return frozenset(token.content for token in added if token.content in text)

    @cached_property
    def template_text(self) -> str:
        """The template, or all of them where the model has several."""
        found = self._template or self.tokenizer.chat_template
        if not found:
            raise ParameterError(
                "the model's folder has no chat template",
                path=str(self.recipe.model),
                fix="give chat_template, the file of the template that the server uses",
            )
        return found if isinstance(found, str) else json.dumps(found, sort_keys=True)

    @property
    def template_digest(self) -> str:
        """xxh3-128 of the template's text."""
        return xxhash.xxh3_128_hexdigest(self.template_text.encode())

    @cached_property
    def has_markers(self) -> bool:
        """Whether the template marks what the model generates."""
        return bool(_MARKER.search(self.template_text))

    @cached_property
    def wants_text_arguments(self) -> bool:
        """Whether tool calls are rendered with arguments as text alone, as DeepSeek's are.

        SGLang and vLLM hand over objects; a template that can't take one is given its JSON.
        """
        asked: Message = {"role": "user", "content": "x"}
        try:
            self._render([asked, {"role": "assistant", "content": "", "tool_calls": [_CALL]}])
        except TemplateRefusal:
            function = {"name": "f", "arguments": "{}"}
            call = {**_CALL, "function": function}
            try:
                self._render([asked, {"role": "assistant", "content": "", "tool_calls": [call]}])
            except TemplateRefusal:
                return False
            return True
        return False

    def render(self, conversation: Conversation, stop: int, prompt: bool) -> str:
        """The text of the messages before ``stop``.

        Args:
            prompt: with the generation prompt behind them.

        Raises:
            TemplateRefusal: the template raised an error.
        """
        return self._render(*self._called(conversation, stop), prompt=prompt)

    def render_marked(self, conversation: Conversation, stop: int) -> tuple[str, list[Span]]:
        """The text, and what the template marks as generated; raises :class:`TemplateRefusal`."""
        from transformers.utils.chat_template_utils import render_jinja_template

        messages, tools, variables = self._called(conversation, stop)
        try:
            texts, spans = render_jinja_template(
                conversations=[messages],
                tools=tools or None,
                chat_template=self.tokenizer.get_chat_template(self._template, tools or None),
                return_assistant_tokens_mask=True,
                **{**self.tokenizer.special_tokens_map, **self._variables, **variables},
            )
        except _errors() as error:
            raise TemplateRefusal(_sentence(error)) from error
        return texts[0], [(start, end) for start, end in spans[0] if start < end]

    def check(self, conversation: Conversation) -> bool:
        """Compare the ids made here with the tokenizer's own; False: these can't be rendered.

        Raises:
            DatasetError: ``apply_chat_template`` makes others of this conversation.
        """
        stop = len(conversation.messages)
        messages, tools, variables = self._called(conversation, stop)
        try:
            text = self.render(conversation, stop, prompt=False)
            made = self.tokens.encode([text])[0]
        except (TemplateRefusal, UnicodeEncodeError):
            return False
        ids = self.tokenizer.apply_chat_template(
            messages,
            tools=tools or None,
            chat_template=self._template,
            return_dict=False,
            **{**self._variables, **variables},
        )
        if list(ids) != made:
            raise DatasetError(
                "the tokenizer's apply_chat_template makes other ids than its own rendered text",
                index=conversation.index,
                fix="this tokenizer renders by code of its own: tokenize with it, and give 03 ids",
            )
        return True

    def _called(
        self, conversation: Conversation, stop: int
    ) -> tuple[list[Message], Sequence[Any], Mapping[str, Any]]:
        messages = list(conversation.messages[:stop])
        if any("tool_calls" in message for message in messages) and self.wants_text_arguments:
            messages = [_with_text_arguments(message) for message in messages]
        return messages, list(conversation.tools), conversation.template

    def _render(
        self,
        messages: list[Message],
        tools: Sequence[Any] = (),
        variables: Mapping[str, Any] | None = None,
        prompt: bool = False,
    ) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                chat_template=self._template,
                add_generation_prompt=prompt,
                tokenize=False,
                **{**self._variables, **(variables or {})},
            )
        except _errors() as error:
            raise TemplateRefusal(_sentence(error)) from error
        return str(text)


def load_chat(recipe: Recipe) -> Chat:
    """The tokenizer and template of a model's folder; nothing is downloaded.

    Raises:
        DatasetError: the folder holds no tokenizer that transformers can load.
        ParameterError: no template, no token that ends an answer, or no date where one is needed.
    """
    from transformers import AutoTokenizer

    require_folder(recipe.model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(recipe.model), trust_remote_code=recipe.trust_remote_code, local_files_only=True
        )
    except Exception as error:  # a file newer than the library is a bare one
        raise DatasetError(
            f"no tokenizer can be loaded: {_sentence(error)}",
            path=str(recipe.model),
            fix="name the model's folder (tokenizer.json or tokenizer.model in it); set "
            "trust_remote_code if it brings its own code; a file newer than the installed "
            "tokenizers needs a newer one",
        ) from error
    if not isinstance(getattr(tokenizer, "added_tokens_decoder", None), dict):  # mistral-common's
        raise DatasetError(
            f"{type(tokenizer).__name__} has no template, it renders by code of its own",
            path=str(recipe.model),
            fix="tokenize with it, and give notebook 03 ids; or give a folder with tokenizer.json",
        )
    return Chat(tokenizer, recipe)


def _errors() -> tuple[type[Exception], ...]:
    import jinja2

    return (jinja2.TemplateError, *TEMPLATE_ERRORS)


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else repr(error)


def _template_text(recipe: Recipe) -> str | None:
    if not recipe.chat_template:
        return None
    try:
        return Path(recipe.chat_template).read_text("utf-8")
    except OSError as error:
        raise ParameterError(
            f"chat_template can't be read: {error.strerror}",
            path=recipe.chat_template,
            fix="give the path of a Jinja file",
        ) from error


def _dated(template: str, recipe: Recipe) -> dict[str, Any]:
    """A fixed day for templates that write today's, so that a resumed job goes on with it."""
    if "strftime_now" not in template:
        return {}
    try:
        day = date.fromisoformat(recipe.date)
    except ValueError:
        raise ParameterError(
            "the template writes the day's date into every row",
            got=recipe.date,
            fix="set 'date' to the day that all rows shall have, such as 2026-01-30",
        ) from None
    return {"strftime_now": day.strftime}


def _end_texts(tokenizer: "PreTrainedTokenizerBase", recipe: Recipe) -> tuple[str, ...]:
    """The tokens at which a server stops: EOS of tokenizer, generation config and config."""
    numbers = {tokenizer.eos_token_id}
    for name in ("generation_config.json", "config.json"):
        path = recipe.model / name
        if path.is_file():
            try:
                given = json.loads(path.read_text("utf-8")).get("eos_token_id")
            except ValueError as error:
                raise ParameterError(f"{path} is not JSON: {error}", fix="fetch it again") from None
            numbers.update(given if isinstance(given, list) else [given])
    known = tokenizer.added_tokens_decoder
    texts = {known[number].content for number in numbers if number in known}
    unknown = set(recipe.end_tokens) - {"", *(token.content for token in known.values())}
    if unknown or not texts | set(recipe.end_tokens):
        raise ParameterError(
            f"{sorted(unknown)} are no tokens of this tokenizer"
            if unknown
            else "neither tokenizer nor configs name a token that ends an answer",
            fix='set end_tokens, such as ["<|im_end|>"]',
        )
    return tuple(sorted(texts | set(recipe.end_tokens) - {""}))


def _with_text_arguments(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}
