"""Build the demo again: `python tests/make/demo/build.py [--out DIR] [--steps N]`."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from make.demo.checkpoint import load_model, load_tokenizer, save_checkpoint
from make.demo.dialogues import Dialogue, dialogue
from make.demo.evaluate import score_by_kind
from make.demo.tokenizer import ChatEncoder, train_tokenizer
from make.demo.train import Settings, make_config, make_model, train

from hslib import demo

TOKENIZER_SEED, DATA_SEED, HELD_OUT_SEED = 101, 102, 103
NUM_ROWS = 256
SHORTEST, LONGEST = 12, 1500  # tokens
LEAST_FILLED = 0.8  # of the length that a row is meant to have
HELD_OUT_LENGTHS = (40, 100, 200, 400, 800, 1500)


def tokenizer_texts() -> Iterator[str]:
    """Roles and contents of 3,000 dialogues."""
    rng = Random(TOKENIZER_SEED)
    for _ in range(3000):
        for message in dialogue(rng, lambda _message: 1, limit=20).messages():
            yield message["role"]
            yield message["content"]


def build_model(folder: Path, settings: Settings) -> None:
    """Tokenizer and trained model into `folder`."""
    tokenizer = train_tokenizer(tokenizer_texts())
    vocab_size = -(-len(tokenizer) // 64) * 64
    model = make_model(make_config(vocab_size), settings.seed)
    started = time.perf_counter()
    num_tokens = train(model, ChatEncoder(tokenizer), settings)
    minutes = (time.perf_counter() - started) / 60
    save_checkpoint(model, tokenizer, folder)
    print(f"trained on {num_tokens} tokens in {minutes:.1f} min")


def conversations(encoder: ChatEncoder) -> list[Dialogue]:
    """`NUM_ROWS` different dialogues, their lengths spread evenly on a log scale, shuffled."""
    rng = Random(DATA_SEED)
    ratio = LONGEST / SHORTEST
    limits = [SHORTEST * ratio ** (row / (NUM_ROWS - 1)) for row in range(NUM_ROWS)]
    found: dict[Dialogue, None] = {}
    for limit in limits:
        for attempt in count():
            # Few conversations are very short: after some failures a little more is allowed.
            allowed = int(limit) + attempt // 100
            candidate = dialogue(rng, encoder.cost, allowed)
            tokens = sum(map(encoder.cost, candidate.messages()))
            if LEAST_FILLED * allowed <= tokens <= allowed and candidate not in found:
                found[candidate] = None
                break
    rows = list(found)
    rng.shuffle(rows)
    return rows


def write_rows(path: Path, encoder: ChatEncoder, dialogues: list[Dialogue]) -> None:
    """A JSON line for each dialogue: `id`, `messages`, `input_ids`, `loss_mask`."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for index, item in enumerate(dialogues):
            messages = item.messages()
            tokens = encoder.conversation(messages)
            row = {"id": f"demo-{index:04d}", "messages": messages, **tokens._asdict()}
            file.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n")


def held_out(encoder: ChatEncoder) -> list[Dialogue]:
    """240 dialogues of six lengths, of a seed that training never uses."""
    rng = Random(HELD_OUT_SEED)
    return [dialogue(rng, encoder.cost, limit) for limit in HELD_OUT_LENGTHS for _ in range(40)]


def report(folder: Path, dialogues: list[Dialogue], title: str) -> None:
    """Print the accuracy of the saved bf16 model by kind of question."""
    encoder = ChatEncoder(load_tokenizer(folder))
    scores = score_by_kind(load_model(folder), encoder, dialogues)
    print(title)
    for kind, score in sorted(scores.items()):
        print(f"| {kind} | {score.right} / {score.asked} | {score.right / score.asked:.1%} |")


def main() -> None:
    """Tokenizer, model, data set, accuracy, in this order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=demo.HERE)
    parser.add_argument("--steps", type=int, default=Settings().steps)
    parser.add_argument("--no-train", action="store_true", help="keep the model that is there")
    arguments = parser.parse_args()
    folder = arguments.out / "model"
    # A second thread helps only where both cores are idle, and costs far more where they are not.
    torch.set_num_threads(1)
    if not arguments.no_train:
        build_model(folder, Settings(steps=arguments.steps))
    encoder = ChatEncoder(load_tokenizer(folder))
    rows = conversations(encoder)
    write_rows(arguments.out / "data.jsonl", encoder, rows)
    report(folder, held_out(encoder), "held-out dialogues:")
    report(folder, rows, "the data set:")


if __name__ == "__main__":
    main()
