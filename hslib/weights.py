"""Single tensors out of a checkpoint, read by name from whichever shard holds them.

A model of a terabyte has an embedding, a norm and a head that fit anywhere; nothing else is
read. Format: ``model.safetensors``, or ``model.safetensors.index.json`` with a weight map.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hslib.errors import ParameterError

if TYPE_CHECKING:
    import torch

# the ends of names that families give to one thing, the commonest first
EMBEDDING = ("model.embed_tokens.weight", "embed_tokens.weight", "wte.weight")
HEAD = ("lm_head.weight", "output.weight")
FINAL_NORM = ("model.norm.weight", "norm_f.weight", "model.final_layernorm.weight", "ln_f.weight")


@dataclass(frozen=True)
class Weights:
    """Which shard of a folder holds which tensor."""

    folder: Path
    shard_of: Mapping[str, str]  # tensor -> file name

    def find(self, ends: Iterable[str]) -> str | None:
        """The full name of the first of ``ends`` that a tensor's name ends in, or None.

        Of several the shortest: a wrapper's language model, not its vision tower.
        """
        for end in ends:
            found = [name for name in self.shard_of if name == end or name.endswith(f".{end}")]
            if found:
                return min(found, key=len)
        return None

    def read(self, names: Iterable[str]) -> "dict[str, torch.Tensor]":
        """The named tensors, in the checkpoint's dtypes.

        Raises:
            ParameterError: a shard is not there, or is no safetensors file.
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
    """Read a checkpoint's table of contents, no tensor.

    Raises:
        ParameterError: there are no safetensors in the folder.
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


def embedding_and_head(weights: Weights, tied: bool) -> "tuple[torch.Tensor, torch.Tensor]":
    """The embedding and the output head, each [vocab_size, hidden_size].

    Args:
        tied: the config's ``tie_word_embeddings``; then there may be one tensor for both.

    Raises:
        ParameterError: the checkpoint has none under a known name.
    """
    embedding, head = weights.find(EMBEDDING), weights.find(HEAD)
    if head is None and tied:
        head = embedding
    if embedding is None or head is None:
        raise ParameterError(
            f"{weights.folder} has no {'embedding' if embedding is None else 'output head'} "
            f"under a known name",
            known=[*EMBEDDING, *HEAD],
            fix="give the folder of a causal language model",
        )
    tensors = weights.read({embedding, head})
    return tensors[embedding], tensors[head]
