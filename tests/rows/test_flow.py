"""From a ShareGPT file to a trained drafter, by README's commands as they stand there."""

import json
from pathlib import Path

import pytest
from make.readme import block_with, checkout, shell

from hslib import demo
from hslib.rows import read_manifest
from hslib.store import Store


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_readmes_commands_train_a_drafter(tmp_path: Path) -> None:
    block = block_with("sharegpt.jsonl", "chats/rows.jsonl", "run 06")
    checkout(tmp_path)
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    lines = demo.dataset_path().read_text().splitlines()[:48]
    with (tmp_path / "sharegpt.jsonl").open("w") as file:
        for line in lines:
            turns = json.loads(line)["messages"]
            chat = [{"from": names[turn["role"]], "value": turn["content"]} for turn in turns]
            file.write(json.dumps({"conversations": chat}) + "\n")
    shell(block, tmp_path)
    runs = tmp_path / "runs/chats"
    assert read_manifest(runs / "rows.jsonl").counts.rows == 48
    assert len(Store(runs / "store").entries) == 48
    metrics = json.loads((runs / "metrics.json").read_text())
    assert metrics["drafters"], metrics
