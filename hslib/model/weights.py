"""Single tensors of a checkpoint: embedding, final norm, head; nothing else is read.

Format: ``model.safetensors``, or shards with a weight map in ``model.safetensors.index.json``.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hslib.errors import ParameterError
from hslib.model.config import read_config

if TYPE_CHECKING:
    import torch

# How the names of a tensor end, the commonest first: from published checkpoints' indices and the
# modules of transformers 5.19's causal language models.
EMBEDDING = (
    "model.embed_tokens.weight",
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",  # ChatGLM
    "tok_embeddings.weight",  # InternLM2
    "backbone.embeddings.weight",  # Nemotron-H, Mamba
)
HEAD = ("lm_head.weight", "output.weight", "output_layer.weight")
FINAL_NORM = (
    "model.norm.weight",
    "language_model.norm.weight",  # Qwen3-VL, Qwen3.5, Gemma-4
    "norm_f.weight",
    "model.final_layernorm.weight",
    "encoder.final_layernorm.weight",  # ChatGLM
    "model.embedding_norm.weight",  # LFM2
    "language_model.embedding_norm.weight",
    "ln_f.weight",
)
# Other parts with tensors of these names: single layers (MTP layers have an embedding, norm and
# head), other modalities, Qwen-Omni's talker
_ELSEWHERE = re.compile(
    r"(^|\.)(\d+|[^.]*(mtp|vision|visual|image|audio|speech|talker|2wav)[^.]*)\."
)


@dataclass(frozen=True)
class Weights:
    """Which shard of a folder holds which tensor."""

    folder: Path
    shard_of: Mapping[str, str]  # tensor -> file name

    def find(self, ends: Iterable[str]) -> str | None:
        """The tensor whose name ends with the first of ``ends`` that any name ends with, or None.

        Only the language model's own tensors count, no layer's or vision tower's. Of several names
        the shortest is taken.
        """
        names = [name for name in self.shard_of if not _ELSEWHERE.search(name)]
        for end in ends:
            found = [name for name in names if name == end or name.endswith(f".{end}")]
            if found:
                return min(found, key=len)
        return None

    def read(self, names: Iterable[str]) -> "dict[str, torch.Tensor]":
        """The named tensors, in the checkpoint's dtypes.

        Raises:
            ParameterError: a shard is missing or is not a safetensors file.
        """
        from safetensors import SafetensorError, safe_open

        tensors: dict[str, Any] = {}
        opened: dict[str, Any] = {}
        with ExitStack() as stack:
            for name in names:
                shard = self.shard_of[name]
                try:
                    if shard not in opened:
                        opened[shard] = stack.enter_context(safe_open(self.folder / shard, "pt"))
                    tensors[name] = opened[shard].get_tensor(name)
                except (OSError, SafetensorError) as error:
                    raise ParameterError(
                        f"{self.folder / shard} can't be read: {error}",
                        tensor=name,
                        fix="fetch this shard of the model",
                    ) from error
        return tensors


def open_weights(folder: Path) -> Weights:
    """Read which tensors a checkpoint has, and no tensor.

    Raises:
        ParameterError: the folder has no readable safetensors checkpoint.
    """
    from safetensors import SafetensorError, safe_open

    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    try:
        if index.is_file():
            return Weights(folder, json.loads(index.read_text())["weight_map"])
        with safe_open(single, "pt") as file:
            return Weights(folder, dict.fromkeys(file.keys(), single.name))
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise ParameterError(
            f"{folder} holds no readable safetensors checkpoint: {error}",
            fix="give a folder with model.safetensors, or with its index and shards",
        ) from error


def embedding_and_head(folder: Path) -> tuple[str | None, str | None]:
    """The names of the embedding and of the output head; where they are tied, one name twice.

    Raises:
        ParameterError: the folder has no readable safetensors checkpoint.
    """
    weights = open_weights(folder)
    embedding, head = weights.find(EMBEDDING), weights.find(HEAD)
    return embedding, head or (embedding if read_config(folder).tied else None)


def read_head(folder: Path) -> "torch.Tensor":
    """A model's output head, float32 [vocab_size, hidden_size]; nothing else is read.

    Where the config ties them it may be the embedding.

    Raises:
        ParameterError: the checkpoint has none under a known name.
    """
    _, name = embedding_and_head(folder)
    if name is None:
        raise ParameterError(
            f"{folder} has no output head under a known name",
            known=[*HEAD, *EMBEDDING],
            fix="give the folder of a causal language model",
        )
    return open_weights(folder).read([name])[name].float()
