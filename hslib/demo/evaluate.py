"""How many of a conversation's answers the model gives word for word."""

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

import torch
from transformers import DeepseekV3ForCausalLM

from hslib.demo.dialogues import Dialogue
from hslib.demo.tokenizer import ChatEncoder, Tokens


class Score(NamedTuple):
    """Answers that are right, of those asked for."""

    right: int
    asked: int


def answer_spans(loss_mask: list[int]) -> list[range]:
    """Positions of each answer: the runs of ones."""
    runs = groupby(range(len(loss_mask)), key=lambda position: loss_mask[position])
    positions = [list(run) for is_answer, run in runs if is_answer]
    return [range(run[0], run[-1] + 1) for run in positions]


@torch.no_grad()
def answers_right(model: DeepseekV3ForCausalLM, tokens: Tokens) -> list[bool]:
    """Whether greedy decoding gives each answer exactly, after the true history.

    It does so if, with the answer before it, the model ranks each of its tokens first; one forward
    pass tells for all answers.
    """
    ids = torch.tensor([tokens.input_ids])
    first = model(input_ids=ids, use_cache=False).logits[0].argmax(-1).tolist()
    return [
        all(first[position - 1] == tokens.input_ids[position] for position in span)
        for span in answer_spans(tokens.loss_mask)
    ]


def score_by_kind(
    model: DeepseekV3ForCausalLM, encoder: ChatEncoder, dialogues: Iterable[Dialogue]
) -> dict[str, Score]:
    """A `Score` for each kind of turn, and "all"."""
    scores: dict[str, Score] = {}
    for dialogue in dialogues:
        verdicts = answers_right(model, encoder.conversation(dialogue.messages()))
        for turn, is_right in zip(dialogue.turns, verdicts, strict=True):
            for kind in (turn.kind, "all"):
                right, asked = scores.get(kind, Score(0, 0))
                scores[kind] = Score(right + is_right, asked + 1)
    return scores
