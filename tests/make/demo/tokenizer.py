"""A byte-level BPE tokenizer with Kimi-K2's special tokens and the shape of its chat template."""

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from make.demo.dialogues import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 1024
SPECIAL_TOKENS = [
    "[PAD]",
    "[BOS]",
    "[EOS]",
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_middle|>",
    "<|im_end|>",
]
# A word or one digit, with the space before it: numbers are read digit by digit.
PIECES = r" ?\p{L}+| ?\d| ?[^\s\p{L}\d]+|\s+"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}<|im_system|>system<|im_middle|>"
    "{%- elif message['role'] == 'user' -%}<|im_user|>user<|im_middle|>"
    "{%- elif message['role'] == 'assistant' -%}<|im_assistant|>assistant<|im_middle|>"
    "{%- else -%}{{ raise_exception('unknown role: ' + message['role']) }}"
    "{%- endif -%}"
    "{{ message['content'] }}<|im_end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"
)


class Tokens(NamedTuple):
    """A tokenized conversation."""

    input_ids: list[int]
    loss_mask: list[int]  # 1 on the assistant's words and their <|im_end|>


def train_tokenizer(texts: Iterable[str]) -> "PreTrainedTokenizerFast":
    """Train on `texts`; at most `VOCAB_SIZE` tokens, special ones first."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="[BOS]",
        eos_token="<|im_end|>",
        pad_token="[PAD]",
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=CHAT_TEMPLATE,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


class ChatEncoder:
    """The chat template, message by message, so that the mask is known exactly."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        self.tokenizer = tokenizer
        vocab = tokenizer.get_vocab()
        self.ids = {token: vocab[token] for token in SPECIAL_TOKENS}
        self._text = lru_cache(maxsize=100_000)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def message(self, message: Message) -> Tokens:
        """One message's tokens."""
        role = message["role"]
        head = [self.ids[f"<|im_{role}|>"], *self._text(role), self.ids["<|im_middle|>"]]
        body = [*self._text(message["content"]), self.ids["<|im_end|>"]]
        return Tokens(head + body, [0] * len(head) + [int(role == "assistant")] * len(body))

    def cost(self, message: Message) -> int:
        """One message's number of tokens."""
        return len(self._text(message["role"])) + len(self._text(message["content"])) + 3

    def conversation(self, messages: list[Message]) -> Tokens:
        """A whole conversation's tokens."""
        parts = [self.message(message) for message in messages]
        return Tokens(
            [i for part in parts for i in part.input_ids],
            [m for part in parts for m in part.loss_mask],
        )
