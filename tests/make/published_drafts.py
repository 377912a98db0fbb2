"""Configs after the shape of published drafts: which keys they state, where, and what they omit.

Cut down to what says which states of which target they read. Where a repository or one of
SpecForge's example configs is named, the ids are its own, as its config or reports about it give
them; an entry called a form has a tool's keys, and made-up ids. ``boundaries`` None: the ids can be
meant in two ways, and ``meanings`` are both.
"""

from pathlib import Path
from typing import Any, NamedTuple

from hslib.model import ModelInfo


def target(architecture: str, num_layers: int, hidden_size: int, vocab_size: int) -> ModelInfo:
    return ModelInfo(
        path=Path("/models") / architecture,
        architecture=architecture,
        model_type="",
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        context_length=0,
        config_hash="",
        tokenizer_hash="",
    )


LLAMA_8B = target("LlamaForCausalLM", 32, 4096, 128256)
LLAMA_70B = target("LlamaForCausalLM", 80, 8192, 128256)
QWEN3_4B = target("Qwen3ForCausalLM", 36, 2560, 151936)
QWEN3_8B = target("Qwen3ForCausalLM", 36, 4096, 151936)
QWEN3_30B = target("Qwen3MoeForCausalLM", 48, 2048, 151936)
QWEN3_235B = target("Qwen3MoeForCausalLM", 94, 4096, 151936)
QWEN3_NEXT = target("Qwen3NextForCausalLM", 48, 2048, 151936)
QWEN36_27B = target("Qwen3_5ForConditionalGeneration", 64, 5120, 248320)
QWEN36_35B = target("Qwen3_5MoeForConditionalGeneration", 40, 2048, 248320)
GPT_OSS_20B = target("GptOssForCausalLM", 24, 2880, 201088)
GPT_OSS_120B = target("GptOssForCausalLM", 36, 2880, 201088)
GEMMA4_31B = target("Gemma4ForConditionalGeneration", 60, 5376, 262144)
KIMI_K25 = target("KimiK25ForConditionalGeneration", 61, 7168, 163840)
DEEPSEEK_R1 = target("DeepseekV3ForCausalLM", 61, 7168, 129280)
DEEPSEEK_V4 = target("DeepseekV4ForCausalLM", 43, 4096, 129280)


class PublishedDraft(NamedTuple):
    config: dict[str, Any]
    target: ModelInfo
    kind: str
    boundaries: tuple[int, ...] | None
    last_state: str  # before or after the final norm
    meanings: tuple[tuple[int, ...], ...] = ()


def _eagle3(model: ModelInfo, ids: list[int] | None = None, **more: Any) -> dict[str, Any]:
    """SpecForge's and Model-Optimizer's form."""
    eagle = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **({"eagle_config": eagle} if ids else {}),
        "draft_vocab_size": 32000,
        "hidden_size": model.hidden_size,
        "model_type": "llama",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "vocab_size": model.vocab_size,
        **more,
    }


def _dflash(model: ModelInfo, ids: list[int] | None, layers: int, **more: Any) -> dict[str, Any]:
    """z-lab's, and SpecForge's after it; older ones have ``block_size`` on top."""
    part = {"mask_token_id": 151669, **({"target_layer_ids": ids} if ids else {})}
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": 16,
        "dflash_config": {**part, **more.pop("dflash_config", {})},
        "hidden_size": model.hidden_size,
        "layer_types": ["full_attention"] * layers,
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "num_target_layers": model.num_layers,
        "vocab_size": model.vocab_size,
        **more,
    }


def _speculators(model: ModelInfo, kind: str, layers: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [f"{kind.capitalize()}DraftModel"],
        "draft_vocab_size": 32000,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": [model.architecture], "name_or_path": "some/target"},
        },
        "speculators_model_type": kind,
        "target_hidden_size": None,
        "transformer_layer_config": {
            "hidden_size": model.hidden_size,
            "model_type": "llama",
            "num_hidden_layers": layers,
            "vocab_size": model.vocab_size,
        },
        **more,
    }


