"""What is asked, and what rows the answers make; ids are letters here."""

import pytest

from hslib.answers.turns import Dialogue, Message, Turn, converse, join, questions
from hslib.rows.chat import TemplateRefusal
from hslib.server import Completion

END = ord("$")


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


TOOL = {"role": "tool", "content": "42"}


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def text(found: tuple[int, ...] | list[int]) -> str:
    return "".join(map(chr, found))


def render(messages: list[Message]) -> tuple[int, ...]:
    """``u:question$a:`` and ``u:question$a:answer$`` for what lies behind."""
    return ids("".join(f"{m['role'][0]}:{m['content']}$" for m in messages) + "a:")


def render_without_thinking(messages: list[Message]) -> tuple[int, ...]:
    """As templates that leave earlier thinking out."""
    return render([{**m, "content": m["content"].rpartition(">")[2]} for m in messages])


def refuse_answers(messages: list[Message]) -> tuple[int, ...]:
    if any(message["role"] == "assistant" for message in messages):
        raise TemplateRefusal("it can't take this answer")
    return render(messages)


class Model:
    """Answers with the question's number; ``longest`` letters cut it."""

    def __init__(self, answer: str = "answer {}") -> None:
        self.answer, self.prompts = answer, list[str]()

    def __call__(self, prompt: tuple[int, ...], room: int) -> Completion:
        self.prompts.append(text(prompt))
        full = (*ids(self.answer.format(len(self.prompts))), END)
        if len(full) > room:
            return Completion(full[:room], True, None)
        return Completion(full, False, END)


def ask(messages, model, render=render, max_tokens=1000, longest=100, keep_cut=False) -> Dialogue:
    return converse(
        messages,
        render,
        model,
        text,
        max_tokens=max_tokens,
        max_answer_tokens=longest,
        keep_cut=keep_cut,
    )


def rows(dialogue: Dialogue) -> list[tuple[str, str]]:
    """Each row's text, and the part of it that trains, with ``_`` for the rest."""
    return [
        (
            text(row.input_ids),
            "".join(
                chr(i) if m else "_" for i, m in zip(row.input_ids, row.loss_mask, strict=True)
            ),
        )
        for row in join(dialogue.turns)
    ]


TWO = [user("one"), assistant("the data's"), user("two"), assistant("the data's")]


def test_each_user_turn_is_asked_and_reads_the_models_own_answers() -> None:
    model = Model()
    assert rows(ask(TWO, model)) == [
        ("u:one$a:answer 1$u:two$a:answer 2$", "________answer 1$________answer 2$")
    ]
    assert model.prompts == ["u:one$a:", "u:one$a:answer 1$u:two$a:"]


def test_a_template_that_drops_earlier_thinking_gives_a_row_per_turn() -> None:
    assert rows(ask(TWO, Model("hm>answer {}"), render_without_thinking)) == [
        ("u:one$a:hm>answer 1$", "________hm>answer 1$"),
        ("u:one$a:answer 1$u:two$a:hm>answer 2$", "_________________________hm>answer 2$"),
    ]


def test_what_stands_between_answers_is_asked_together() -> None:
    system = {"role": "system", "content": "be kind"}
    asked = questions([system, user("one"), user("more"), assistant("x"), user("two")])
    assert list(asked) == [[system, user("one"), user("more")], [user("two")]]


@pytest.mark.parametrize(
    ("messages", "count"),
    [
        ([user("one"), assistant("call"), TOOL, assistant("x"), user("two")], 1),
        ([assistant("hello"), user("one")], 1),
        ([{"role": "system", "content": "be kind"}], 0),
        ([{"role": "system", "content": "be kind"}, assistant("hello")], 0),
        ([user("one")], 1),
        ([user("one"), assistant("a"), assistant("b"), user("two")], 2),
    ],
)
def test_how_many_questions_a_conversation_has(messages: list[Message], count: int) -> None:
    assert len(list(questions(messages))) == count


def test_an_answer_that_begins_the_conversation_is_context() -> None:
    dialogue = ask([assistant("hello"), user("one"), assistant("x")], Model())
    assert rows(dialogue) == [("a:hello$u:one$a:answer 1$", "________________answer 1$")]


def test_a_tools_result_ends_the_questions_and_the_turns_before_it_are_kept() -> None:
    dialogue = ask([user("one"), assistant("call"), TOOL, assistant("x")], Model())
    assert rows(dialogue) == [("u:one$a:answer 1$", "________answer 1$")]


@pytest.mark.parametrize("keep_cut", [True, False])
def test_a_cut_answer_is_kept_or_not_and_nothing_follows_it(keep_cut: bool) -> None:
    model = Model("answer {}" + "." * 50)
    model.answer = "a"
    dialogue = ask(TWO, model, longest=1, keep_cut=keep_cut)
    assert (dialogue.ended_by, dialogue.detail) == ("cut", "an answer was cut after 1 tokens")
    assert rows(dialogue) == ([("u:one$a:a", "________a")] if keep_cut else [])
    assert [row.stop_reasons for row in join(dialogue.turns)] == [["length"]] * keep_cut
    assert len(model.prompts) == 1


def test_prompt_and_answer_fit_together_into_the_longest_row() -> None:
    first = ask(TWO, Model(), max_tokens=20)
    assert (first.ended_by, len(first.turns)) == ("too_long", 1)
    none = ask(TWO, Model(), max_tokens=8)
    assert (none.ended_by, none.turns) == ("too_long", ())
    assert none.detail == "a prompt of 8 tokens"


def test_a_template_that_refuses_the_models_answer_keeps_the_turns_before() -> None:
    dialogue = ask(TWO, Model(), refuse_answers)
    assert (dialogue.ended_by, dialogue.detail) == (
        "template",
        "the template refuses: it can't take this answer",
    )
    assert rows(dialogue) == [("u:one$a:answer 1$", "________answer 1$")]


def test_an_answers_ids_are_never_made_from_its_text() -> None:
    """Text that is tokenized otherwise than the model wrote it begins a new row."""
    own = Turn(ids("u:one$a:"), Completion((*ids("an"), 999, END), False, END))
    again = Turn(ids("u:one$a:an???$u:two$a:"), Completion(ids("x$"), False, END))
    first, second = join([own, again])
    assert first.input_ids == [*ids("u:one$a:an"), 999, END]
    assert sum(second.loss_mask) == 2
