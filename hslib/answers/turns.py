"""What the model is asked, turn by turn, and the rows that its answers make. Pure decisions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hslib.answers.journal import AnsweredRow
from hslib.rows.chat import TemplateRefusal
from hslib.server import Completion

Message = dict[str, Any]
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Turn:
    """A prompt as the template renders it, and the model's answer to it."""

    prompt: Ids
    answer: Completion


@dataclass(frozen=True)
class Dialogue:
    """The turns that the model answered, and why it answered no more ("" when it answered all)."""

    turns: tuple[Turn, ...]
    ended_by: str = ""  # a reason code
    detail: str = ""


def questions(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """What stands before each assistant turn, and after the last one; each holds a user's message.

    An answer that begins the conversation is context. It ends before a tool's result: that answers
    a call that the model may not have made.
    """
    found: list[Message] = []
    is_begun = False
    for message in messages:
        if message["role"] == "tool":
            return
        if message["role"] != "assistant":
            found.append(message)
        elif any(one["role"] == "user" for one in found):
            yield found
            found, is_begun = [], True
        elif not is_begun:
            found.append(message)
    if any(message["role"] == "user" for message in found):
        yield found


def converse(
    messages: Sequence[Message],
    render: Callable[[list[Message]], Ids],
    ask: Callable[[Ids, int], Completion],
    read: Callable[[Ids], str],
    *,
    max_tokens: int,
    max_answer_tokens: int,
    keep_cut: bool,
) -> Dialogue:
    """Ask every user turn anew; the model reads its own earlier answers, not the data's.

    Args:
        render: messages to a prompt's ids; raises :class:`TemplateRefusal`.
        ask: a prompt and the most tokens to generate, to the answer.
        read: an answer's ids to the text that the template puts into the next prompt.
        max_tokens: prompt and answer together.
        keep_cut: an answer that came to its longest length ends the dialogue; it is kept or not.
    """
    history: list[Message] = []
    turns: list[Turn] = []
    for question in questions(messages):
        history += question
        try:
            prompt = render(history)
        except TemplateRefusal as refusal:
            return Dialogue(tuple(turns), "template", f"the template refuses: {refusal}")
        room = max_tokens - len(prompt)
        if room < 1:
            return Dialogue(tuple(turns), "too_long", f"a prompt of {len(prompt)} tokens")
        answer = ask(prompt, min(room, max_answer_tokens))
        if answer.is_cut:
            kept = [Turn(prompt, answer)] if keep_cut else []
            detail = f"an answer was cut after {len(answer.ids)} tokens"
            return Dialogue((*turns, *kept), "cut", detail)
        turns.append(Turn(prompt, answer))
        history.append({"role": "assistant", "content": read(without_end(answer))})
    return Dialogue(tuple(turns))


def without_end(answer: Completion) -> Ids:
    """The answer's ids without the token that ended it."""
    is_ended = answer.ids and answer.matched == answer.ids[-1]
    return answer.ids[:-1] if is_ended else answer.ids


def join(turns: Sequence[Turn]) -> list[AnsweredRow]:
    """One row where each prompt begins with all ids before it, else a new row from there.

    A template that leaves out earlier thinking, or text that is tokenized otherwise than the model
    wrote it, begins a new row: no id of an answer is ever made from text.
    """
    rows: list[AnsweredRow] = []
    for turn in turns:
        prompt, answer = list(turn.prompt), list(turn.answer.ids)
        mask, reasons = [0] * len(prompt), ["length" if turn.answer.is_cut else "stop"]
        if rows and prompt[: len(rows[-1].input_ids)] == rows[-1].input_ids:
            begin = rows.pop()
            mask[: len(begin.loss_mask)] = begin.loss_mask
            reasons = begin.stop_reasons + reasons
        row = AnsweredRow(
            input_ids=prompt + answer,
            loss_mask=mask + [1] * len(answer),
            last_answer=len(answer),
            stop_reasons=reasons,
        )
        rows.append(row)
    return rows