DRAFTS = {
    # --- SafeAILab: the target's class, no ids, the vocabulary alone shows what it is
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": PublishedDraft(
        {**_eagle3(LLAMA_8B), "architectures": ["LlamaForCausalLM"]},
        LLAMA_8B,
        "eagle3",
        (2, 16, 29),
        "after",
    ),
    "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B": PublishedDraft(
        _eagle3(
            LLAMA_70B,
            architectures=["LlamaForCausalLM"],
            hidden_size=6144,
            target_hidden_size=8192,
        ),
        LLAMA_70B,
        "eagle3",
        (2, 40, 77),
        "after",
    ),
    "lmsys/sglang-EAGLE-LLaMA3-Instruct-8B": PublishedDraft(
        {
            "architectures": ["LlamaForCausalLMEagle"],
            "hidden_size": 4096,
            "model_type": "llama",
            "num_hidden_layers": 1,
            "vocab_size": 128256,
        },
        LLAMA_8B,
        "eagle",
        (),
        "after",
    ),
    # --- SpecForge
    "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge": PublishedDraft(
        _eagle3(LLAMA_8B), LLAMA_8B, "eagle3", (2, 16, 29), "after"
    ),
    "lmsys/Qwen3-235B-A22B-EAGLE3": PublishedDraft(
        _eagle3(QWEN3_235B, [1, 46, 90]), QWEN3_235B, "eagle3", (2, 47, 91), "after"
    ),
    "SpecForge gpt-oss-20B-eagle3": PublishedDraft(  # its last id is n - 3, the others as if n - 4
        _eagle3(GPT_OSS_20B, [1, 11, 21], architectures=["GptOssForCausalLMEagle3"]),
        GPT_OSS_20B,
        "eagle3",
        None,
        "after",
        ((2, 12, 22), (1, 11, 21)),
    ),
    "SpecForge qwen3-8b-peagle": PublishedDraft(
        _eagle3(QWEN3_8B, architectures=["PEagleDraftModel"], num_hidden_layers=4),
        QWEN3_8B,
        "peagle",
        (2, 18, 33),
        "after",
    ),
    # --- Model-Optimizer
    "nvidia/gpt-oss-120b-Eagle3-v3": PublishedDraft(
        _eagle3(GPT_OSS_120B, [24, 30, 36], norm_before_fc=True),
        GPT_OSS_120B,
        "eagle3",
        (24, 30, 36),
        "after",
    ),
    "nvidia/gpt-oss-120b-Eagle3-long-context": PublishedDraft(
        _eagle3(GPT_OSS_120B, [1, 17, 32]), GPT_OSS_120B, "eagle3", (2, 18, 33), "after"
    ),
    "nvidia/gpt-oss-120b-Eagle3-short-context": PublishedDraft(
        _eagle3(
            GPT_OSS_120B,
            eagle_config={"eagle_aux_hidden_state_layer_ids": [], "use_aux_hidden_state": False},
        ),
        GPT_OSS_120B,
        "eagle",
        (),
        "after",
    ),
    # --- others in that form
    "lightseekorg/kimi-k2.5-eagle3-mla": PublishedDraft(
        _eagle3(KIMI_K25, [2, 30, 58], architectures=["Eagle3DeepseekV2ForCausalLM"]),
        KIMI_K25,
        "eagle3",
        (2, 30, 58),
        "after",
    ),
    "SyzygyResearch/DeepSeek-V4-Flash-EAGLE3.1": PublishedDraft(
        _eagle3(DEEPSEEK_V4, [1, 21, 40], fc_norm=True, norm_output=True),
        DEEPSEEK_V4,
        "eagle3",
        None,
        "after",
        ((1, 21, 40), (2, 22, 41)),
    ),
    # --- speculators
    "RedHatAI/Qwen3-8B-speculator.eagle3": PublishedDraft(
        _speculators(QWEN3_8B, "eagle3", norm_before_residual=True),
        QWEN3_8B,
        "eagle3",
        (2, 18, 33),
        "before",
    ),
    "RedHatAI/gemma-4-31B-it-speculator.eagle3": PublishedDraft(
        _speculators(GEMMA4_31B, "eagle3", eagle_aux_hidden_state_layer_ids=[2, 30, 57]),
        GEMMA4_31B,
        "eagle3",
        (2, 30, 57),
        "before",
    ),
    # SpecForge's ids, carried over by speculators' converter as they were
    "nm-testing/Qwen3-235B-A22B-EAGLE3-converted-speculators-lmsys": PublishedDraft(
        _speculators(QWEN3_235B, "eagle3", eagle_aux_hidden_state_layer_ids=[1, 46, 90]),
        QWEN3_235B,
        "eagle3",
        None,
        "before",
        ((1, 46, 90), (2, 47, 91)),
    ),
    "speculators' P-EAGLE form": PublishedDraft(
        _speculators(QWEN3_8B, "peagle", 4, eagle_aux_hidden_state_layer_ids=[2, 18, 33]),
        QWEN3_8B,
        "peagle",
        (2, 18, 33),
        "before",
    ),
    "RedHatAI/Qwen3-30B-A3B-speculator.dflash": PublishedDraft(
        _speculators(QWEN3_30B, "dflash", 5, aux_hidden_state_layer_ids=[1, 12, 23, 34, 45]),
        QWEN3_30B,
        "dflash",
        (1, 12, 23, 34, 45),
        "before",
    ),
    "speculators' DSpark form": PublishedDraft(
        _speculators(
            GEMMA4_31B, "dspark", 5, aux_hidden_state_layer_ids=[2, 16, 30, 44, 58], markov_rank=256
        ),
        GEMMA4_31B,
        "dspark",
        (2, 16, 30, 44, 58),
        "before",
    ),
    "speculators' MTP form": PublishedDraft(
        _speculators(QWEN3_NEXT, "mtp", 48, num_nextn_predict_layers=1),
        QWEN3_NEXT,
        "mtp",
        (48,),
        "before",
    ),
    # --- DFlash and its family
    "z-lab/Qwen3-8B-DFlash-b16": PublishedDraft(
        _dflash(QWEN3_8B, [1, 9, 17, 25, 33], 5),
        QWEN3_8B,
        "dflash",
        (2, 10, 18, 26, 34),
        "after",
    ),
    "z-lab/Qwen3.6-27B-DFlash": PublishedDraft(
        _dflash(QWEN36_27B, [1, 16, 31, 46, 61], 5),
        QWEN36_27B,
        "dflash",
        (2, 17, 32, 47, 62),
        "after",
    ),
    "z-lab/Qwen3.6-35B-A3B-DFlash": PublishedDraft(  # more states than layers of its own
        _dflash(
            QWEN36_35B, [1, 6, 11, 16, 22, 27, 32, 37], 6, dflash_config={"num_target_layers": 40}
        ),
        QWEN36_35B,
        "dflash",
        (2, 7, 12, 17, 23, 28, 33, 38),
        "after",
    ),
    "SpecForge qwen3-8b-dflash": PublishedDraft(
        _dflash(QWEN3_8B, None, 5), QWEN3_8B, "dflash", (2, 10, 18, 26, 34), "after"
    ),
    "SpecForge qwen3-8b-domino": PublishedDraft(
        _dflash(QWEN3_8B, [1, 9, 17, 25, 33], 5, dflash_config={"projector_type": "domino"}),
        QWEN3_8B,
        "domino",
        (2, 10, 18, 26, 34),
        "after",
    ),
    "SpecForge qwen3-8b-dspark": PublishedDraft(
        _dflash(
            QWEN3_8B,
            [1, 9, 17, 25, 33],
            5,
            architectures=["DSparkDraftModel"],
            dflash_config={"projector_type": "dspark", "markov_rank": 256},
        ),
        QWEN3_8B,
        "dspark",
        (2, 10, 18, 26, 34),
        "after",
    ),
    "SpecForge qwen3.6-27b-dflash2": PublishedDraft(
        _dflash(QWEN36_27B, [5, 19, 33, 47, 61], 5, architectures=["DFlash2DraftModel"]),
        QWEN36_27B,
        "dflash2",
        (6, 20, 34, 48, 62),
        "after",
    ),
    "nvidia's Nemotron 3.5 DFlash form": PublishedDraft(  # vLLM's count beside z-lab's
        _dflash(
            QWEN3_8B,
            [1, 9, 17, 25, 33],
            5,
            eagle_aux_hidden_state_layer_ids=[2, 10, 18, 26, 34],
            has_embed_tokens=True,
        ),
        QWEN3_8B,
        "dflash",
        (2, 10, 18, 26, 34),
        "after",
    ),
    # --- DeepSpec: ids on top
    "DeepSpec's DSpark form": PublishedDraft(
        {
            "architectures": ["Qwen3DSparkModel"],
            "block_size": 7,
            "hidden_size": 2560,
            "markov_head_type": "vanilla",
            "markov_rank": 256,
            "mask_token_id": 151669,
            "model_type": "qwen3",
            "num_hidden_layers": 5,
            "num_target_layers": 36,
            "target_layer_ids": [1, 9, 17, 25, 33],
            "vocab_size": 151936,
        },
        QWEN3_4B,
        "dspark",
        (2, 10, 18, 26, 34),
        "after",
    ),
    "DeepSpec's EAGLE-3 form": PublishedDraft(  # always five
        {
            "architectures": ["Qwen3Eagle3Model"],
            "hidden_size": 2560,
            "model_type": "qwen3",
            "num_hidden_layers": 1,
            "num_target_layers": 36,
            "target_layer_ids": [1, 9, 17, 25, 35],
            "ttt_length": 7,
            "vocab_size": 151936,
        },
        QWEN3_4B,
        "eagle3",
        (2, 10, 18, 26, 36),
        "after",
    ),
    # --- heads inside the target's own checkpoint, or cut out of it
    "deepseek-ai/DeepSeek-V4-Flash-0731": PublishedDraft(
        {
            "architectures": ["DeepseekV4ForCausalLM"],
            "dspark_block_size": 5,
            "dspark_markov_rank": 256,
            "dspark_noise_token_id": 128799,
            "dspark_target_layer_ids": [40, 41, 42],
            "hidden_size": 4096,
            "num_hidden_layers": 43,
            "num_nextn_predict_layers": 1,
            "vocab_size": 129280,
        },
        DEEPSEEK_V4,
        "dspark",
        (41, 42, 43),
        "after",
    ),
    "DeepSeek-V4.1, whose head stands in the language model's part": PublishedDraft(
        {
            "architectures": ["DeepseekV4ForConditionalGeneration"],
            "text_config": {
                "dspark_markov_rank": 256,
                "dspark_target_layer_ids": [37, 38, 39],
                "hidden_size": 4096,
                "num_hidden_layers": 40,
                "vocab_size": 129280,
            },
        },
        target("DeepseekV4ForConditionalGeneration", 40, 4096, 129280),
        "dspark",
        (38, 39, 40),
        "after",
    ),
    "lmsys/DeepSeek-R1-NextN": PublishedDraft(
        {
            "architectures": ["DeepseekV3ForCausalLMNextN"],
            "hidden_size": 7168,
            "model_type": "deepseek_v3",
            "num_hidden_layers": 1,
            "num_nextn_predict_layers": 1,
            "vocab_size": 129280,
        },
        DEEPSEEK_R1,
        "mtp",
        (61,),
        "either",
    ),
    "Qwen3.5's form of its own MTP head": PublishedDraft(
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "text_config": {
                "hidden_size": 5120,
                "mtp_num_hidden_layers": 1,
                "num_hidden_layers": 64,
                "vocab_size": 248320,
            },
        },
        QWEN36_27B,
        "mtp",
        (64,),
        "either",
    ),
}
