"""Processor files of the tiny vision models, written by transformers' own classes.

Rows are text, so that nothing is ever processed; but a server with a vision model reads the
files when it starts.
"""

import json
from pathlib import Path
from typing import Any

_VOCAB_SIZE = 500  # special tokens come behind


def write(family: str, folder: Path) -> None:
    """Write the processor and tokenizer of ``family``, a vision model, into ``folder``."""
    _PROCESSORS[family]().save_pretrained(folder)
    if family == "kimi_k25":
        _add_kimi_code(folder)


def _gemma3() -> Any:
    import transformers

    specials = {"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<image>"}
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokenizer = transformers.GemmaTokenizer(vocab=_vocab(first), extra_special_tokens=specials)
    images = transformers.Gemma3ImageProcessor(size={"height": 28, "width": 28})
    return transformers.Gemma3Processor(images, tokenizer, image_seq_length=4)


def _qwen3_vl() -> Any:
    import transformers

    tokenizer = transformers.Qwen2Tokenizer(vocab=_vocab(["<|endoftext|>"]))
    names = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(names)})
    return transformers.Qwen3VLProcessor(
        transformers.Qwen2VLImageProcessor(patch_size=4),
        tokenizer,
        transformers.Qwen3VLVideoProcessor(patch_size=4),
    )


def _kimi_k25() -> Any:
    import transformers

    tokenizer = transformers.Qwen2Tokenizer(vocab=_vocab(["<|endoftext|>"]))
    names = ("<|media_pad|>", "<|kimi_k25_video_placeholder|>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(names)})
    return transformers.Kimi_K25Processor(
        transformers.Kimi_K25ImageProcessor(),
        tokenizer,
        transformers.Kimi_K25VideoProcessor(),
    )


# SGLang reads the settings of Kimi's own processor, which is code beside the checkpoint
_KIMI_CODE = """
from types import SimpleNamespace

from transformers import Kimi_K25Processor


class KimiK25Processor(Kimi_K25Processor):
    media_processor = SimpleNamespace(
        media_proc_cfg={
            "patch_size": 14,
            "merge_kernel_size": 2,
            "in_patch_limit": 64,
            "patch_limit_on_one_side": 8,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        }
    )
"""


def _add_kimi_code(folder: Path) -> None:
    (folder / "processing_tiny_kimi.py").write_text(_KIMI_CODE)
    path = folder / "processor_config.json"
    config = json.loads(path.read_text())
    config["auto_map"] = {"AutoProcessor": "processing_tiny_kimi.KimiK25Processor"}
    config["processor_class"] = "KimiK25Processor"
    path.write_text(json.dumps(config, indent=1))


def _vocab(first: list[str]) -> dict[str, int]:
    words = [*first, *(f"w{i}" for i in range(_VOCAB_SIZE - len(first)))]
    return {word: i for i, word in enumerate(words)}


_PROCESSORS = {"gemma3_vision": _gemma3, "qwen3_vl": _qwen3_vl, "kimi_k25": _kimi_k25}
