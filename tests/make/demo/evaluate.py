"""How many of a conversation's answers the model gives word for word.

A chain has no right answer: of it the words are counted after which the model's first choice is
what comes to mind first.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

import torch
from make.demo.associations import ASSOCIATIONS
from make.demo.dialogues import Dialogue
from make.demo.tokenizer import ChatEncoder, Tokens
from transformers import DeepseekV3ForCausalLM


class Score(NamedTuple):
    """Answers that are right, of those asked for; of chains, words."""

    right: int
    asked: int


def answer_spans(loss_mask: list[int]) -> list[range]:
    """Positions of each answer: the runs of ones."""
    runs = groupby(range(len(loss_mask)), key=lambda position: loss_mask[position])
    positions = [list(run) for is_answer, run in runs if is_answer]
    return [range(run[0], run[-1] + 1) for run in positions]


@torch.no_grad()
def first_choices(model: DeepseekV3ForCausalLM, input_ids: list[int]) -> list[int]:
    """The token that the model ranks first after each."""
    logits = model(input_ids=torch.tensor([input_ids]), use_cache=False).logits[0]
    choices: list[int] = logits.argmax(-1).tolist()
    return choices


def answers_right(model: DeepseekV3ForCausalLM, tokens: Tokens) -> list[bool]:
    """Whether greedy decoding gives each answer exactly, after the true history.

    It does so if, with the answer before it, the model ranks each of its tokens first; one forward
    pass tells for all answers.
    """
    first = first_choices(model, tokens.input_ids)
    return [_is_given(tokens, first, span) for span in answer_spans(tokens.loss_mask)]


def _is_given(tokens: Tokens, first: list[int], span: range) -> bool:
    return all(first[position - 1] == tokens.input_ids[position] for position in span)


def _likeliest(encoder: ChatEncoder) -> dict[int, int]:
    """What comes to mind first at each word of a chain, as tokens."""
    ids = encoder.tokenizer.convert_tokens_to_ids
    return {ids(f"Ġ{word}"): ids(f"Ġ{found[0]}") for word, found in ASSOCIATIONS.items()}


def score_by_kind(
    model: DeepseekV3ForCausalLM, encoder: ChatEncoder, dialogues: Iterable[Dialogue]
) -> dict[str, Score]:
    """A `Score` for each kind of turn, and "all" of the answers that can be right."""
    counts: Counter[tuple[str, bool]] = Counter()
    likeliest = _likeliest(encoder)
    for dialogue in dialogues:
        tokens = encoder.conversation(dialogue.messages())
        first = first_choices(model, tokens.input_ids)
        for turn, span in zip(dialogue.turns, answer_spans(tokens.loss_mask), strict=True):
            if turn.kind == "chain":
                words = [position for position in span if tokens.input_ids[position] in likeliest]
                counts.update(
                    ("chain", first[position] == likeliest[tokens.input_ids[position]])
                    for position in words
                )
            else:
                is_right = _is_given(tokens, first, span)
                counts.update([(turn.kind, is_right), ("all", is_right)])
    kinds = {kind for kind, _ in counts}
    return {
        kind: Score(counts[kind, True], counts[kind, True] + counts[kind, False]) for kind in kinds
    }
