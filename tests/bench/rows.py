"""(l) Conversations made into rows against the bare tokenizer over the same texts.

    python tests/bench/rows.py --conversations 100000

Both with the same number of processes, from a file of JSON lines, their start included; a
byte-level vocabulary of 8,000, three exchanges of about 1,000 tokens together. In turns.
"""

import json
import os
import random
import tempfile
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from common import Cost, arguments, measure, median, ratio, report
from make.chats import FAMILIES, save_tokenizer

from hslib.dataset import read_rows
from hslib.rows import Recipe, load_chat, make_file, make_rows

CHUNK = 256


def main() -> None:
    chosen = arguments(__doc__ or "", conversations=100_000, workers=2, turns=2, words=120)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = Recipe(
            save_tokenizer(FAMILIES["kimi_k2"], folder / "model", vocabulary=words(8000))
        )
        chats, texts = folder / "chats.jsonl", folder / "texts.jsonl"
        write(chats, texts, recipe, chosen.conversations, chosen.words)
        costs: dict[str, list[Cost]] = {"bare tokenizer": [], "rows": []}
        memory = Memory()
        for turn in range(chosen.turns):
            out = folder / f"rows-{turn}.jsonl"
            costs["bare tokenizer"].append(measure(lambda: bare(texts, recipe, chosen.workers)))
            with memory:
                costs["rows"].append(
                    measure(lambda out=out: make_file(chats, out, recipe, chosen.workers))  # type: ignore[misc]
                )
            counts = make_file(chats, out, recipe).counts
            out.unlink()
    table = [
        {
            "arm": arm,
            "conversations/s": chosen.conversations / median([cost.wall_s for cost in costs[arm]]),
            "tokens/s": counts.tokens / median([cost.wall_s for cost in costs[arm]]),
            "times the bare": ratio(costs[arm], costs["bare tokenizer"]),
            "CPU, times the bare": median(
                [
                    a.cpu_s / b.cpu_s
                    for a, b in zip(costs[arm], costs["bare tokenizer"], strict=True)
                ]
            ),
        }
        for arm in costs
    ]
    table[1].update(memory.facts(), tokens=counts.tokens / counts.rows)
    report("(l) rows of conversations against the bare tokenizer", table, chosen.out)


def words(count: int) -> list[str]:
    """Pronounceable, of one to four syllables."""
    rng = random.Random(0)
    syllables = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er")]
    return ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(count)]


def write(chats: Path, texts: Path, recipe: Recipe, count: int, words_per_message: int) -> None:
    """The conversations, and what they look like when they are rendered."""
    chat, rng, known = load_chat(recipe), random.Random(1), words(8000)
    with chats.open("w") as lines, texts.open("w") as rendered:
        for start in range(0, count, CHUNK):
            raw: list[tuple[int, dict[str, Any]]] = []
            for index in range(start, min(start + CHUNK, count)):
                said = [" ".join(rng.choices(known, k=words_per_message)) for _ in range(6)]
                roles = ("user", "assistant") * 3
                turns = [
                    {"role": r, "content": f"{s.capitalize()}."}
                    for r, s in zip(roles, said, strict=True)
                ]
                raw.append((index, {"messages": turns}))
            for (_, row), made in zip(raw, make_rows(chat, raw), strict=True):
                lines.write(json.dumps(row) + "\n")
                text = chat.tokenizer.decode(made.input_ids)  # type: ignore[union-attr]
                rendered.write(json.dumps({"text": text}) + "\n")


_tokenizer: Any = None  # of a worker


def start(folder: Path) -> None:
    global _tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import AutoTokenizer

    _tokenizer = AutoTokenizer.from_pretrained(folder)


def encode(texts: list[str]) -> int:
    return sum(map(len, _tokenizer(texts, add_special_tokens=False)["input_ids"]))


def bare(texts: Path, recipe: Recipe, workers: int) -> None:
    """The ids of all texts, which are then forgotten."""
    rows = (row["text"] for _, row in read_rows(texts, columns=None))  # type: ignore[index]
    if workers == 1:
        start(recipe.model)
        while chunk := list(islice(rows, CHUNK)):
            encode(chunk)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), start, (recipe.model,)) as pool:
        waiting: deque[Any] = deque()
        while chunk := list(islice(rows, CHUNK)):
            waiting.append(pool.submit(encode, chunk))
            if len(waiting) >= 3 * workers:
                waiting.popleft().result()
        for future in waiting:
            future.result()


class Memory:
    """This process and its workers, watched while the rows are made."""

    def __enter__(self) -> None:
        self._seen: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            total = psutil.Process().memory_info().rss
            for child in psutil.Process().children():
                try:
                    total += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self._seen.append(total / 1e6)

    def facts(self) -> dict[str, float]:
        """MB after a third of the time and at most after that."""
        third = self._seen[len(self._seen) // 3 :] or [0.0]
        return {"MB after a third": third[0], "MB at most": max(third)}


if __name__ == "__main__":
    main()
