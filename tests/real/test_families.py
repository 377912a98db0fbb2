"""The table of families beside what it is about: the tiny models, and SGLang's classes."""

import json
from pathlib import Path

import pytest
import torch
from make import models as tiny_models
from real import families, family_table
from real.families import read_table
from safetensors.torch import load_file

from hslib.server.plugin_info import TOLERANCE

LIMIT = 0.03  # relative, of bf16 against bf16: two implementations of one model

ROWS = read_table()


def test_every_tiny_model_has_its_row() -> None:
    assert set(ROWS) == set(tiny_models.ALL_FAMILIES)


def test_the_table_is_that_of_what_was_run_and_of_the_pinned_sglang() -> None:
    """A new SGLang shows here what is new: run tests/real/family_table.py, prove what matters."""
    assert family_table.in_readme() == family_table.table()
    classes = family_table.entry_classes()
    assert len(classes) > 150
    assert {row["architecture"] for row in ROWS.values()} <= set(classes)


def test_what_is_called_proven_is_near_transformers_and_far_from_every_other_state() -> None:
    for row in ROWS.values():
        if row["reason"]:
            assert not row["errors"], row
            continue
        assert set(row["errors"]) == set(families.ROWS), row
        assert max(row["errors"].values()) < LIMIT, row
        assert row["witness"] < TOLERANCE / 2, row
        assert row["nearest"] > 5, row


@pytest.mark.parametrize("family", tiny_models.ALL_FAMILIES)
def test_a_tiny_model_has_no_vector_that_is_as_it_was_initialised(
    family: str, tmp_path: Path
) -> None:
    folder = tiny_models.build(family, tmp_path / family)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [ROWS[family]["architecture"]]
    tensors = load_file(folder / "model.safetensors")
    assert constant({"norm.weight": torch.ones(4), "matrix": torch.ones(4, 4)}) == ["norm.weight"]
    assert constant(tensors) == []


def constant(tensors: dict[str, torch.Tensor]) -> list[str]:
    vectors = {name: x for name, x in tensors.items() if x.dim() == 1 and len(x) > 1}
    return [name for name, x in vectors.items() if torch.all(x == x[0])]


@pytest.mark.parametrize("family", ["gemma3_vision", "qwen3_vl", "kimi_k25"])
def test_a_vision_models_processor_is_found_by_transformers(family: str, tmp_path: Path) -> None:
    from transformers import AutoProcessor

    folder = tiny_models.build(family, tmp_path / family)
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    assert type(processor).__name__.endswith("Processor")
    assert processor.tokenizer.vocab_size <= tiny_models.VOCAB_SIZE


def test_a_family_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tiny model of family 'llama5'"):
        tiny_models.build("llama5", tmp_path)
