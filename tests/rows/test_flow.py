"""From a ShareGPT file to a trained drafter, by README's commands as they stand there."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hslib import demo
from hslib.rows import read_manifest
from hslib.store import Store

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_readmes_commands_train_a_drafter(tmp_path: Path) -> None:
    (block,) = [
        block
        for block in re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
        if "sharegpt.jsonl" in block and "06_training" in block
    ]
    for name in ("hslib", "notebooks", "patches"):
        (tmp_path / name).symlink_to(ROOT / name)
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    lines = demo.dataset_path().read_text().splitlines()[:48]
    with (tmp_path / "sharegpt.jsonl").open("w") as file:
        for line in lines:
            turns = json.loads(line)["messages"]
            chat = [{"from": names[turn["role"]], "value": turn["content"]} for turn in turns]
            file.write(json.dumps({"conversations": chat}) + "\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HSLIB_RUNS_ROOT": str(tmp_path)}
    run = subprocess.run(
        ["bash", "-euc", block], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    runs = tmp_path / "runs/chats"
    assert read_manifest(runs / "rows.jsonl").counts.rows == 48
    assert len(Store(runs / "store").entries) == 48
    metrics = json.loads((runs / "metrics.json").read_text())
    assert metrics["drafters"], metrics
