"""Which ids stand for images, video or sound, from configs as they are published."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hslib.model import placeholder_ids

# What real config.json files state, and where
PUBLISHED: dict[str, tuple[dict[str, Any], set[int]]] = {
    "Qwen2.5-VL": (
        {
            "model_type": "qwen2_5_vl",
            "vision_start_token_id": 151652,
            "vision_end_token_id": 151653,
            "vision_token_id": 151654,
            "image_token_id": 151655,
            "video_token_id": 151656,
            "eos_token_id": 151645,
        },
        {151652, 151653, 151654, 151655, 151656},
    ),
    "Mistral-3": ({"model_type": "mistral3", "image_token_index": 10, "vision_config": {}}, {10}),
    "Llama-4": (
        {
            "model_type": "llama4",
            "boi_token_index": 200080,
            "eoi_token_index": 200081,
            "image_token_index": 200092,
            "text_config": {"model_type": "llama4_text", "bos_token_id": 200000},
        },
        {200080, 200081, 200092},
    ),
    "Kimi-K2.5": (
        {"model_type": "kimi_code", "media_placeholder_token_id": 163605, "text_config": {"a": 1}},
        {163605},
    ),
    "Phi-4-multimodal": (
        {
            "model_type": "phi4_multimodal",
            "vision_config": {"image_token_id": 200010},
            "audio_config": {"audio_token_id": 200011},
        },
        {200010, 200011},
    ),
    "an omni model, whose talker has a vocabulary of its own": (
        {
            "model_type": "an_omni_model",
            "thinker_config": {"audio_token_index": 151646},
            "talker_config": {"audio_token_index": 17},
        },
        {151646},
    ),
    "old LLaVA, whose placeholder is no id": ({"image_token_index": -200}, set()),
    "text alone": ({"model_type": "qwen3", "eos_token_id": 1, "video_heads": 2}, set()),
}


def write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_placeholders_are_found_where_published_configs_state_them(
    tmp_path: Path, name: str
) -> None:
    config, expected = PUBLISHED[name]
    assert placeholder_ids(write(tmp_path, config)).keys() == expected


def test_what_a_wrapper_leaves_out_is_its_classes_and_what_it_states_goes_first(
    tmp_path: Path,
) -> None:
    config = {"model_type": "gemma3", "image_token_index": 7, "text_config": {"hidden_size": 8}}
    found = placeholder_ids(write(tmp_path, config))
    assert found == {7: "image_token_index", 255999: "boi_token_index", 256000: "eoi_token_index"}


def test_a_config_that_its_class_refuses_gives_what_it_states(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "image_token_index": 7, "text_config": "none"}
    assert placeholder_ids(write(tmp_path, {**config, "vision_config": 3})) == {
        7: "image_token_index"
    }


@pytest.mark.slow  # it loads every config class
def test_every_placeholder_of_transformers_classes_is_found(tmp_path: Path) -> None:
    """The names are transformers': every config class that states such an id, as it saves it."""
    from transformers import CONFIG_MAPPING

    names = re.compile(r".*(image|video|audio|vision|media).*token_(id|index)")
    codec = {"kyutai_speech_to_text", "csm", "higgs_audio_v2"}  # ids of codes, not of text
    checked = 0
    for kind in set(CONFIG_MAPPING) - codec:
        try:
            config = CONFIG_MAPPING[kind]()
        except Exception:  # a class that needs arguments
            continue
        wanted = {
            value
            for name, value in vars(config).items()
            if names.fullmatch(name) and isinstance(value, int) and value >= 0
        }
        if not wanted:
            continue
        checked += 1
        stated = {**json.loads(config.to_json_string(use_diff=False)), "model_type": kind}
        assert placeholder_ids(write(tmp_path, stated)).keys() >= wanted, kind
    assert checked > 60
