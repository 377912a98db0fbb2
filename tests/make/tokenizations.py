"""Real tokenizers of three kinds, and rows tokenized in two ways whose cause is known."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    processors,
    trainers,
)
from tokenizers import pre_tokenizers as pre
from transformers import PreTrainedTokenizerFast

from hslib.diagnosis.tokens.differences import Ids, Pair, Side
from hslib.diagnosis.tokens.tokenizers import Rendering, Vocabulary

SPECIALS = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|mid|>", "<|end|>")
TEXT = """
the river bends where old stones rest and nobody counts how many days it took to write
down what was said about naïve café façades coöperation Zoë über façade numbers 17 204
functions return lists of values while loops run over them until something breaks again
"""
WORDS = TEXT.split()
CHAT = (
    "{{ bos_token }}"
    "{%- if date_string is defined -%}<|system|>system<|mid|>Today is {{ date_string }}.<|end|>"
    "{%- endif -%}"
    "{%- if default_system is defined and messages[0]['role'] != 'system' -%}"
    "<|system|>system<|mid|>{{ default_system }}<|end|>{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- set text = message['content'] -%}"
    "{%- if strip_content is defined -%}{%- set text = text.strip() -%}{%- endif -%}"
    "{%- if drop_thinking is defined and '</think>' in text -%}"
    "{%- set text = text.split('</think>')[-1].lstrip() -%}{%- endif -%}"
    "<|{{ message['role'] }}|>{{ message['role'] }}<|mid|>{{ text }}<|end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>assistant<|mid|>{%- endif -%}"
)
CORPUS = [
    " ".join(random.Random(n).choices([*WORDS, *(w.capitalize() for w in WORDS)], k=40))
    + f".\nuser assistant system Today is {n} May 2026-01-30 3 July 5689."
    + " <think>\n</think> Be brief"
    for n in range(200)
]


def _wrap(core: Tokenizer, unknown: str | None = None) -> PreTrainedTokenizerFast:
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    numbers = {token: core.token_to_id(token) for token in SPECIALS}
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", numbers["<s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        unk_token=unknown,
        chat_template=CHAT,
        additional_special_tokens=list(SPECIALS[2:]),
        clean_up_tokenization_spaces=False,
    )


def _byte_level(split: str, size: int, seed_words: list[str]) -> Tokenizer:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(split), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(seed_words, trainer)
    return core


@lru_cache
def byte_level() -> Vocabulary:
    """A byte-level BPE, as GPT-2, Llama 3 and Qwen have it."""
    core = _byte_level(r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", 500, CORPUS)
    return Vocabulary(_wrap(core), "byte-level BPE")


@lru_cache
def byte_level_other_split() -> Vocabulary:
    """The same vocabulary; another expression splits the text (single digits, no space before)."""
    core = Tokenizer.from_str(byte_level().tokenizer.backend_tokenizer.to_str())
    core.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(r"\p{L}{1,5}|\p{N}|[^\s\p{L}\p{N}]+|\s+"), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return Vocabulary(_wrap(core), "byte-level BPE, split otherwise")


@lru_cache
def other_byte_level() -> Vocabulary:
    """Another vocabulary of the same kind and size, trained on other text."""
    words = [text[::-1] + " qu" * 5 for text in CORPUS]
    core = _byte_level(r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", 500, words)
    return Vocabulary(_wrap(core), "another byte-level BPE")


@lru_cache
def _unigram_vocabulary() -> list[tuple[str, float]]:
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre.Metaspace(prepend_scheme="never")
    trainer = trainers.UnigramTrainer(
        vocab_size=400, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    core.train_from_iterator(CORPUS, trainer)
    learned = json.loads(core.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in learned] + [
        (f"<0x{n:02X}>", -20.0) for n in range(256)
    ]


@lru_cache
def unigram(byte_fallback: bool = True) -> Vocabulary:
    """A SentencePiece-like unigram model, with bytes for what it does not know, or without."""
    core = Tokenizer(models.Unigram(_unigram_vocabulary(), 0, byte_fallback=byte_fallback))
    core.pre_tokenizer = pre.Metaspace(prepend_scheme="never")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return Vocabulary(_wrap(core, "<unk>"), "unigram")


@lru_cache
def tiktoken_like() -> Vocabulary:
    """Ranks of byte runs and special tokens behind them, as Kimi-K2's has it."""
    import tiktoken
    from tiktoken._educational import bpe_train

    split = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"""
    ranks = bpe_train(" ".join(CORPUS[:40]), 400, split, visualise=None)
    special = {token: 400 + at for at, token in enumerate(SPECIALS)}
    encoding = tiktoken.Encoding(
        "test", pat_str=split, mergeable_ranks=ranks, special_tokens=special
    )
    return TiktokenVocabulary(encoding, "tiktoken-like")  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class TiktokenVocabulary:
    """Shows that the comparison needs a few methods and no particular library."""

    encoding: Any
    name: str

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self.encoding._special_tokens.values())

    @property
    def bos_ids(self) -> frozenset[int]:
        return frozenset({self.encoding._special_tokens["<s>"]})

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({self.encoding._special_tokens["</s>"]})

    @property
    def unknown_id(self) -> int | None:
        return None

    @property
    def size(self) -> int:
        return int(self.encoding.n_vocab)

    def encode(self, text: str, recipe: Rendering) -> list[int]:
        head = sorted(self.bos_ids) if recipe.add_special_tokens else []
        return head + self.encoding.encode(text, allowed_special="all")

    def encode_chat(self, messages: Any, recipe: Rendering) -> list[int]:
        text = byte_level().tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=recipe.add_generation_prompt,
            **recipe.template,
        )
        return self.encode(str(text), recipe)

    def decode(self, ids: Any) -> str:
        return str(self.encoding.decode([n for n in ids if n < self.size]))

    def pieces(self, ids: Any) -> list[str]:
        single = self.encoding.decode_single_token_bytes
        return [str(single(n)) if n < self.size else f"<{n}>" for n in ids]


# Cases of known cause ------------------------------------------------------------------------

PLAIN = Rendering()


def sentence(rng: random.Random, words: int = 12) -> str:
    return " ".join(rng.choices(WORDS, k=words)).capitalize() + "."


def conversation(rng: random.Random, turns: int = 2) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [
        {"role": roles[n % 2], "content": sentence(rng, rng.randint(4, 20))}
        for n in range(2 * turns)
    ]


Make = Callable[[random.Random, Vocabulary], Pair]


def pair_of(v: Vocabulary, a: list[int], b: list[int], join: int | None = None,
            other: Any = None) -> Pair:  # fmt: skip
    return Pair(Side(tuple(a), v), Side(tuple(b), other or v), join)


def _recipes(a: Rendering, b: Rendering, edit: Callable[[list[dict[str, str]], random.Random], Any]
             = lambda m, _r: m) -> Make:  # fmt: skip
    def make(rng: random.Random, v: Vocabulary) -> Pair:
        messages = edit(conversation(rng, rng.randint(1, 3)), rng)
        sides = [v.encode_chat(messages, a), v.encode_chat(messages, b)]
        if rng.random() < 0.5:
            sides.reverse()
        return pair_of(v, *sides)

    return make


def _texts(change: Callable[[str, random.Random], tuple[str, str]]) -> Make:
    """Two versions of one message's content."""

    def make(rng: random.Random, v: Vocabulary) -> Pair:
        a, b = (conversation(rng, 2) for _ in range(2))
        b = [dict(message) for message in a]
        at = rng.randrange(len(a))
        a[at]["content"], b[at]["content"] = change(a[at]["content"], rng)
        return pair_of(v, v.encode_chat(a, PLAIN), v.encode_chat(b, PLAIN))

    return make


