"""Random models of the families that the plugin is proven on, a few hundred kB each.

Weights are large enough that every layer changes the residual stream clearly: neighbouring
boundaries must be far apart, or a test could not tell them from each other. Norms and biases
are random too: a norm of the wrong kind, or one that was never loaded, must show. Every expert
is chosen for every token where the family allows it: two bf16 implementations may decide a
routing tie differently, which would drown the small errors that the tests look for.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from make import processors as tiny_processors

NUM_LAYERS = 6
VOCAB_SIZE = 512

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "initializer_range": 0.08,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_HEAD = {"head_dim": 16}
_MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 4,  # of 4
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 4}
_ROUTED_EXPERTS = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,  # of 4
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}
_DEEPSEEK: dict[str, Any] = {
    **_ROUTED_EXPERTS,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
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
_DEEPSEEK_FOR_SGLANG = {
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "rope_scaling": _YARN,
    "rope_theta": 10000.0,
}
_WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"] * 2
_GEMMA = {**_HEAD, "tie_word_embeddings": True, "query_pre_attn_scalar": 16, "sliding_window": 24}
_GRANITE = {  # none of them 1: one that is left out must show
    "embedding_multiplier": 4.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
}
_DELTA_NET = {  # Qwen's gated delta net; every third layer is attention
    "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "patch_size": 14}
_LESS_DELTA_NET = {"linear_attn.out_proj": 0.25}  # random ones amplify rounding
_MAMBA_PATTERN = "M-*M*-"  # Mamba, MLP, attention
# Without AMX this becomes torch_native, which SGLang refuses for these families by name only
_AS_ON_INTEL = ("--attention-backend", "intel_amx")
# SGLang's own warm-up decodes, for which linear attention has no stand-in kernels, and it shows
# vision models an image
_NO_WARM_UP = ("--skip-server-warmup",)


@dataclass(frozen=True)
class _Family:
    """A transformers config, and the keys that SGLang reads and transformers does not write."""

    config: str
    values: dict[str, Any] = field(default_factory=dict)
    for_sglang: dict[str, Any] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)  # of weights whose names contain these
    vision: dict[str, Any] | None = None  # the rest of a config whose text_config has the values
    renamed: dict[str, str] = field(default_factory=dict)  # parts of tensor names, as published
    server_args: tuple[str, ...] = ()  # what SGLang wants told on a CPU


_FAMILIES = {
    "llama": _Family("LlamaConfig", _HEAD),
    "qwen2": _Family("Qwen2Config"),
    "qwen3": _Family("Qwen3Config", _HEAD),
    "qwen3_moe": _Family("Qwen3MoeConfig", {**_HEAD, **_MOE}),
    "deepseek_v3": _Family(
        "DeepseekV3Config",
        {**_DEEPSEEK, "rope_scaling": _YARN},
        _DEEPSEEK_FOR_SGLANG,
    ),
    "gemma3": _Family("Gemma3TextConfig", {**_GEMMA, "layer_types": _WINDOWS}),
    "granite": _Family("GraniteConfig", _GRANITE),
    "glm4": _Family("Glm4Config", {**_HEAD, "rms_norm_eps": 1e-5}),
    "gpt_oss": _Family(
        "GptOssConfig",
        {**_HEAD, **_LOCAL_EXPERTS, "intermediate_size": 64, "sliding_window": 24},
        server_args=(*_AS_ON_INTEL, "--moe-runner-backend", "triton"),
    ),
    "qwen2_moe": _Family("Qwen2MoeConfig", {**_MOE, "shared_expert_intermediate_size": 64}),
    "llama4": _Family(
        "Llama4TextConfig",
        {
            **_HEAD,
            "num_local_experts": 1,  # Llama-4 chooses one, so that all are chosen
            "num_experts_per_tok": 1,
            "intermediate_size": 64,
            "intermediate_size_mlp": 128,
            "interleave_moe_layer_step": 2,
            "attn_temperature_tuning": True,
            "floor_scale": 32,
        },
        # SGLang loads experts as transformers names them through the vision model's class only
        {"architectures": ["Llama4ForConditionalGeneration"]},
    ),
    "minimax_m2": _Family(
        "MiniMaxM2Config",
        {**_HEAD, **_LOCAL_EXPERTS, "intermediate_size": 64, "rotary_dim": 8},
        {
            "scoring_func": "sigmoid",
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
            "use_routing_bias": True,
            "rotary_dim": 8,
        },
    ),
    "gemma4": _Family(
        "Gemma4TextConfig",
        {
            **_GEMMA,
            "layer_types": _WINDOWS,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCAB_SIZE,
        },
        {  # SGLang's head_dim is the full layers', transformers' the sliding ones'
            "head_dim": 32,
            "swa_head_dim": 16,
            "swa_v_head_dim": 16,
            "swa_num_key_value_heads": 2,
            "per_layer_config": {str(i): {"head_dim": 16} for i in (0, 1, 3, 4)},
            "allow_global_per_layer_attribute_access": True,
        },
        {"q_norm": 0.1},  # scores are not scaled: an attention this sharp would amplify rounding
        server_args=_AS_ON_INTEL,
    ),
    "qwen3_next": _Family(
        "Qwen3NextConfig",
        {**_HEAD, **_MOE, **_DELTA_NET, "shared_expert_intermediate_size": 64},
        {"full_attention_interval": 3},
        _LESS_DELTA_NET,
        server_args=_NO_WARM_UP,
    ),
    "qwen3_5": _Family(
        "Qwen3_5TextConfig",
        {**_HEAD, **_DELTA_NET},
        {"full_attention_interval": 3},
        _LESS_DELTA_NET,
        server_args=_NO_WARM_UP,
    ),
    "nemotron_h": _Family(
        "NemotronHConfig",
        {
            **_HEAD,
            "num_hidden_layers": None,
            "hybrid_override_pattern": _MAMBA_PATTERN,
            "mlp_bias": True,
            "ssm_state_size": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "chunk_size": 32,
        },
        {
            "num_hidden_layers": NUM_LAYERS,
            "layers_block_type": None,
            "hybrid_override_pattern": _MAMBA_PATTERN,
            "mamba_n_groups": 2,
            "mamba_chunk_size": 32,
        },
        server_args=_NO_WARM_UP,
    ),
    "lfm2": _Family(
        "Lfm2Config",
        {
            "layer_types": ["conv", "conv", "full_attention"] * 2,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": True,
            "conv_bias": True,
        },
        {"conv_L_cache": 3},
        server_args=_NO_WARM_UP,
    ),
    "falcon_h1": _Family(
        "FalconH1Config",
        {
            **_HEAD,
            "mamba_d_ssm": 128,
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_n_groups": 1,
            "mamba_d_state": 16,
            "mamba_chunk_size": 32,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "key_multiplier": 0.5,
            "attention_out_multiplier": 0.7,
            "ssm_out_multiplier": 0.6,
            "embedding_multiplier": 2.0,
            "lm_head_multiplier": 0.5,
        },
        server_args=_NO_WARM_UP,
    ),
    "glm4_moe": _Family(
        "Glm4MoeConfig", {**_HEAD, **_ROUTED_EXPERTS, "use_qk_norm": True, "attention_bias": True}
    ),
    "phi3": _Family("Phi3Config"),
    "mistral": _Family("MistralConfig", {**_HEAD, "sliding_window": None}),
    "olmo2": _Family("Olmo2Config"),
    "gemma2": _Family(
        "Gemma2Config",
        {
            **_GEMMA,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "attn_logit_softcapping": 1.0,  # low, so that it matters
        },
        {"hidden_act": "gelu_pytorch_tanh"},
    ),
    "cohere": _Family("CohereConfig", {"tie_word_embeddings": True, "logit_scale": 0.5}),
    "granitemoe": _Family("GraniteMoeConfig", {**_GRANITE, **_LOCAL_EXPERTS}),
    "starcoder2": _Family("Starcoder2Config"),
    "mixtral": _Family("MixtralConfig", {**_HEAD, **_LOCAL_EXPERTS}),
    "gemma": _Family("GemmaConfig", {**_HEAD, "tie_word_embeddings": True}),
    "stablelm": _Family("StableLmConfig", {"use_qkv_bias": True}),
    "gpt2": _Family(
        "GPT2Config",
        {
            "n_embd": 64,
            "n_layer": NUM_LAYERS,
            "n_head": 4,
            "n_positions": 2048,
            "n_inner": 128,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
        },
    ),
    "cohere2": _Family(
        "Cohere2Config",
        {
            "tie_word_embeddings": True,
            "logit_scale": 0.5,
            "layer_types": _WINDOWS,
            "sliding_window": 2048,  # SGLang's is one token wider: nothing may fall out of it
        },
    ),
    "apertus": _Family("ApertusConfig"),
    "glm4_moe_lite": _Family("Glm4MoeLiteConfig", {**_DEEPSEEK}, _DEEPSEEK_FOR_SGLANG),
    "qwen3_5_moe": _Family(
        "Qwen3_5MoeTextConfig",
        {**_HEAD, **_MOE, **_DELTA_NET, "shared_expert_intermediate_size": 64},
        {"full_attention_interval": 3},
        _LESS_DELTA_NET,
        server_args=_NO_WARM_UP,
    ),
    "granitemoehybrid": _Family(
        "GraniteMoeHybridConfig",
        {
            **_GRANITE,
            **_LOCAL_EXPERTS,
            "layer_types": ["mamba", "mamba", "attention"] * 2,
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
            "mamba_chunk_size": 32,
            "shared_intermediate_size": 64,
        },
        server_args=_NO_WARM_UP,
    ),
    "olmoe": _Family("OlmoeConfig", {**_MOE, "num_key_value_heads": 4}),
    "ernie4_5": _Family("Ernie4_5Config", _HEAD, {"architectures": ["Ernie4_5_ForCausalLM"]}),
    "lfm2_moe": _Family(
        "Lfm2MoeConfig",
        {
            "layer_types": ["conv", "conv", "full_attention"] * 2,
            "tie_word_embeddings": True,
            "conv_bias": True,
            "num_experts": 4,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 64,
            "num_dense_layers": 2,
        },
        {"conv_L_cache": 3},
        server_args=_NO_WARM_UP,
    ),
    # vision models, for rows of text; their processors: tiny_processors
    "gemma3_vision": _Family(
        "Gemma3Config",
        {**_GEMMA, "layer_types": _WINDOWS},
        vision={
            "vision_config": {
                **_VISION,
                "num_attention_heads": 2,
                "image_size": 28,
                "vision_use_head": False,
            },
            "mm_tokens_per_image": 4,
            "boi_token_index": 500,
            "eoi_token_index": 501,
            "image_token_index": 502,
        },
        renamed={"vision_tower.": "vision_tower.vision_model."},
    ),
    "qwen3_vl": _Family(
        "Qwen3VLConfig",
        {**_HEAD, "rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2]}},
        vision={
            "vision_config": {
                **_VISION,
                "depth": 2,
                "num_heads": 2,
                "out_hidden_size": 64,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0, 1],
            },
            "vision_start_token_id": 500,
            "vision_end_token_id": 501,
            "image_token_id": 502,
            "video_token_id": 503,
        },
        server_args=_NO_WARM_UP,
    ),
    "kimi_k25": _Family(
        "Kimi_K25Config",
        {"model_type": "deepseek_v3", **_DEEPSEEK, "rope_scaling": _YARN},
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "text_config": {**_DEEPSEEK_FOR_SGLANG, "architectures": ["DeepseekV3ForCausalLM"]},
            "media_placeholder_token_id": 500,
            "vision_config": {
                "init_pos_emb_height": 4,
                "init_pos_emb_width": 4,
                "vt_hidden_size": 32,
                "vt_intermediate_size": 64,
                "vt_num_attention_heads": 2,
                "vt_num_hidden_layers": 2,
                "mm_hidden_size": 32,
                "text_hidden_size": 64,
            },
        },
        vision={
            "vision_config": {
                **_VISION,
                "num_attention_heads": 2,
                "pos_emb_height": 4,
                "pos_emb_width": 4,
            },
            "projection_hidden_size": 32,
            "image_token_id": 500,
            "video_token_id": 501,
            "tie_word_embeddings": False,
        },
        renamed={
            "language_model.model.blocks.": "language_model.model.layers.",
            "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
            "model.mm_projector.": "mm_projector.",
        },
        server_args=(*_NO_WARM_UP, "--trust-remote-code"),
    ),
}

# proven in every run of the tests: both seams, a mixture of experts, latent attention
FAMILIES = ("llama", "gemma3", "qwen3_moe", "deepseek_v3")
ALL_FAMILIES = tuple(_FAMILIES)


def server_args(family: str) -> tuple[str, ...]:
    """What SGLang's command line needs besides the kit's own, to serve ``family`` on a CPU."""
    return _FAMILIES[family].server_args


def architecture(folder: Path) -> str:
    """The class that a model folder's config.json names."""
    return str(json.loads((folder / "config.json").read_text())["architectures"][0])


