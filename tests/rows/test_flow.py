"""From a ShareGPT file to trained drafters, by README's commands; only the steps are fewer."""

import json
from pathlib import Path

import pytest
from make.readme import block_with, checkout, replaced, shell
from real.warm import WarmServers

from hslib import demo
from hslib.rows import read_manifest
from hslib.store import Store

FEWER_STEPS = {"run 06": "run 06 -p num_steps 25"}  # a drafter learns in 200: notebook 06
NAMES = {"user": "human", "assistant": "gpt", "system": "system"}


def write_chats(path: Path, turns: int | None = None) -> None:
    """48 of the demo's conversations in ShareGPT's form, the first turns of each."""
    with path.open("w") as file:
        for line in demo.dataset_path().read_text().splitlines()[:48]:
            messages = json.loads(line)["messages"][:turns]
            chat = [{"from": NAMES[turn["role"]], "value": turn["content"]} for turn in messages]
            file.write(json.dumps({"conversations": chat}) + "\n")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_readmes_commands_train_a_drafter_and_one_on_the_models_own_answers(
    tmp_path: Path, warm: WarmServers
) -> None:
    checkout(tmp_path)
    write_chats(tmp_path / "sharegpt.jsonl")
    block = block_with("sharegpt.jsonl", "chats/rows.jsonl", "run 06")
    shell(replaced(block, FEWER_STEPS), tmp_path, warm.for_kernels())
    runs = tmp_path / "runs/chats"
    assert read_manifest(runs / "rows.jsonl").counts.rows == 48
    assert len(Store(runs / "store").entries) == 48
    metrics = json.loads((runs / "metrics.json").read_text())
    assert metrics["drafters"], metrics
    assert "trained_on_own_answers" not in metrics["drafters"]

    write_chats(tmp_path / "sharegpt.jsonl", turns=3)  # shorter: a CPU is slow to answer
    block = block_with("--regenerate", "own_answers_store")
    shell(replaced(block, FEWER_STEPS), tmp_path, warm.for_kernels())
    made = read_manifest(runs / "own.jsonl").counts
    assert made.conversations == 48 and made.trained > 0 and made.rejected == {}
    assert len(Store(runs / "own/store").entries) == made.rows >= 48
    metrics = json.loads((runs / "metrics.json").read_text())
    assert metrics["drafters"]["trained_on_own_answers"], metrics
