"""Random models of the families that the plugin supports, a few hundred kB each.

Weights are large enough that every layer changes the residual stream clearly: neighbouring
boundaries must be far apart, or a test could not tell them from each other. Every expert is
chosen for every token: two bf16 implementations may decide a routing tie differently, which
would drown the small errors that the tests look for.
"""

import json
from pathlib import Path
from typing import Any

NUM_LAYERS = 6
VOCAB_SIZE = 512

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "initializer_range": 0.08,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 4,  # of 4
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}
_DEEPSEEK: dict[str, Any] = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,  # of 4
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "num_key_value_heads": 4,
    "rope_theta": 10000.0,
}
_YARN = {
    "type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}

FAMILIES = ("llama", "qwen3", "qwen3_moe", "deepseek_v3")


def build(family: str, folder: Path, **overrides: Any) -> Path:
    """Write a random bf16 model of ``family`` into ``folder`` and return it."""
    import torch
    import transformers

    torch.manual_seed(7)
    config = _config(family, overrides)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    if family == "deepseek_v3":
        _finish_deepseek(folder)
    return folder


def _config(family: str, overrides: dict[str, Any]) -> Any:
    import transformers

    kv_heads = {"num_key_value_heads": 2, "head_dim": 16}
    if family == "llama":
        return transformers.LlamaConfig(**{**_COMMON, **kv_heads, **overrides})
    if family == "qwen3":
        return transformers.Qwen3Config(**{**_COMMON, **kv_heads, **overrides})
    if family == "qwen3_moe":
        return transformers.Qwen3MoeConfig(**{**_COMMON, **kv_heads, **_MOE, **overrides})
    if family == "deepseek_v3":
        merged = {**_COMMON, **_DEEPSEEK, "rope_scaling": dict(_YARN), **overrides}
        return transformers.DeepseekV3Config(**merged)
    raise ValueError(f"no tiny model of family {family!r}")


def _finish_deepseek(folder: Path) -> None:
    """Add the keys that SGLang reads and transformers does not write."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(moe_layer_freq=1, topk_method="noaux_tc", scoring_func="sigmoid")
    config.setdefault("rope_scaling", dict(_YARN))
    config.setdefault("rope_theta", 10000.0)
    path.write_text(json.dumps(config, indent=1))