def build(family: str, folder: Path, **overrides: Any) -> Path:
    """Write a random bf16 model of ``family`` into ``folder`` and return it."""
    import torch
    import transformers

    if family not in _FAMILIES:
        raise ValueError(f"no tiny model of family {family!r}")
    parts = _FAMILIES[family]
    torch.manual_seed(7)
    values = {**_COMMON, **parts.values, **overrides}
    kind = getattr(transformers, parts.config)
    if parts.vision is None:
        config, auto = kind(**values), transformers.AutoModelForCausalLM
    else:
        config = kind(text_config=values, **parts.vision)
        auto = transformers.AutoModelForImageTextToText
    model = auto.from_config(config, dtype=torch.bfloat16)
    _randomise_vectors(model)
    _scale(model, parts.scales)
    model.save_pretrained(folder)
    if parts.renamed:
        _rename(folder / "model.safetensors", parts.renamed)
    if parts.vision is not None:
        tiny_processors.write(family, folder)
    _add_to_config(folder, parts.for_sglang)
    return folder


def _randomise_vectors(model: Any) -> None:
    """Norm weights lie around what they were initialised to, 1 or 0; biases around 0."""
    import torch

    biases = {name: x for name, x in model.named_buffers() if name.endswith("bias")}  # of routers
    with torch.no_grad():
        for name, tensor in {**dict(model.named_parameters()), **biases}.items():
            vector = tensor.dim() == 1 or name.endswith("bias")
            if vector and (torch.all(tensor == 0) or torch.all(tensor == 1)):
                tensor.add_(torch.empty_like(tensor).uniform_(-0.5, 0.5))


def _scale(model: Any, scales: dict[str, float]) -> None:
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for part, factor in scales.items():
                if part in name:
                    parameter.mul_(factor)


def _rename(path: Path, parts: dict[str, str]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    for old, new in parts.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def _add_to_config(folder: Path, values: dict[str, Any]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in values.items():
        inner = config.get(key)
        config[key] = {**inner, **value} if isinstance(inner, dict) else value
    path.write_text(json.dumps(config, indent=1))
