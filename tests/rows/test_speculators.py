"""Beside speculators' own preparation, with its render endpoint answered by the same tokenizer."""

from pathlib import Path
from typing import Any

import pytest
from make.chats import DAY, FAMILIES, make_chat, save_tokenizer
from speculators.data_generation import preprocessing

from hslib.rows import Chat, Recipe, Row, load_chat, make_rows

COUNT = 60


def theirs(chat: Chat, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per answer, its mask behind the rendered prompt."""

    def render(_endpoint: str, given: list[dict[str, Any]], **options: Any) -> list[int]:
        return list(
            chat.tokenizer.apply_chat_template(
                given,
                add_generation_prompt=options["add_generation_prompt"],
                return_dict=False,
                strftime_now=DAY.strftime,
                **chat.recipe.template,
            )
        )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(preprocessing, "render_conversation", render)
        patched.setattr(preprocessing, "_adapt_conv_for_vllm", lambda messages: messages)
        return list(preprocessing._render_boundary_rows(messages, "", 10**6))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_ids_are_theirs_and_so_is_the_mask_up_to_the_end_of_the_turn(
    name: str, tmp_path: Path
) -> None:
    """The one difference in a mask: there the text behind the token that ends a turn trains too,
    such as Qwen's line break, which no server ever generates."""
    folder = save_tokenizer(FAMILIES[name], tmp_path / "m")
    chat = load_chat(Recipe(folder, train_on="last", date=str(DAY)))
    compared = behind = 0
    for seed in range(COUNT):
        made = make_chat(seed)
        if made.tools:
            continue
        messages = [{"role": m["role"], "content": m["content"]} for m in made.messages]
        for row in theirs(chat, messages):
            (mine,) = make_rows(chat, [(0, {"messages": row["conv"]})])
            if not isinstance(mine, Row):
                assert mine.reason in ("merged", "empty_answer")
                continue
            assert mine.input_ids.tolist() == row["input_ids"]
            end = int(mine.loss_mask.nonzero()[0].max()) + 1
            assert mine.loss_mask.tolist()[:end] == row["loss_mask"][:end]
            assert not chat.tokenizer.decode(row["input_ids"][end:]).strip()
            behind += sum(row["loss_mask"][end:])
            compared += 1
    assert compared > COUNT
    assert bool(behind) == (name == "qwen3")


def test_where_the_prompt_begins_a_thought_theirs_trains_on_the_common_prefix(
    tmp_path: Path,
) -> None:
    """Here such a turn is rejected: the server generates behind ``<think>``, the row has none."""
    folder = save_tokenizer(FAMILIES["deepseek"], tmp_path / "m")
    chat = load_chat(Recipe(folder, template={"thinking": True}))
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    (mine,) = make_rows(chat, [(0, {"messages": messages})])
    assert not isinstance(mine, Row) and mine.reason == "prompt_differs"
    (row,) = theirs(chat, messages)
    trained = [n for n, trains in zip(row["input_ids"], row["loss_mask"], strict=True) if trains]
    assert chat.tokenizer.decode(trained) == "</think>a<｜end▁of▁sentence｜>"  # noqa: RUF001