def _eos(rng: random.Random, v: Vocabulary) -> Pair:
    ids = v.encode_chat(conversation(rng), PLAIN)
    return pair_of(v, ids, ids + sorted(v.eos_ids))


def _with_thinking(messages: list[dict[str, str]], rng: random.Random) -> list[dict[str, str]]:
    for message in messages[1::2]:
        message["content"] = f"<think>\n{sentence(rng)}\n</think>\n\n{message['content']}"
    return messages


def _with_spaces(messages: list[dict[str, str]], rng: random.Random) -> list[dict[str, str]]:
    for message in messages:
        message["content"] += rng.choice(["\n", "  ", " \n\n"])
    return messages


def _twice(rng: random.Random, v: Vocabulary) -> Pair:
    ids = v.encode_chat(conversation(rng), PLAIN)
    text = v.decode(ids)
    again = v.encode_chat([{"role": "user", "content": text}], PLAIN)
    return pair_of(v, ids, again)


def _special_text(rng: random.Random, v: Vocabulary) -> Pair:
    messages = conversation(rng)
    messages[0]["content"] += " <|end|> " + sentence(rng, 3)
    ids = v.encode_chat(messages, PLAIN)
    token = v.encode("<|end|>", PLAIN)[0]
    spelled = [n for part in ("<", "|", "end", "|", ">") for n in v.encode(part, PLAIN)]
    at = ids.index(token)
    return pair_of(v, ids, ids[:at] + spelled + ids[at + 1 :])


