"""A conversation as texts to be tokenized, each with the spans that the model must generate.

Where the template marks what is generated, its marks are taken. Else each answer is rendered as the
server sees it: the messages before it with the generation prompt, then with the answer. What the
answer adds, up to the token that ends it, trains. One text holds all answers if each of them looks
in it as it does at its own turn.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hslib.dataset import Rejection
from hslib.rows.chat import Chat, Span, TemplateRefusal
from hslib.rows.conversation import Conversation, Message


@dataclass(frozen=True)
class Passage:
    """``text`` and, ascending, the spans of it (characters) that train.

    ``turn``: the message whose answer alone trains; None where all that were asked for do.
    """

    conversation: Conversation
    text: str
    spans: tuple[Span, ...]
    turn: int | None = None

    def reject(self, reason: str, detail: str, fix: str) -> Rejection:
        at = "" if self.turn is None else f"message {self.turn}: "
        return Rejection(
            self.conversation.index, self.conversation.id, reason, f"{at}{detail}", fix
        )


class _TurnError(Exception):
    """(reason, detail, fix) of a turn that can't train."""


def passages(chat: Chat, conversation: Conversation) -> list[Passage | Rejection]:
    """The texts of a conversation; what is not among them is rejected.

    Messages behind the last answer are left out, and an answer that begins the conversation is
    context, no prompt led to it, unless the template marks it.
    """
    recipe = chat.recipe
    conversation = conversation.with_system(recipe.system_prompt)
    if recipe.thinking == "drop":
        conversation = conversation.without_thinking()
    turns = [turn for turn in conversation.answers if turn > 0]
    turns = turns[-1:] if recipe.train_on == "last" else turns
    try:
        if not turns:
            raise _TurnError("no_prompt", "no answer that trains follows a prompt", "drop the row")
        _check_special(chat, conversation.messages[: turns[-1] + 1], conversation)
        if chat.has_markers:
            return [_marked(chat, conversation, turns)]
    except _TurnError as problem:
        return [_rejected(conversation, problem)]
    return _by_prefix(chat, conversation, turns)


def _rejected(conversation: Conversation, problem: _TurnError) -> Rejection:
    return Rejection(conversation.index, conversation.id, *problem.args)


def _by_prefix(
    chat: Chat, conversation: Conversation, turns: list[int]
) -> list[Passage | Rejection]:
    found: list[Passage | Rejection] = []
    unseen = 0
    for turn in turns:
        try:
            found.append(_one_turn(chat, conversation, unseen, turn))
            unseen = turn + 1
        except _TurnError as problem:
            found.append(_rejected(conversation, problem))
    good = [passage for passage in found if isinstance(passage, Passage)]
    if len(good) == len(found):
        whole = good[-1]
        unstable = [p.turn for p in good if not whole.text.startswith(p.text[: p.spans[0][1]])]
        if not unstable:
            spans = tuple(passage.spans[0] for passage in good)
            return [Passage(conversation, whole.text, spans)]
        if chat.recipe.unstable == "reject":
            detail = f"message {unstable[0]} is rendered differently once later turns follow"
            return [_rejected(conversation, _TurnError("unstable", detail, 'set "per_turn"'))]
    elif chat.recipe.unstable == "reject":
        return [next(passage for passage in found if isinstance(passage, Rejection))]
    return found


def _one_turn(chat: Chat, conversation: Conversation, first: int, turn: int) -> Passage:
    """The conversation up to an answer, as the server that is to generate it sees it.

    Args:
        first: the first message that no earlier turn has looked for in the text.
    """
    try:
        before = chat.render(conversation, turn, prompt=True)
        text = chat.render(conversation, turn + 1, prompt=False)
    except TemplateRefusal as refusal:
        raise _refused(turn, refusal) from None
    if not text.startswith(before):
        at = next((n for n, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), 0)
        raise _TurnError(
            "prompt_differs",
            f"message {turn}: the server generates after {before[-40:]!r}, "
            f"the answer stands after {text[max(0, at - 20) : at + 20]!r}",
            "render as the server does: chat_template_kwargs (enable_thinking or thinking False), "
            'thinking "keep", or another chat_template',
        )
    end = _end_of_answer(chat, turn, text, len(before))
    at = 0
    for message in conversation.messages[first:turn]:
        at = _check_shown(message, before, at)
    _check_shown(conversation.messages[turn], text[len(before) : end], 0, is_trained=True)
    return Passage(conversation, text, ((len(before), end),), turn)


def _end_of_answer(chat: Chat, turn: int, text: str, start: int) -> int:
    """Where the token ends at which the server stops generating."""
    ends = [(text.find(end, start), end) for end in chat.end_texts]
    first = min(((at, end) for at, end in ends if at >= 0), default=None)
    if first is None and "" in chat.recipe.end_tokens:
        return len(text)
    if first is None:
        raise _TurnError(
            "no_end",
            f"message {turn}: no {' or '.join(chat.end_texts)} ends {text[start:][-40:]!r}",
            'name the token that ends an answer in end_tokens, or "" if the template writes none',
        )
    end = first[0] + len(first[1])
    if text[end:].strip():
        raise _TurnError(
            "text_after_end",
            f"message {turn}: {text[end : end + 40]!r} follows {first[1]}, where the server stops",
            "correct the template, or the text if it spells that token",
        )
    return end


