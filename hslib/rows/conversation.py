"""A dataset's row as a conversation in the form that chat templates expect.

Two forms are read: ``messages`` (OpenAI's) and ``conversations`` (ShareGPT's ``from`` and
``value``, with the names that LLaMA-Factory and Axolotl know). What can be read in two ways is
rejected, with what to write instead.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from hslib.dataset import Rejection

Message = dict[str, Any]

_ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function", "function_response"), "tool"),
    "function_call": "assistant",  # the call itself, as JSON
    "system": "system",
    "developer": "developer",
}
_REASONING = ("reasoning_content", "reasoning", "thinking")
_MEDIA = ("images", "image", "videos", "video", "audios", "audio")


@dataclass(frozen=True)
class Conversation:
    """What a chat template renders.

    A message has ``role`` (system, developer, user, assistant, tool), ``content`` (a string), and
    where the row has them ``tool_calls`` (arguments as objects, which is how SGLang and vLLM hand
    them to a template), ``tool_call_id``, ``name``, and the reasoning under each of the names
    that templates know. ``train`` False: an answer that is context (``weight`` 0 in the row, or
    ``train`` false).
    """

    index: int
    id: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    template: Mapping[str, Any] = field(default_factory=dict)  # chat_template_kwargs

    @property
    def answers(self) -> tuple[int, ...]:
        """Indices of the assistant's messages that train."""
        assistants = (n for n, m in enumerate(self.messages) if m["role"] == "assistant")
        return tuple(n for n in assistants if self.messages[n].get("train", True))

    def with_system(self, prompt: str) -> "Conversation":
        """The same, begun with a system message if it has none."""
        if not prompt or self.messages[0]["role"] in ("system", "developer"):
            return self
        return replace(self, messages=({"role": "system", "content": prompt}, *self.messages))

    def without_thinking(self) -> "Conversation":
        """The same, without reasoning fields and what stands before ``</think>``."""
        return replace(self, messages=tuple(_without_thinking(m) for m in self.messages))


def read_conversation(
    index: int, row: Mapping[str, Any], needs_answer: bool = True
) -> Conversation | Rejection:
    """A parsed row as a conversation, or the reason why it can't be one. Pure.

    Args:
        needs_answer: False where the answers are made anew: there may be none.

    ``messages`` is taken before ``conversations``; a ``system`` string of the row becomes the
    first message if there is no other.
    """
    row_id = str(row["id"]) if row.get("id") is not None else str(index)
    row_id = row_id.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair
    try:
        return Conversation(
            index,
            row_id,
            _messages(row, needs_answer),
            _tools(row.get("tools")),
            _template_variables(row),
        )
    except _RowError as problem:
        return Rejection(index, row_id, *problem.args)


class _RowError(Exception):
    """(reason, detail, fix) of a rejection."""


def _messages(row: Mapping[str, Any], needs_answer: bool) -> tuple[Message, ...]:
    medium = next((name for name in _MEDIA if row.get(name)), "")
    if medium:
        raise _RowError("media", f"the row has {medium}", "only text can be sent: drop the row")
    name = next((n for n in ("messages", "conversations") if row.get(n) is not None), "")
    if not name:
        keys = ", ".join(list(row)[:8])
        raise _RowError(
            "no_conversation", f"the row has only: {keys}", "write messages or conversations"
        )
    turns = row[name]
    if not isinstance(turns, list):
        raise _RowError(
            "not_messages", f"{name} is {_show(turns)}", "write a list of role and content"
        )
    if not turns:
        raise _RowError("empty", f"{name} is []", "drop the row")
    found = tuple(_message(at, turn, needs_answer) for at, turn in enumerate(turns))
    system = row.get("system")
    if isinstance(system, str) and system and found[0]["role"] != "system":
        found = ({"role": "system", "content": system}, *found)
    if needs_answer and not any(message["role"] == "assistant" for message in found):
        raise _RowError("no_answer", "no message has the role assistant", "drop the row")
    return found