def _special_ids(rng: random.Random, v: Vocabulary) -> Pair:
    ids = v.encode_chat(conversation(rng), PLAIN)
    moved = {v.encode(t, PLAIN)[0]: v.size + 5 + k for k, t in enumerate(("<|end|>", "<|mid|>"))}
    return pair_of(v, ids, [moved.get(n, n) for n in ids])


def _join(rng: random.Random, v: Vocabulary) -> Pair:
    while True:
        text = sentence(rng, 16)
        cut = rng.randrange(len(text) // 4, 3 * len(text) // 4)
        prompt, response = (v.encode(part, PLAIN) for part in (text[:cut], text[cut:]))
        whole = v.encode(text, PLAIN)
        if prompt + response != whole:
            return pair_of(v, prompt + response, whole, join=len(prompt))


def _cut(rng: random.Random, v: Vocabulary) -> Pair:
    ids = v.encode_chat(conversation(rng, 4), PLAIN)
    return pair_of(v, ids, ids[: rng.randrange(len(ids) // 3, len(ids) - 20)])


def _order(rng: random.Random, v: Vocabulary) -> Pair:
    a, b = (v.encode_chat(conversation(rng), PLAIN) for _ in range(2))
    return pair_of(v, a, b)


def _other_vocabulary(rng: random.Random, v: Vocabulary) -> Pair:
    messages, other = conversation(rng, 3), other_byte_level()
    b = other.encode_chat(messages, PLAIN)
    known = rng.random() < 0.5
    return pair_of(v, v.encode_chat(messages, PLAIN), b, other=other if known else None)


def _segmentation(rng: random.Random, v: Vocabulary) -> Pair:
    messages, other = conversation(rng, 2), byte_level_other_split()
    v = byte_level()
    sides = v.encode_chat(messages, PLAIN), other.encode_chat(messages, PLAIN)
    return pair_of(v, *sides, other=other)


def _bytes(rng: random.Random, _v: Vocabulary) -> Pair:
    messages = conversation(rng)
    messages[1]["content"] += " " + rng.choice("☃漢✓Ж") + " " + sentence(rng, 4)
    with_bytes, without = unigram(True), unigram(False)
    return pair_of(
        with_bytes,
        with_bytes.encode_chat(messages, PLAIN),
        without.encode_chat(messages, PLAIN),
        other=without,
    )


def _nfd(text: str, rng: random.Random) -> tuple[str, str]:
    import unicodedata

    text += " naïve café " + rng.choice(WORDS)
    return unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)


def _line_ends(text: str, rng: random.Random) -> tuple[str, str]:
    lines = [text, sentence(rng, 5), sentence(rng, 3)]
    return "\n".join(lines), "\r\n".join(lines)


def _rewritten(text: str, rng: random.Random) -> tuple[str, str]:
    return text, sentence(rng, 9)


def _dates(rng: random.Random, v: Vocabulary) -> Pair:
    messages = conversation(rng)
    days = rng.sample([f"{d} May 2026" for d in range(10, 29)] + ["2026-01-30", "3 July 2025"], 2)
    sides = [v.encode_chat(messages, Rendering(template={"date_string": day})) for day in days]
    return pair_of(v, *sides)


CAUSES: dict[str, Make] = {
    "bos": _recipes(PLAIN, Rendering(add_special_tokens=True)),
    "eos": _eos,
    "template_twice": _twice,
    "generation_prompt": _recipes(PLAIN, Rendering(add_generation_prompt=True)),
    "thinking": _recipes(PLAIN, Rendering(template={"drop_thinking": True}), _with_thinking),
    "stripped": _recipes(PLAIN, Rendering(template={"strip_content": True}), _with_spaces),
    "special_text": _special_text,
    "special_ids": _special_ids,
    "join_merge": _join,
    "newlines": _texts(_line_ends),
    "unicode": _texts(_nfd),
    "byte_fallback": _bytes,
    "truncated": _cut,
    "date": _dates,
    "template_text": _recipes(PLAIN, Rendering(template={"default_system": "Be brief and kind."})),
    "segmentation": _segmentation,
    "other_vocabulary": _other_vocabulary,
    "row_order": _order,
    "unknown": _texts(_rewritten),
}


def cases(code: str, count: int, seed: int = 0) -> Iterator[tuple[Pair, dict[Ids, int]]]:
    """Pairs whose cause is ``code``, with the rows that the dataset knows (row 0 is the pair's)."""
    vocabularies = [byte_level(), unigram(True), tiktoken_like()]
    for number in range(count):
        rng = random.Random(f"{code}-{seed}-{number}")
        pair = CAUSES[code](rng, vocabularies[number % len(vocabularies)])
        other = {pair.got.ids: 7} if code == "row_order" else {}
        yield pair, {pair.expected.ids: 0, **other}


# Real vocabularies that a package ships ---------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MistralVocabulary:
    """Mistral's own SentencePiece models and its tiktoken-like Tekken, out of mistral-common."""

    tokenizer: Any
    name: str

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self.tokenizer.special_ids) - {self.unknown_id or -1}

    @property
    def bos_ids(self) -> frozenset[int]:
        return frozenset({self.tokenizer.bos_id})

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({self.tokenizer.eos_id})

    @property
    def unknown_id(self) -> int | None:
        return int(self.tokenizer.unk_id)

    @property
    def size(self) -> int:
        return int(self.tokenizer.n_words)

    def encode(self, text: str, recipe: Rendering) -> list[int]:
        return list(self.tokenizer.encode(text, bos=recipe.add_special_tokens, eos=False))

    def encode_chat(self, messages: Any, recipe: Rendering) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Any) -> str:
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        return str(self.tokenizer.decode(list(ids), special_token_policy=SpecialTokenPolicy.KEEP))

    def pieces(self, ids: Any) -> list[str]:
        return [str(self.tokenizer.id_to_piece(n)) for n in ids]


@lru_cache
def mistral(version: str) -> MistralVocabulary:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    made = {
        "v1": MistralTokenizer.v1,
        "v3": MistralTokenizer.v3,
        "tekken": lambda: MistralTokenizer.v3(is_tekken=True),
    }[version]()
    return MistralVocabulary(made.instruct_tokenizer.tokenizer, version)