def _marked(chat: Chat, conversation: Conversation, turns: list[int]) -> Passage:
    """The template's own marks, all of them or those behind the last answer's prompt."""
    stop = turns[-1] + 1
    try:
        text, spans = chat.render_marked(conversation, stop)
        if chat.recipe.train_on == "last":
            before, earlier = chat.render_marked(conversation, stop - 1)
            known = earlier[-1][1] if earlier else 0
            if spans[: len(earlier)] != earlier or text[:known] != before[:known]:
                raise _TurnError(
                    "unstable",
                    "earlier answers are rendered differently once the last one follows",
                    'set train_on to "all", or use a template without marks',
                )
            spans = spans[len(earlier) :]
        elif any(not message.get("train", True) for message in conversation.messages[:stop]):
            raise _TurnError(
                "untrained_turn",
                "the row excludes an answer from training, but the template marks all of them",
                'set train_on to "last", or use a template without marks',
            )
    except TemplateRefusal as refusal:
        raise _refused(turns[-1], refusal) from None
    if not spans:
        raise _TurnError(
            "no_marks", "the template marks nothing of this conversation", "correct the template"
        )
    marked = "\n".join(text[start:end] for start, end in spans)
    at = marked_at = 0
    for number, message in enumerate(conversation.messages[:stop]):
        at = _check_shown(message, text, at)
        if number in turns:  # of reasoning before the last answer a template may keep nothing
            marked_at = _check_shown(message, marked, marked_at, number == turns[-1])
    return Passage(conversation, text, tuple(spans))


def _refused(turn: int, refusal: TemplateRefusal) -> _TurnError:
    return _TurnError(
        "template",
        f"message {turn}: the template refuses: {refusal}",
        "change the row's roles or fields to what the template takes, or give another",
    )


def _check_special(chat: Chat, messages: Iterable[Message], conversation: Conversation) -> None:
    """A special token that a message spells becomes the token itself, and forges a turn."""
    if problem := forged_turn(chat, [*messages, *conversation.tools]):
        raise _TurnError(*problem)


def forged_turn(chat: Chat, parts: object) -> tuple[str, str, str] | None:
    """Reason, detail and cure where messages or tools spell a special token and must not."""
    if chat.recipe.special_in_text == "allow":
        return None
    spelled = chat.tokens.special_in("\0".join(_strings(parts)))
    if not spelled:
        return None
    return (
        "special_in_text",
        f"a message spells {spelled}, which becomes the token itself",
        'take it out of the text, or set special_in_text to "allow"',
    )


def half_character(parts: object) -> str:
    """Half of a surrogate pair in a text, which has no ids; "" if there is none."""
    for text in _strings(parts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return ascii(text[error.start])
    return ""


def _strings(value: object) -> Iterator[str]:
    """All text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _check_shown(message: Message, text: str, start: int, is_trained: bool = False) -> int:
    """Templates leave out what they do not know: roles, tool calls, reasoning.

    Args:
        start: where the message before ends in the text.

    Returns:
        where this one ends.
    """
    is_moved = message["role"] in ("system", "developer")  # templates put them first
    at = 0 if is_moved else start
    for name, part in _parts(message, is_trained):
        end = _end_of(part.strip(), text, at)
        if end < 0:
            raise _TurnError(
                "left_out",
                f"the template leaves out the {message['role']}'s {name}, {_short(part)}",
                'set thinking to "drop"'
                if name == "reasoning"
                else "drop the row, or give another chat_template",
            )
        at = end
    return max(start, at)


def _end_of(part: str, text: str, start: int) -> int:
    """Where the part first ends in the text, as it is or within JSON; -1: it is not there."""
    forms = {part, json.dumps(part, ensure_ascii=False)[1:-1]}
    return min(
        (at + len(form) for form in forms if (at := text.find(form, start)) >= 0), default=-1
    )


def _parts(message: Message, is_trained: bool) -> Iterator[tuple[str, str]]:
    """What must be seen of a message, in its order."""
    thought, mark, visible = message["content"].rpartition("</think>")
    if message["role"] != "assistant" or not mark:
        thought, visible = "", message["content"]
    if is_trained:
        yield "reasoning", message.get("reasoning_content", "")
        yield "reasoning", thought.replace("<think>", "", 1)
    if is_trained or "tool_calls" not in message:  # harmony's thoughts before an earlier call
        yield "content", visible
    for call in message.get("tool_calls", ()):
        yield "tool call", call["function"]["name"]
        for part in _strings(call["function"]["arguments"]):
            yield "tool call", part


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