def _message(at: int, turn: Any, needs_answer: bool) -> Message:
    if not isinstance(turn, dict):
        raise _RowError("not_messages", f"message {at} is {_show(turn)}", "write role and content")
    given = turn["role"] if turn.get("role") is not None else turn.get("from")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        known = ", ".join(_ROLES)
        raise _RowError("unknown_role", f"message {at} has role {given!r}", f"known are {known}")
    content = turn["content"] if turn.get("content") is not None else turn.get("value")
    message: Message = {"role": role, "content": _text(at, content)}
    for name in ("name", "tool_call_id"):
        if turn.get(name) is not None:
            message[name] = turn[name]
    if role != "assistant":
        if content is None:
            raise _RowError("no_content", f"message {at} has no content", 'write content, or ""')
        return message
    if turn.get("weight") == 0 or turn.get("train") is False:
        message["train"] = False
    calls = turn.get("tool_calls") or ()
    if given == "function_call":
        calls, message["content"] = _calls_in_text(at, message["content"]), ""
    if not isinstance(calls, list | tuple):
        raise _bad_call(at, calls)
    if calls:
        message["tool_calls"] = [_tool_call(at, call) for call in calls]
    reasoning = _reasoning(at, turn)
    if reasoning:
        message.update(dict.fromkeys(_REASONING, reasoning))
    if needs_answer and not (message["content"].strip() or calls or reasoning):
        raise _RowError("empty_answer", f"message {at}, the assistant's, is empty", "drop it")
    return message


def _text(at: int, content: Any) -> str:
    """Several parts have no one text: SGLang joins them with a space, vLLM with a line break."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    kinds = [part.get("type") if isinstance(part, dict) else None for part in parts]
    other = next((kind for kind in kinds if isinstance(kind, str) and kind != "text"), None)
    if other is not None:
        raise _RowError(
            "media", f"message {at} has a part of type {other!r}", "only text can be sent"
        )
    given = [part.get("text") if isinstance(part, dict) else part for part in parts]
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given) or not isinstance(content, list):
        raise _RowError("not_text", f"message {at} has content {_show(content)}", "write a string")
    if len(texts) > 1:
        raise _RowError(
            "several_parts",
            f"message {at} has {len(texts)} text parts, which servers join in different ways",
            "join them to one string",
        )
    return "".join(texts)


def _reasoning(at: int, turn: Mapping[str, Any]) -> str:
    """The text of the reasoning fields, which must agree."""
    found = {turn[name] for name in _REASONING if isinstance(turn.get(name), str)} - {""}
    if len(found) > 1:
        names = ", ".join(name for name in _REASONING if turn.get(name))
        raise _RowError("two_reasonings", f"message {at}: {names} differ", "keep one of them")
    return found.pop() if found else ""


def _calls_in_text(at: int, text: str) -> list[Any]:
    """The calls of a ``function_call`` turn: JSON of one, or of a list of them."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise _bad_call(at, text) from None
    return found if isinstance(found, list) else [found]


def _tool_call(at: int, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _bad_call(at, call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            raise _bad_call(at, arguments) from None
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise _bad_call(at, arguments)
    named = {"id": call["id"]} if call.get("id") is not None else {}
    return {
        **named,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _bad_call(at: int, evidence: Any) -> _RowError:
    return _RowError(
        "tool_call",
        f"message {at} calls a tool with {_show(evidence)}",
        "write name, and arguments as an object or its JSON",
    )


def _tools(given: Any) -> tuple[dict[str, Any], ...]:
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given)
        except ValueError:
            given = [given]
    if not given or (isinstance(given, str) and not given.strip()):
        return ()
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise _RowError("tools", f"tools is {_show(given)}", "write a list of schemas")
    return tuple(t if "function" in t else {"type": "function", "function": t} for t in given)


def _template_variables(row: Mapping[str, Any]) -> dict[str, Any]:
    given = row.get("chat_template_kwargs") or {}
    if not isinstance(given, dict):
        raise _RowError(
            "template_variables", f"chat_template_kwargs is {_show(given)}", "write an object"
        )
    return dict(given)


def _without_thinking(message: Message) -> Message:
    if message["role"] != "assistant":
        return message
    kept = {name: value for name, value in message.items() if name not in _REASONING}
    before, mark, after = kept["content"].rpartition("</think>")
    return {**kept, "content": after.lstrip() if mark else before + after}


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
