# ruff: noqa: RUF001 (DeepSeek's special tokens have full-width bars)
"""Conversations of every kind, tokenizers of six families, and what each family's format makes.

The formats are written out here message by message, as their makers document them: an own
construction that the rows are compared with. The templates beside it have the shapes of the real
ones.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, trainers
from tokenizers import pre_tokenizers as pre
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "templates"
DAY = date(2026, 1, 30)
# The expression that Qwen's byte-level vocabularies split text with.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Message = dict[str, Any]
Piece = tuple[str, int | None]  # text, and the turn in which the model generates it


@dataclass(frozen=True)
class Chat:
    """A conversation as the dataset has it, and what it means."""

    row: dict[str, Any]
    messages: list[Message]
    tools: list[dict[str, Any]]
    spelled: str = ""  # a special token that a message spells
    has_empty_answer: bool = False


@dataclass(frozen=True)
class Family:
    """A model family's special tokens and format.

    ``pieces``: the text of messages and tools. ``prompt``: what the server writes before an answer.
    ``leaves_out``: whether the format has no place for a part of a message; ``refuses``: whether
    its template raises an error.
    """

    name: str
    specials: tuple[str, ...]
    ends: tuple[str, ...]
    pieces: Callable[[list[Message], list[dict[str, Any]]], Iterator[Piece]]
    prompt: Callable[[list[Message]], str]
    leaves_out: Callable[[Message, bool], bool]
    refuses: Callable[[Message], bool] = lambda _message: False
    bos: str | None = None


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _calls(message: Message) -> list[dict[str, Any]]:
    return [call["function"] for call in message.get("tool_calls", [])]


def _thought(message: Message) -> tuple[str, str]:
    """Reasoning and the rest, wherever the row has it."""
    if message.get("reasoning_content"):
        return message["reasoning_content"], message["content"]
    before, mark, after = message["content"].partition("</think>")
    return (before.split("<think>")[-1], after.lstrip("\n")) if mark else ("", message["content"])


def _has_thought(message: Message, is_trained: bool) -> bool:
    return is_trained and message["role"] == "assistant" and bool(_thought(message)[0])


# --- the formats ----------------------------------------------------------------------------


def _qwen3(messages: list[Message], tools: list[dict[str, Any]]) -> Iterator[Piece]:
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    if system or tools:
        yield "<|im_start|>system\n" + system, None
        if tools:
            listed = "".join("\n" + _dumps(tool) for tool in tools)
            yield ("\n\n" if system else "") + f"# Tools\n<tools>{listed}\n</tools>", None
        yield "<|im_end|>\n", None
    last_query = max((n for n, m in enumerate(messages) if m["role"] == "user"), default=-1)
    for at, message in enumerate(messages):
        if message["role"] == "user":
            yield f"<|im_start|>user\n{message['content']}<|im_end|>\n", None
        if message["role"] == "tool":
            if messages[at - 1]["role"] != "tool":
                yield "<|im_start|>user", None
            yield f"\n<tool_response>\n{message['content']}\n</tool_response>", None
            if at + 1 == len(messages) or messages[at + 1]["role"] != "tool":
                yield "<|im_end|>\n", None
        if message["role"] == "assistant":
            yield "<|im_start|>assistant\n", None
            reasoning, content = _thought(message)
            if at > last_query and (at + 1 == len(messages) or reasoning):
                stripped = reasoning.strip("\n")
                content = content.lstrip("\n")
                yield f"<think>\n{stripped}\n</think>\n\n", at
            yield content, at
            for number, call in enumerate(_calls(message)):
                lead = "\n" if number or _thought(message)[1] else ""
                arguments = _dumps(call["arguments"])
                text = f'{{"name": "{call["name"]}", "arguments": {arguments}}}'
                yield f"{lead}<tool_call>\n{text}\n</tool_call>", at
            yield "<|im_end|>", at
            yield "\n", None


def _llama3(messages: list[Message], tools: list[dict[str, Any]]) -> Iterator[Piece]:
    def header(role: str) -> Piece:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n", None

    system = messages[0]["content"].strip() if messages[0]["role"] == "system" else ""
    yield "<|begin_of_text|>", None
    yield header("system")
    yield f"Today Date: {DAY:%d %b %Y}\n\n", None
    yield "".join(_dumps(tool) + "\n\n" for tool in tools) + system + "<|eot_id|>", None
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            yield header("ipython")
            yield _dumps(message["content"]) + "<|eot_id|>", None
        elif message["role"] == "user":
            yield header("user")
            yield message["content"].strip() + "<|eot_id|>", None
        elif message["role"] == "assistant":
            yield header("assistant")
            text = message["content"].strip()
            for call in _calls(message):
                text = f'{{"name": "{call["name"]}", "parameters": {_dumps(call["arguments"])}}}'
            yield text + "<|eot_id|>", at


def _deepseek(messages: list[Message], tools: list[dict[str, Any]]) -> Iterator[Piece]:
    yield "<｜begin▁of▁sentence｜>", None
    yield "".join(m["content"] for m in messages if m["role"] == "system"), None
    yield "".join("\n" + _dumps(tool) for tool in tools), None
    for at, message in enumerate(messages):
        before = messages[at - 1]["role"] if at else ""
        if message["role"] == "user":
            yield f"<｜User｜>{message['content']}", None
        if message["role"] == "tool":
            yield f"<｜tool▁output▁begin｜>{message['content']}<｜tool▁output▁end｜>", None
        if message["role"] == "assistant":
            if before == "user":
                yield "<｜Assistant｜></think>", None
            content = message["content"]
            if "</think>" in content and before != "tool":
                content = content.split("</think>", 1)[1]
            yield content, at
            if _calls(message):
                yield "<｜tool▁calls▁begin｜>", at
                for call in _calls(message):
                    text = f"{call['name']}<｜tool▁sep｜>{_dumps(call['arguments'])}"
                    yield f"<｜tool▁call▁begin｜>{text}<｜tool▁call▁end｜>", at
                yield "<｜tool▁calls▁end｜>", at
            yield "<｜end▁of▁sentence｜>", at


def _kimi_k2(messages: list[Message], tools: list[dict[str, Any]]) -> Iterator[Piece]:
    if tools:
        yield f"<|im_system|>tool_declare<|im_middle|>{_dumps(tools)}<|im_end|>", None
    if messages[0]["role"] != "system":
        yield "<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>", None
    for at, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "tool":
            text = f"## Return of {message['tool_call_id']}\n{content}"
            yield f"<|im_system|>tool<|im_middle|>{text}<|im_end|>", None
        elif role != "assistant":
            yield f"<|im_{role}|>{role}<|im_middle|>{content}<|im_end|>", None
        else:
            yield "<|im_assistant|>assistant<|im_middle|>", None
            yield content, at
            calls = "".join(
                f"<|tool_call_begin|>{call['id']}<|tool_call_argument_begin|>"
                f"{_dumps(call['function']['arguments'])}<|tool_call_end|>"
                for call in message.get("tool_calls", [])
            )
            if calls:
                yield f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>", at
            yield "<|im_end|>", at


def _gpt_oss(messages: list[Message], tools: list[dict[str, Any]]) -> Iterator[Piece]:
    yield f"<|start|>system<|message|>You are a model.\nCurrent date: {DAY}<|end|>", None
    instructions = messages[0]["content"] if messages[0]["role"] == "system" else ""
    if instructions or tools:
        types = "".join(f"\ntype {tool['function']['name']} = () => any;" for tool in tools)
        yield f"<|start|>developer<|message|>{instructions}{types}<|end|>", None
    tool = ""
    for at, message in enumerate(messages):
        is_last = at + 1 == len(messages)
        if message["role"] == "user":
            yield f"<|start|>user<|message|>{message['content']}<|end|>", None
        if message["role"] == "tool":
            text = _dumps(message["content"])
            yield f"<|start|>functions.{tool} to=assistant<|channel|>commentary<|message|>", None
            yield f"{text}<|end|>", None
        if message["role"] != "assistant":
            continue
        yield "<|start|>assistant", None
        thought = message.get("reasoning_content", "")
        if calls := _calls(message):
            tool, thought = calls[0]["name"], message["content"] or thought
            final = any(
                m["role"] == "assistant" and not m.get("tool_calls") for m in messages[at + 1 :]
            )
            if thought and not final:
                yield f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant", at
            arguments = _dumps(calls[0]["arguments"])
            yield f" to=functions.{tool}<|channel|>commentary json<|message|>{arguments}", at
            yield "<|call|>", at
        else:
            if is_last and thought:
                yield f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant", at
            yield f"<|channel|>final<|message|>{message['content']}", at
            yield "<|return|>" if is_last else "<|end|>", at


def _mistral(messages: list[Message], tools: list[dict[str, Any]]) -> Iterator[Piece]:
    yield "<s>", None
    last_user = max((n for n, m in enumerate(messages) if m["role"] == "user"), default=-1)
    for at, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if role == "system":
            yield f"[SYSTEM_PROMPT]{content}[/SYSTEM_PROMPT]", None
        if role == "user":
            if tools and at == last_user:
                yield f"[AVAILABLE_TOOLS]{_dumps(tools)}[/AVAILABLE_TOOLS]", None
            yield f"[INST]{content}[/INST]", None
        if role == "tool":
            text = f'"content": {_dumps(content)}, "call_id": "{message["tool_call_id"]}"'
            yield f"[TOOL_RESULTS]{{{text}}}[/TOOL_RESULTS]", None
        if role == "assistant":
            yield content, at
            calls = [
                _dumps(call["function"])[:-1] + f', "id": "{call["id"]}"}}'
                for call in message.get("tool_calls", [])
            ]
            if calls:
                yield f"[TOOL_CALLS][{', '.join(calls)}]", at
            yield "</s>", at


def _text_beside_a_call(message: Message, is_trained: bool) -> bool:
    """Llama 3 writes the call alone, and knows no reasoning."""
    beside = is_trained and bool(_calls(message) and message["content"].strip())
    return beside or _has_thought(message, is_trained)


def _no_second_call(message: Message, _is_trained: bool) -> bool:
    """Harmony's template writes one call per message."""
    return len(_calls(message)) > 1


