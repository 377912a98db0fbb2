"""The table of families beside what it is about: the tiny models, and SGLang's classes."""

import ast
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from safetensors.torch import load_file

TABLE: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "families.json").read_text(encoding="utf-8")
)
ROWS = {row["family"]: row for row in TABLE}


def sglang_classes() -> set[str]:
    """Every class that SGLang's model files define, without importing them."""
    spec = find_spec("sglang")
    assert spec is not None and spec.origin is not None
    classes: set[str] = set()
    for path in (Path(spec.origin).parent / "srt" / "models").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes |= {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    return classes


def test_the_table_has_every_tiny_model_once() -> None:
    assert [row["family"] for row in TABLE] == list(tiny_models.ALL_FAMILIES)


def test_every_family_is_a_class_of_sglangs() -> None:
    classes = sglang_classes()
    assert {row["architecture"] for row in TABLE} <= classes
    assert "NoSuchForCausalLM" not in classes


def test_what_serves_is_near_transformers_and_far_from_another_row() -> None:
    for row in TABLE:
        if row["serves"]:
            assert row["mean_logprob_difference"] < 0.03 < 0.2 < row["another_rows_difference"]
        else:
            assert row["note"], f"{row['family']} says nothing about what stopped it"


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
