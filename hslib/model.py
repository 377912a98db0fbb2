"""What a model folder says of itself, read from its files without loading weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from hslib.errors import ParameterError

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True)
class ModelInfo:
    """The numbers that a job needs of a model.

    ``config_hash`` is the xxh3-128 of ``config.json``'s bytes: two checkpoints of one shape
    can share it, a changed architecture cannot.
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


def read_model(path: str | Path) -> ModelInfo:
    """Read ``config.json``; a wrapper's ``text_config`` (Kimi-K2.5) is the one that counts.

    Raises:
        ParameterError: no folder, no readable config, no weights, or a pointer in their place.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ParameterError(
            f"model folder {folder} is not there", fix="give a local folder with config.json"
        )
    found = read_shape(folder)
    _check_weights(folder)
    return found


def read_shape(path: str | Path) -> ModelInfo:
    """The same of a folder that may lack weights, or of a ``config.json`` alone.

    Raises:
        ParameterError: no readable config, or not a causal language model's.
    """
    folder = Path(path).parent if Path(path).name == "config.json" else Path(path)
    raw = _read_config(folder)
    config = effective_config(folder)
    try:
        return ModelInfo(
            path=folder,
            architecture=(raw.get("architectures") or ["?"])[0],
            model_type=str(config.get("model_type", "")),
            num_layers=int(config["num_hidden_layers"]),
            hidden_size=int(config["hidden_size"]),
            vocab_size=int(config["vocab_size"]),
            context_length=int(config.get("max_position_embeddings") or 0),
            config_hash=xxhash.xxh3_128_hexdigest((folder / "config.json").read_bytes()),
            tokenizer_hash=_tokenizer_hash(folder),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ParameterError(
            f"{folder / 'config.json'} lacks a usable {error}",
            fix="give a causal language model's folder",
        ) from error


def effective_config(folder: Path) -> dict[str, Any]:
    """``config.json`` with a wrapper's ``text_config`` laid over it.

    Raises:
        ParameterError: not there, or not JSON.
    """
    raw = _read_config(folder)
    return {**raw, **raw.get("text_config", {})}


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ParameterError(
            f"model folder {folder} has no config.json", fix="give a complete model folder"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ParameterError(f"{path} is not JSON: {error}", fix="fetch it again") from error
    return dict(config)


def _check_weights(folder: Path) -> None:
    files = [file for pattern in _WEIGHTS for file in folder.glob(pattern)]
    if not files:
        raise ParameterError(f"model folder {folder} has no weights", fix="fetch *.safetensors")
    for file in files:
        with file.open("rb") as handle:
            if handle.read(40).startswith(b"version https://git-lfs"):
                raise ParameterError(
                    f"{file} is a Git LFS pointer, not weights", fix="run git lfs pull there"
                )


def _tokenizer_hash(folder: Path) -> str:
    found = [folder / name for name in ("tokenizer.json", "tokenizer.model", "tiktoken.model")]
    for file in found:
        if file.is_file():
            return xxhash.xxh3_128_hexdigest(file.read_bytes())
    return ""
