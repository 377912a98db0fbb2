"""Write the model's folder so that both transformers and SGLang read it."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV3ForCausalLM, PreTrainedTokenizerFast

# transformers 5 keeps these only as attributes or under other names; SGLang reads them from
# config.json as Kimi-K2's has them.
KIMI_KEYS = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "dtype": "bfloat16",
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}
DERIVED_KEYS = ("head_dim", "qk_head_dim", "rope_parameters", "output_router_logits")


def config_json(model: DeepseekV3ForCausalLM) -> dict[str, Any]:
    """The contents of config.json, with `rope_scaling` and `rope_theta` as in Kimi-K2's."""
    values = json.loads(model.config.to_json_string())
    rope = values["rope_parameters"]
    values |= KIMI_KEYS
    values["rope_theta"] = rope["rope_theta"]
    values["rope_scaling"] = {
        "type": rope["rope_type"],
        **{key: rope[key] for key in rope if key not in ("rope_type", "rope_theta")},
    }
    return {key: values[key] for key in sorted(values) if key not in DERIVED_KEYS}


def save_checkpoint(
    model: DeepseekV3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Weights rounded to bf16, configuration, tokenizer with its chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    for parameter in model.parameters():  # not the routers' biases: they stay float32
        parameter.data = parameter.data.to(torch.bfloat16)
    model.save_pretrained(folder)
    text = json.dumps(config_json(model), indent=2) + "\n"
    (folder / "config.json").write_text(text)
    tokenizer.save_pretrained(folder)


def load_model(folder: Path) -> DeepseekV3ForCausalLM:
    """The model as it is served: bf16."""
    model = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.eval()


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer beside the model."""
    return PreTrainedTokenizerFast.from_pretrained(folder)
