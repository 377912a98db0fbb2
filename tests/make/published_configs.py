"""Configs after the shape of published models: which keys they state, where, and what they omit.

Cut down to what says the shape of the language model, with a key or two of the rest that could
be taken for it. ``expected``: layers, hidden size, vocabulary, context, model type.
"""

from typing import Any, NamedTuple


class Published(NamedTuple):
    """One config, and what SGLang serves for it."""

    config: dict[str, Any]
    expected: tuple[int, int, int, int, str]


_VISION = {"hidden_size": 1152, "num_hidden_layers": 27, "vocab_size": 7, "num_layers": 3}

CONFIGS = {
    # the class knows vocabulary, context, heads
    "gemma-3-4b-it": Published(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "boi_token_index": 255999,
            "image_token_index": 262144,
            "mm_tokens_per_image": 256,
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {**_VISION, "model_type": "siglip_vision_model"},
        },
        (34, 2560, 262208, 131072, "gemma3_text"),
    ),
    "gemma-3-27b-it": Published(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {
                "head_dim": 128,
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "model_type": "gemma3_text",
                "num_attention_heads": 32,
                "num_hidden_layers": 62,
                "num_key_value_heads": 16,
                "query_pre_attn_scalar": 168,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {**_VISION, "model_type": "siglip_vision_model"},
        },
        (62, 5376, 262208, 131072, "gemma3_text"),
    ),
    # the part states no model type: the wrapper's class says which it is
    "gemma-3 without the part's type": Published(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {"hidden_size": 2560, "num_hidden_layers": 34},
        },
        (34, 2560, 262208, 131072, "gemma3_text"),
    ),
    "llava-1.5-7b-hf": Published(
        {
            "architectures": ["LlavaForConditionalGeneration"],
            "image_token_index": 32000,
            "model_type": "llava",
            "text_config": {
                "_name_or_path": "lmsys/vicuna-7b-v1.5",
                "architectures": ["LlamaForCausalLM"],
                "max_position_embeddings": 4096,
                "model_type": "llama",
                "rms_norm_eps": 1e-05,
                "vocab_size": 32064,
            },
            "vision_config": {**_VISION, "model_type": "clip_vision_model"},
        },
        (32, 4096, 32064, 4096, "llama"),
    ),
    "Kimi-K2.5": Published(
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
            "media_placeholder_token_id": 163605,
            "model_type": "kimi_k25",
            "text_config": {
                "architectures": ["DeepseekV3ForCausalLM"],
                "hidden_size": 7168,
                "kv_lora_rank": 512,
                "max_position_embeddings": 262144,
                "model_type": "kimi_k2",
                "num_attention_heads": 64,
                "num_hidden_layers": 61,
                "q_lora_rank": 1536,
                "rms_norm_eps": 1e-05,
                "vocab_size": 163840,
            },
            "vision_config": {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27},
        },
        (61, 7168, 163840, 262144, "kimi_k2"),
    ),
    "Qwen3-VL-4B-Instruct": Published(
        {
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "image_token_id": 151655,
            "model_type": "qwen3_vl",
            "text_config": {
                "hidden_size": 2560,
                "max_position_embeddings": 262144,
                "model_type": "qwen3_vl_text",
                "num_attention_heads": 32,
                "num_hidden_layers": 36,
                "rms_norm_eps": 1e-06,
                "vocab_size": 151936,
            },
            "tie_word_embeddings": True,
            "vision_config": {"depth": 24, "hidden_size": 1024, "model_type": "qwen3_vl"},
        },
        (36, 2560, 151936, 262144, "qwen3_vl_text"),
    ),
    "Qwen3.5-27B": Published(
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": {
                "full_attention_interval": 4,
                "head_dim": 256,
                "hidden_size": 5120,
                "max_position_embeddings": 262144,
                "model_type": "qwen3_5_text",
                "num_attention_heads": 24,
                "num_hidden_layers": 64,
                "vocab_size": 248320,
            },
            "vision_config": {"depth": 27, "hidden_size": 1152, "model_type": "qwen3_5"},
        },
        (64, 5120, 248320, 262144, "qwen3_5_text"),
    ),
    "Qwen2.5-Omni-7B": Published(
        {
            "architectures": ["Qwen2_5OmniModel"],
            "enable_audio_output": True,
            "model_type": "qwen2_5_omni",
            "talker_config": {"hidden_size": 896, "num_hidden_layers": 24, "vocab_size": 8448},
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "text_config": {
                    "hidden_size": 3584,
                    "max_position_embeddings": 32768,
                    "model_type": "qwen2_5_omni_text",
                    "num_attention_heads": 28,
                    "num_hidden_layers": 28,
                    "vocab_size": 152064,
                },
            },
        },
        (28, 3584, 152064, 32768, "qwen2_5_omni_text"),
    ),
    "Qwen3-Omni-30B-A3B-Instruct": Published(
        {
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
            "enable_audio_output": True,
            "model_type": "qwen3_omni_moe",
            "talker_config": {"text_config": {"hidden_size": 1024, "num_hidden_layers": 20}},
            "thinker_config": {
                "audio_config": {"d_model": 1280, "num_hidden_layers": 32},
                "model_type": "qwen3_omni_moe_thinker",
                "text_config": {
                    "hidden_size": 2048,
                    "max_position_embeddings": 65536,
                    "model_type": "qwen3_omni_moe_text",
                    "num_attention_heads": 32,
                    "num_hidden_layers": 48,
                    "vocab_size": 152064,
                },
            },
        },
        (48, 2048, 152064, 65536, "qwen3_omni_moe_text"),
    ),
    "deepseek-vl2": Published(
        {
            "architectures": ["DeepseekVLV2ForCausalLM"],
            "language_config": {
                "architectures": ["DeepseekV2ForCausalLM"],
                "hidden_size": 2560,
                "max_position_embeddings": 4096,
                "model_type": "deepseek_v2",
                "num_attention_heads": 32,
                "num_hidden_layers": 30,
                "vocab_size": 129280,
            },
            "model_type": "deepseek_vl_v2",
            "projector_config": {"model_type": "mlp_projector", "n_embed": 2560},
            "vision_config": {"layers": 27, "model_type": "vision", "width": 1152},
        },
        (30, 2560, 129280, 4096, "deepseek_v2"),
    ),
    "InternVL2_5-8B": Published(
        {
            "architectures": ["InternVLChatModel"],
            "auto_map": {"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"},
            "llm_config": {
                "architectures": ["InternLM2ForCausalLM"],
                "hidden_size": 4096,
                "max_position_embeddings": 32768,
                "model_type": "internlm2",
                "num_attention_heads": 32,
                "num_hidden_layers": 32,
                "rms_norm_eps": 1e-05,
                "vocab_size": 92553,
            },
            "model_type": "internvl_chat",
            "vision_config": {"architectures": ["InternVisionModel"], "hidden_size": 1024},
        },
        (32, 4096, 92553, 32768, "internlm2"),
    ),
    "Llama-4-Scout-17B-16E": Published(
        {
            "architectures": ["Llama4ForConditionalGeneration"],
            "model_type": "llama4",
            "text_config": {
                "head_dim": 128,
                "hidden_size": 5120,
                "max_position_embeddings": 10485760,
                "model_type": "llama4_text",
                "num_attention_heads": 40,
                "num_hidden_layers": 48,
                "vocab_size": 202048,
            },
            "vision_config": {**_VISION, "model_type": "llama4_vision_model"},
        },
        (48, 5120, 202048, 10485760, "llama4_text"),
    ),
    "Mistral-Small-3.1-24B": Published(
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "text_config": {
                "head_dim": 128,
                "hidden_size": 5120,
                "max_position_embeddings": 131072,
                "model_type": "mistral",
                "num_attention_heads": 32,
                "num_hidden_layers": 40,
                "vocab_size": 131072,
            },
            "vision_config": {"hidden_size": 1024, "model_type": "pixtral"},
        },
        (40, 5120, 131072, 131072, "mistral"),
    ),
    # other names for the same numbers
    "gpt2-medium": Published(
        {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_ctx": 1024,
            "n_embd": 1024,
            "n_head": 16,
            "n_layer": 24,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        (24, 1024, 50257, 1024, "gpt2"),
    ),
    "chatglm3-6b": Published(
        {
            "architectures": ["ChatGLMModel"],
            "auto_map": {"AutoConfig": "configuration_chatglm.ChatGLMConfig"},
            "hidden_size": 4096,
            "layernorm_epsilon": 1e-05,
            "model_type": "chatglm",
            "num_attention_heads": 32,
            "num_layers": 28,
            "padded_vocab_size": 65024,
            "rmsnorm": True,
            "seq_length": 8192,
        },
        (28, 4096, 65024, 8192, "chatglm"),
    ),
    "EXAONE-3.5-7.8B": Published(
        {
            "architectures": ["ExaoneForCausalLM"],
            "auto_map": {"AutoConfig": "configuration_exaone.ExaoneConfig"},
            "hidden_size": 4096,
            "layer_norm_epsilon": 1e-05,
            "max_position_embeddings": 32768,
            "model_type": "exaone",
            "num_attention_heads": 32,
            "num_layers": 32,
            "vocab_size": 102400,
        },
        (32, 4096, 102400, 32768, "exaone"),
    ),
    "LongCat-Flash-Chat": Published(
        {
            "architectures": ["LongcatFlashForCausalLM"],
            "auto_map": {"AutoConfig": "configuration_longcat_flash.LongcatFlashConfig"},
            "hidden_size": 6144,
            "max_position_embeddings": 131072,
            "num_attention_heads": 64,
            "num_layers": 28,
            "vocab_size": 131072,
        },
        (28, 6144, 131072, 131072, "longcat_flash"),
    ),
    # everything at the top
    "gpt-oss-120b": Published(
        {
            "architectures": ["GptOssForCausalLM"],
            "head_dim": 64,
            "hidden_size": 2880,
            "max_position_embeddings": 131072,
            "model_type": "gpt_oss",
            "num_attention_heads": 64,
            "num_hidden_layers": 36,
            "vocab_size": 201088,
        },
        (36, 2880, 201088, 131072, "gpt_oss"),
    ),
    "Nemotron-H-8B": Published(
        {
            "architectures": ["NemotronHForCausalLM"],
            "auto_map": {"AutoConfig": "configuration_nemotron_h.NemotronHConfig"},
            "hidden_size": 4096,
            "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            "layer_norm_epsilon": 1e-05,
            "max_position_embeddings": 8192,
            "model_type": "nemotron_h",
            "num_attention_heads": 32,
            "num_hidden_layers": 52,
            "vocab_size": 131072,
        },
        (52, 4096, 131072, 8192, "nemotron_h"),
    ),
    "GLM-4-32B-0414": Published(
        {
            "architectures": ["Glm4ForCausalLM"],
            "head_dim": 128,
            "hidden_size": 6144,
            "max_position_embeddings": 32768,
            "model_type": "glm4",
            "num_attention_heads": 48,
            "num_hidden_layers": 61,
            "rms_norm_eps": 1e-05,
            "vocab_size": 151552,
        },
        (61, 6144, 151552, 32768, "glm4"),
    ),
}
