"""What a row must look like to be a conversation, in each form, and why others are rejected."""

from typing import Any

import pytest

from hslib.dataset import Rejection
from hslib.rows import Conversation, read_conversation

CALL = {"name": "mul", "arguments": {"a": 3, "b": 7}}


def read(row: dict[str, Any]) -> Conversation:
    found = read_conversation(5, row)
    assert isinstance(found, Conversation), found
    return found


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": role, "value": value} for role, value in pairs]


def test_sharegpts_names_become_openais() -> None:
    given = turns(("system", "s"), ("human", "u"), ("gpt", "a"), ("user", "v"), ("chatgpt", "b"))
    found = read({"conversations": given})
    assert [tuple(message.values()) for message in found.messages] == [
        ("system", "s"),
        ("user", "u"),
        ("assistant", "a"),
        ("user", "v"),
        ("assistant", "b"),
    ]
    assert (found.index, found.id, found.answers) == (5, "5", (2, 4))


def test_a_function_call_and_its_observation_become_a_tools() -> None:
    text = '{"name": "mul", "arguments": {"a": 3, "b": 7}}'
    given = turns(("human", "u"), ("function_call", text), ("observation", "21"), ("gpt", "21."))
    found = read({"conversations": given, "tools": '[{"name": "mul"}]', "system": "s"})
    assert [message["role"] for message in found.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert found.messages[2]["tool_calls"] == [{"type": "function", "function": CALL}]
    assert found.tools == ({"type": "function", "function": {"name": "mul"}},)


@pytest.mark.parametrize("arguments", [{"a": 3, "b": 7}, '{"a": 3, "b": 7}'])
def test_arguments_are_an_object_or_its_json(arguments: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "mul", "arguments": arguments}}
    given = [
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "name": None},
        {"role": "tool", "content": "21", "tool_call_id": "c1"},
    ]
    found = read({"messages": given, "id": 7, "chat_template_kwargs": {"enable_thinking": False}})
    assert found.messages[0]["content"] == "u"
    assert found.messages[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": CALL}],
    }
    assert found.messages[2]["tool_call_id"] == "c1"
    assert (found.id, found.template) == ("7", {"enable_thinking": False})


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_each_name_that_a_template_may_ask_for(name: str) -> None:
    given = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", name: "why"}]
    found = read({"messages": given}).messages[1]
    assert {found[key] for key in ("reasoning_content", "reasoning", "thinking")} == {"why"}


def test_thinking_is_dropped_from_fields_and_text() -> None:
    given = [
        {"role": "user", "content": "what is </think>?"},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\na", "thinking": "why"},
    ]
    found = read({"messages": given}).without_thinking().messages
    assert found == (given[0], {"role": "assistant", "content": "a"})


def test_a_system_prompt_is_added_where_there_is_none() -> None:
    without = read({"conversations": turns(("human", "u"), ("gpt", "a"))})
    assert without.with_system("s").messages[0] == {"role": "system", "content": "s"}
    assert without.with_system("") == without
    own = read({"conversations": turns(("system", "own"), ("human", "u"), ("gpt", "a"))})
    assert own.with_system("s") == own


USER = {"role": "user", "content": "u"}
ASKED = [USER, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    ("row", "reason", "evidence"),
    [
        ({"text": "x"}, "no_conversation", "text"),
        ({"messages": "x"}, "not_messages", "'x'"),
        ({"messages": ["x"]}, "not_messages", "message 0"),
        ({"messages": []}, "empty", "[]"),
        ({"messages": [USER]}, "no_answer", "assistant"),
        ({"messages": [USER, {"role": "narrator", "content": "x"}]}, "unknown_role", "narrator"),
        ({"messages": [USER, {"role": None, "content": "x"}]}, "unknown_role", "None"),
        ({"messages": [{"role": "user"}, ASKED[1]]}, "no_content", "message 0"),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, "empty_answer", "message 1"),
        ({"messages": [{"role": "user", "content": 3}, ASKED[1]]}, "not_text", "3"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, ASKED[1]]},
            "media",
            "image_url",
        ),
        ({"messages": ASKED, "images": ["x.jpg"]}, "media", "images"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]},
            "several_parts",
            "2 text parts",
        ),
        (
            {"messages": [USER, {"role": "assistant", "reasoning": "x", "thinking": "y"}]},
            "two_reasonings",
            "reasoning, thinking",
        ),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"name": 3}]}]},
            "tool_call",
            "3",
        ),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]},
                ]
            },
            "tool_call",
            "{",
        ),
        ({"conversations": turns(("human", "u"), ("function_call", "f(x)"))}, "tool_call", "f(x)"),
        ({"messages": ASKED, "tools": "f"}, "tools", "f"),
        ({"messages": ASKED, "chat_template_kwargs": "x"}, "template_variables", "x"),
    ],
)
def test_a_row_that_is_none_is_rejected_with_evidence(
    row: dict[str, Any], reason: str, evidence: str
) -> None:
    found = read_conversation(5, row)
    assert isinstance(found, Rejection)
    assert (found.index, found.reason) == (5, reason)
    assert evidence in found.detail
    assert found.fix