def _no_name_of_a_call(message: Message, is_trained: bool) -> bool:
    """Kimi-K2 writes a call's id in place of the function's name."""
    calls = message.get("tool_calls", [])
    named = all(call["function"]["name"] in call["id"] for call in calls)
    return not named or _has_thought(message, is_trained)


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "qwen3",
            ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
            ("<|im_end|>", "<|endoftext|>"),
            _qwen3,
            lambda _messages: "<|im_start|>assistant\n",
            lambda _message, _is_trained: False,
        ),
        Family(
            "llama3",
            (
                *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
                *("<|eot_id|>", "<|eom_id|>"),
            ),
            ("<|eot_id|>", "<|eom_id|>"),
            _llama3,
            lambda _messages: "<|start_header_id|>assistant<|end_header_id|>\n\n",
            _text_beside_a_call,
            lambda message: len(_calls(message)) > 1,
            bos="<|begin_of_text|>",
        ),
        Family(
            "deepseek",
            (
                *(
                    "<｜begin▁of▁sentence｜>",
                    "<｜end▁of▁sentence｜>",
                    "<｜User｜>",
                    "<｜Assistant｜>",
                ),
                *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
                *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁output▁begin｜>"),
                "<｜tool▁output▁end｜>",
            ),
            ("<｜end▁of▁sentence｜>",),
            _deepseek,
            lambda messages: "<｜Assistant｜></think>" if messages[-1]["role"] == "user" else "",
            _has_thought,
            bos="<｜begin▁of▁sentence｜>",
        ),
        Family(
            "kimi_k2",
            (
                *("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>"),
                *("<|im_system|>", "<|im_middle|>", "<|tool_calls_section_begin|>"),
                *("<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
                "<|tool_call_argument_begin|>",
            ),
            ("[EOS]", "<|im_end|>"),
            _kimi_k2,
            lambda _messages: "<|im_assistant|>assistant<|im_middle|>",
            _no_name_of_a_call,
        ),
        Family(
            "gpt_oss",
            (
                *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
                "<|endoftext|>",
            ),
            ("<|return|>", "<|call|>", "<|endoftext|>"),
            _gpt_oss,
            lambda _messages: "<|start|>assistant",
            _no_second_call,
            lambda message: bool(
                _calls(message) and message["content"] and message.get("reasoning_content")
            ),
        ),
        Family(
            "mistral",
            (
                *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
                *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
                "[/TOOL_RESULTS]",
            ),
            ("</s>",),
            _mistral,
            lambda _messages: "",
            lambda message, is_trained: is_trained and bool(message.get("reasoning_content")),
            bos="<s>",
        ),
    )
}

