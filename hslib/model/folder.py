"""A model's numbers, read from its folder without loading weights."""

from dataclasses import dataclass
from pathlib import Path

import xxhash

from hslib.errors import ParameterError
from hslib.model.config import ModelConfig, read_config
from hslib.model.hub import how_to_fetch, local_folder

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True)
class ModelInfo:
    """The numbers that a job needs of a model.

    ``config_hash``: xxh3-128 of ``config.json``'s bytes. Two checkpoints of one architecture may
    share it.
    """

    path: Path
    architecture: str
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int  # tokens, as the config states
    config_hash: str
    tokenizer_hash: str  # "" when the folder has no tokenizer
    notes: tuple[str, ...] = ()  # where the config says two things: which one was taken


def read_model(path: str | Path) -> ModelInfo:
    """Read a model's config; for a wrapper (Kimi-K2.5, Gemma-3) that of its language model.

    Args:
        path: a folder, or an id of the Hugging Face hub (:func:`hslib.model.hub.local_folder`).

    Raises:
        ParameterError: no folder, no readable config, no weights, or Git LFS pointers.
    """
    folder = local_folder(path)
    found = read_shape(folder)
    _check_weights(folder)
    return found


def read_shape(path: str | Path) -> ModelInfo:
    """The same for a folder without weights, or for a ``config.json`` alone.

    Raises:
        ParameterError: no readable config, or not a causal language model's.
    """
    folder = local_folder(path, "config")
    folder = folder.parent if folder.name == "config.json" else folder
    config = read_config(folder)
    return ModelInfo(
        path=folder,
        architecture=(config.raw.get("architectures") or ["?"])[0],
        model_type=config.model_type,
        num_layers=_number(config, "num_hidden_layers"),
        hidden_size=_number(config, "hidden_size"),
        vocab_size=_number(config, "vocab_size"),
        context_length=int(config.get("max_position_embeddings", 0)),
        config_hash=xxhash.xxh3_128_hexdigest(config.path.read_bytes()),
        tokenizer_hash=tokenizer_digest(folder),
        notes=_notes(config),
    )


def _number(config: ModelConfig, name: str) -> int:
    value = config.get(name)
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ParameterError(
            f"{config.path} lacks a usable {name!r}",
            got=value,
            fix="give a causal language model's folder; where its class is code in the folder and "
            "knows a default, write the value into config.json",
        ) from None


def _notes(config: ModelConfig) -> tuple[str, ...]:
    (taken, count), *others = config.layer_counts().items()
    differing = [f"{name} says {other}" for name, other in others if other != count]
    if not differing:
        return ()
    return (f"{count} layers by {taken}, as SGLang counts; {', '.join(differing)}",)


def _check_weights(folder: Path) -> None:
    files = [f for pattern in _WEIGHTS for f in folder.glob(pattern) if f.is_file()]
    if not files:
        raise ParameterError(
            f"model folder {folder} has no weights",
            fix=how_to_fetch(folder) or "fetch *.safetensors",
        )
    for file in files:
        with file.open("rb") as handle:
            if handle.read(40).startswith(b"version https://git-lfs"):
                raise ParameterError(
                    f"{file} is a Git LFS pointer, not weights", fix="run git lfs pull there"
                )


def tokenizer_digest(folder: Path) -> str:
    """xxh3-128 of the tokenizer's file; "" when the folder has none."""
    found = [folder / name for name in ("tokenizer.json", "tokenizer.model", "tiktoken.model")]
    for file in found:
        if file.is_file():
            return xxhash.xxh3_128_hexdigest(file.read_bytes())
    return ""
