"""SpecForge's draft configs, of the model's own width, heads, rope and vocabulary.

Shapes as in SpecForge's own ``configs/`` (qwen3-8b-eagle3, -dflash, -domino, -dspark). A drafter's
layers are its own; what is taken from the model is what fits their classes: Llama's for eagle3,
Qwen3's for the DFlash family. Left to SpecForge: ``mask_token_id``, which it reads off the model's
tokenizer. Knows nothing of stores.
"""

import math
from collections.abc import Sequence
from typing import Any

from hslib.model import ModelConfig, norm_eps

_FAMILY_LAYERS = 5
_BLOCK_SIZE = 16
_HEAD_STEP = 16  # attention kernels want a multiple
# What each one has beyond DFlash's
_HEADS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "domino": {
        "projector_type": "domino",
        "emb_dim": 256,
        "gru_hidden_dim": 1024,
        "pure_draft_prefix_len": 1,
        "shift_label": True,
    },
    "dspark": {
        "projector_type": "dspark",
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "confidence_head_alpha": 1.0,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
}
# Rope scalings that SpecForge's Llama layer knows. mrope is one rope for all sections on text.
_SCALINGS = ("linear", "dynamic", "llama3", "yarn")
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}
# of the model's attention: which dimensions turn, and for what modality
_OF_THE_MODEL = {
    "rope_theta",
    "type",
    "partial_rotary_factor",
    "mrope_section",
    "mrope_interleaved",
}


def draft_config(
    drafter: str,
    config: ModelConfig,
    layer_ids: Sequence[int],
    boundaries: Sequence[int],
    num_layers: int,
    vocab_size: int,
    draft_vocab_size: int,
) -> dict[str, Any]:
    """``draft_config.json`` for SpecForge's eagle3, dflash, domino or dspark. Pure.

    Args:
        config: the model's.
        layer_ids: as SpecForge counts them, ascending.
        boundaries: the same layers; what ``layers --draft`` reads of such a config.
        num_layers: of the model.
    """
    common = {
        **_attention(config),
        **_rope(config),
        "hidden_size": config["hidden_size"],
        "intermediate_size": config.get("intermediate_size", 3 * config["hidden_size"]),
        "hidden_act": config.get("hidden_act", "silu"),
        "max_position_embeddings": config.get("max_position_embeddings", 4096),
        "rms_norm_eps": norm_eps(config) or 1e-6,
        "vocab_size": vocab_size,
        "hslib_boundaries": list(boundaries),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **{name: config.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
    if drafter == "eagle3":
        return common | _eagle3(common, layer_ids, draft_vocab_size)
    return common | _dflash(drafter, common, layer_ids, num_layers)


def _eagle3(
    common: dict[str, Any], layer_ids: Sequence[int], draft_vocab_size: int
) -> dict[str, Any]:
    size, heads = common["hidden_size"], common["num_attention_heads"]
    # transformers' LlamaConfig takes no other number (Qwen3.6-27B: 5120 wide, 24 heads)
    heads = next(number for number in range(heads, 0, -1) if size % number == 0)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": math.gcd(heads, common["num_key_value_heads"]),
        "target_hidden_size": size,
        "draft_vocab_size": draft_vocab_size,
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": list(layer_ids),
        },
    }


def _dflash(
    drafter: str, common: dict[str, Any], layer_ids: Sequence[int], num_layers: int
) -> dict[str, Any]:
    architecture = {"dflash": "DFlash", "domino": "Domino", "dspark": "DSpark"}[drafter]
    heads = dict(_HEADS[drafter])
    if drafter == "dspark" and common["num_key_value_heads"] == common["num_attention_heads"]:
        heads["attention_mode"] = "mha"  # its default refuses equal numbers
    return {
        "architectures": [f"{architecture}DraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": _FAMILY_LAYERS,
        "num_target_layers": num_layers,
        "block_size": _BLOCK_SIZE,
        "layer_types": ["full_attention"] * _FAMILY_LAYERS,
        "sliding_window": None,
        "use_sliding_window": False,
        "dflash_config": {"target_layer_ids": list(layer_ids), **heads},
    }


def _attention(config: ModelConfig) -> dict[str, int]:
    """Heads as the model's, each of the model's ``head_dim``.

    Where its config states none (or it has latent attention, whose heads are no such heads) it is
    ``hidden_size / heads``, up to a multiple of 16.
    """
    heads = config["num_attention_heads"]
    latent = config.get("kv_lora_rank") is not None
    head_dim = None if latent else config.stated("head_dim")
    if head_dim is None:
        own = None if latent else config.get("head_dim")
        head_dim = -(-(own or config["hidden_size"] // heads) // _HEAD_STEP) * _HEAD_STEP
    kv_heads = heads if latent else config.get("num_key_value_heads", heads)
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}


def _rope(config: ModelConfig) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling``, of either spelling: transformers 5 has them in
    ``rope_parameters``, some models by kind of layer."""
    found = config.stated("rope_parameters") or config.stated("rope_scaling") or {}
    of_class = config.get("rope_parameters") or {}
    parameters = _full_attention(found)
    theta = (
        parameters.get("rope_theta")
        or config.stated("rope_theta")
        or _full_attention(of_class).get("rope_theta")
        or 10000.0
    )
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _SCALINGS:
        return {"rope_theta": theta, "rope_scaling": None}
    scaling = {name: value for name, value in parameters.items() if name not in _OF_THE_MODEL}
    if kind == "yarn":
        longest = config.get("max_position_embeddings", 4096)
        scaling = {**_YARN, "original_max_position_embeddings": longest, **scaling}
    return {"rope_theta": theta, "rope_scaling": {**scaling, "rope_type": kind}}


def _full_attention(parameters: dict[str, Any]) -> dict[str, Any]:
    """The rope of the full-attention layers, where each kind of layer has its own."""
    nested = [part for part in parameters.values() if isinstance(part, dict)]
    chosen: dict[str, Any] = parameters.get("full_attention") or (
        nested[0] if nested else parameters
    )
    return chosen