# --- tokenizers -----------------------------------------------------------------------------


@lru_cache
def _core(words: tuple[str, ...] = ()) -> str:
    """A byte-level vocabulary with merges of words, spaces and line breaks."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(_SPLIT), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    rng = random.Random(0)
    corpus = [_text(rng) + "\n\n\n" + "  \n" * 3 + "assistant\n\nuser\n" for _ in range(400)]
    corpus += [" " + word for word in words]
    trainer = trainers.BpeTrainer(
        vocab_size=700 + len(words),
        initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(corpus, trainer)
    return str(core.to_str())


def save_tokenizer(
    family: Family, folder: Path, template: str = "", vocabulary: Sequence[str] = ()
) -> Path:
    """Write a model folder of the family: tokenizer, template, and the ids that end an answer.

    Args:
        template: another one than the family's own.
        vocabulary: words that become tokens.
    """
    core = Tokenizer.from_str(_core(tuple(vocabulary)))
    core.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in family.specials]
    )
    core.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=family.bos,
        eos_token=family.ends[0],
        additional_special_tokens=list(family.specials),
        chat_template=(TEMPLATES / f"{template or family.name}.jinja").read_text("utf-8"),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
    ends = [core.token_to_id(end) for end in family.ends]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


# --- conversations --------------------------------------------------------------------------

_WORDS_TEXT = """
the river bends where old stones rest and nobody counts days naïve café façade numbers
17 204 functions return lists {a: 1} x=3; 你好 世界 河流在这里转弯 数字 ありがとう 🙂 👩‍👩‍👧 🚀 é
"""
_WORDS = _WORDS_TEXT.split()


def _text(rng: random.Random, least: int = 1) -> str:
    words = " ".join(rng.choices(_WORDS, k=rng.randint(least, 24)))
    return rng.choice(("", "", "", "\n", "  ", "\n\n")) + words + rng.choice((".", "!\n", " ", "?"))


def _call(rng: random.Random, number: int) -> dict[str, Any]:
    """Its id is Kimi-K2's, which names the function, or another."""
    name = rng.choice(("find", "mul", "read_file"))
    arguments = {"a": rng.randint(0, 99), "text": _text(rng)}
    return {
        "id": f"functions.{name}:{number}" if rng.random() < 0.7 else f"call{number:05d}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def make_chat(seed: int, spelled: str = "") -> Chat:
    """A conversation of one to four exchanges; some with tools, thinking, or what is refused."""
    rng = random.Random(seed)
    messages: list[Message] = []
    tools: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": _text(rng)})
    thinks, calls = rng.random() < 0.3, rng.random() < 0.3
    for exchange in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": _text(rng)})
        if calls and rng.random() < 0.7:
            made = [_call(rng, 10 * exchange + n) for n in range(rng.choice((1, 1, 1, 2)))]
            answer: Message = {"role": "assistant", "content": "", "tool_calls": made}
            if rng.random() < 0.3:
                answer["content"] = _text(rng)
            if thinks and rng.random() < 0.5:
                answer["reasoning_content"] = _text(rng)
            messages.append(answer)
            messages += [
                {"role": "tool", "content": _text(rng), "tool_call_id": call["id"]} for call in made
            ]
        answer = {"role": "assistant", "content": _text(rng)}
        if thinks and rng.random() < 0.7:
            answer["reasoning_content"] = _text(rng)
        messages.append(answer)
    if calls:
        names = ("find", "mul", "read_file")
        tools = [{"type": "function", "function": {"name": name}} for name in names]
    has_empty = rng.random() < 0.04
    if has_empty:
        messages[-1] = {"role": "assistant", "content": rng.choice(("", " "))}
    spelled = spelled if rng.random() < 0.06 and not has_empty else ""
    if spelled:
        at = rng.randrange(len(messages))
        messages[at]["content"] += f" {spelled} and more"
    return Chat(_row(rng, messages, tools), messages, tools, spelled, has_empty)


def _row(
    rng: random.Random, messages: list[Message], tools: list[dict[str, Any]]
) -> dict[str, Any]:
    """In OpenAI's form, or ShareGPT's where that can say it."""
    plain = all(set(message) == {"role", "content"} for message in messages)
    if plain and rng.random() < 0.5:
        names = {"user": "human", "assistant": "gpt", "system": "system"}
        turns = [{"from": names[m["role"]], "value": m["content"]} for m in messages]
        row: dict[str, Any] = {"conversations": turns}
    else:
        row = {"messages": [_written(rng, message) for message in messages]}
    if tools:
        row["tools"] = tools if rng.random() < 0.5 else json.dumps(tools)
    return row


def _written(rng: random.Random, message: Message) -> Message:
    """The same message as datasets have it: content in parts, arguments as text."""
    written = {**message}
    if rng.random() < 0.2:
        written["content"] = [{"type": "text", "text": message["content"]}]
    if "tool_calls" in message and rng.random() < 0.5:
        written["tool_calls"] = [
            {
                **call,
                "function": {
                    **call["function"],
                    "arguments": json.dumps(call["function"]["arguments"]),
                },
            }
            for call in message["tool_calls"]
        ]
    return written


# --- what is right --------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """A row's ids and mask, or the reason of a rejection."""

    reason: str = ""
    turn: int | None = None
    ids: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()


def expected_rows(
    family: Family, tokenizer: PreTrainedTokenizerFast, chat: Chat, train_on: str, thinking: str
) -> list[Expected]:
    """What must be made of a conversation, by walking through its messages."""
    if chat.has_empty_answer:
        return [Expected("empty_answer")]
    messages = [_no_thought(m) for m in chat.messages] if thinking == "drop" else chat.messages
    turns = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    turns = turns[-1:] if train_on == "last" else turns
    if chat.spelled and any(chat.spelled in m["content"] for m in messages[: turns[-1] + 1]):
        return [Expected("special_in_text")]
    reasons, seen = {}, 0
    for turn in turns:
        reasons[turn] = _problem(family, messages, chat.tools, seen, turn)
        seen = seen if reasons[turn] else turn + 1
    texts = {turn: _tagged(family, messages[: turn + 1], chat.tools, {turn}) for turn in turns}
    whole = _tagged(family, messages[: turns[-1] + 1], chat.tools, set(turns))
    if not any(reasons.values()) and all(_agrees(whole, texts[t]) for t in turns):
        return [_tokenized(tokenizer, family, whole, None)]
    return [
        Expected(reasons[t]) if reasons[t] else _tokenized(tokenizer, family, texts[t], t)
        for t in turns
    ]


def _no_thought(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def _problem(
    family: Family, messages: list[Message], tools: list[dict[str, Any]], seen: int, turn: int
) -> str:
    if any(family.refuses(message) for message in messages[: turn + 1]):
        return "template"
    prompt = "".join(text for text, _ in family.pieces(messages[:turn], tools))
    text = "".join(text for text, _ in family.pieces(messages[: turn + 1], tools))
    if not text.startswith(prompt + family.prompt(messages[:turn])):
        return "prompt_differs"
    if any(family.leaves_out(message, False) for message in messages[seen:turn]):
        return "left_out"
    return "left_out" if family.leaves_out(messages[turn], True) else ""


def _tagged(
    family: Family, messages: list[Message], tools: list[dict[str, Any]], turns: set[int]
) -> list[tuple[str, bool]]:
    """Runs of text that train or do not."""
    runs: list[tuple[str, bool]] = []
    for text, turn in family.pieces(messages, tools):
        trains = turn in turns
        if runs and runs[-1][1] == trains:
            runs[-1] = runs[-1][0] + text, trains
        elif text:
            runs.append((text, trains))
    return runs


def _agrees(whole: Sequence[tuple[str, bool]], one: Sequence[tuple[str, bool]]) -> bool:
    """Whether a turn looks in the whole conversation as it does at its end."""
    until = "".join(text for text, _ in (one if one[-1][1] else one[:-1]))
    return "".join(text for text, _ in whole).startswith(until)


def _tokenized(
    tokenizer: PreTrainedTokenizerFast,
    family: Family,
    runs: Sequence[tuple[str, bool]],
    turn: int | None,
) -> Expected:
    """Each run by itself: special tokens by their number, what is between them as text."""
    core = tokenizer.backend_tokenizer
    expression = re.compile(f"({'|'.join(map(re.escape, family.specials))})")
    ids: list[int] = []
    mask: list[int] = []
    for text, trains in runs:
        for part in filter(None, expression.split(text)):
            is_special = part in family.specials
            new = [core.token_to_id(part)] if is_special else core.encode(part).ids
            ids += new
            mask += [int(trains)] * len(new)
    whole = core.encode("".join(text for text, _ in runs), add_special_tokens=False).ids
    return Expected("", turn, tuple(ids), tuple(mask)) if whole == ids else Expected("merged")
