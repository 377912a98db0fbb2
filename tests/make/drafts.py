"""Drafts' folders for tiny models."""

import json
from pathlib import Path
from typing import Any

from hslib.model import read_shape


def write_draft(folder: Path, model: Path | str, ids: list[int] | None, **more: Any) -> Path:
    """An EAGLE-3 draft of a model in SpecForge's form; ``ids``: the layers whose outputs it reads
    by that tool's count, None = it names none."""
    shape = read_shape(model)
    eagle = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}} if ids is not None else {}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 64,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": 1,
        "vocab_size": shape.vocab_size,
        **eagle,
        **more,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
