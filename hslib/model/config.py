"""A model's ``config.json`` as SGLang reads it.

A wrapper has its language model's values in a part; families name them differently; and a published
config may leave out its class's defaults (Gemma-3's ``text_config`` has no ``vocab_size``). A value
that is not stated comes from transformers' class for that model type, which takes seconds to load.
Code in the folder is never run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hslib.errors import ParameterError

# Parts that hold a wrapper's language model, in SGLang's order (get_hf_text_config); may be nested
PARTS = ("thinker_config", "llm_config", "language_config", "text_config")
# Other names of a value, in families that transformers may lack (ChatGLM, EXAONE, LongCat, Mamba)
_OTHER_NAMES = {
    "num_hidden_layers": ("num_layers", "n_layer", "n_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "seq_length", "max_seq_len"),
}


@dataclass(frozen=True, eq=False)
class ModelConfig:
    """One ``config.json``; ``text`` is its language model's part, or all of it.

    A value is what the part states, else its class's, else what the wrapper states.
    """

    path: Path
    raw: Mapping[str, Any]
    text: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """A value under its common name, or ``default``.

        Raises:
            ParameterError: transformers' class refuses the config.
        """
        found = self.stated(name)
        if found is None:
            found = getattr(self._of_class, name, None)
        if found is None:
            found = self.raw.get(name)
        return default if found is None else found

    def __getitem__(self, name: str) -> Any:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def stated(self, name: str) -> Any:
        """The value in the language model's part, under any of its names; None if not stated."""
        names = (name, *_OTHER_NAMES.get(name, ()))
        return next((self.text[n] for n in names if self.text.get(n) is not None), None)

    @property
    def model_type(self) -> str:
        """The language model's type, which decides which norm it has."""
        own = self.text.get("model_type")
        # a config without layers is a wrapper's that leaves its whole part to the class
        if not own or self.stated("num_hidden_layers") is None:
            own = getattr(self._of_class, "model_type", own)
        return str(own or self.raw.get("model_type") or "")

    @property
    def tied(self) -> bool:
        """Whether embedding and head are one tensor; a wrapper may state it itself."""
        stated = self.raw.get("tie_word_embeddings")
        return bool(self.get("tie_word_embeddings") if stated is None else stated)

    def layer_counts(self) -> dict[str, int]:
        """Every number of layers and where it stands; first the one that SGLang takes.

        SGLang takes ``num_hidden_layers``, and other names only without it. transformers' class may
        count otherwise: LongCat's layers have two attentions each, and are counted twice.
        """
        names = ("num_hidden_layers", *_OTHER_NAMES["num_hidden_layers"])
        counts = {name: int(self.text[name]) for name in names if self.text.get(name) is not None}
        if "num_hidden_layers" not in counts:
            of_class = getattr(self._of_class, "num_hidden_layers", None)
            if of_class is not None:
                counts["transformers' class"] = int(of_class)
        return counts

    @cached_property
    def _of_class(self) -> Any:
        """The language model's part as transformers' config class; None for unknown types."""
        from transformers import CONFIG_MAPPING

        part = next((p for p in (self.text, self.raw) if _type_of(p) in CONFIG_MAPPING), None)
        return None if part is None else self._as_class(part, language=True)

    def with_defaults(self) -> dict[str, Any]:
        """The whole config with its class's values; empty for unknown types.

        Raises:
            ParameterError: transformers' class refuses the config.
        """
        from transformers import CONFIG_MAPPING

        known = _type_of(self.raw) in CONFIG_MAPPING
        return dict(self._as_class(self.raw, language=False).to_dict()) if known else {}

    def _as_class(self, part: Mapping[str, Any], language: bool) -> Any:
        from huggingface_hub.errors import StrictDataclassError
        from transformers import CONFIG_MAPPING

        try:
            found = CONFIG_MAPPING[_type_of(part)].from_dict(dict(part))
            return found.get_text_config(decoder=True) if language else found
        except (AttributeError, KeyError, TypeError, ValueError, StrictDataclassError) as error:
            raise ParameterError(
                f"{self.path} is not a config of model type {_type_of(part)}: {error}",
                fix="fetch it again, or write what it leaves out into it",
            ) from error


def require_folder(folder: Path) -> None:
    """Raises :class:`ParameterError` where no model's folder is."""
    if not folder.is_dir():
        raise ParameterError(
            f"model folder {folder} is missing",
            fix="give a local folder with config.json, or an id of the hub such as Qwen/Qwen3-8B",
        )


def read_config(folder: Path) -> ModelConfig:
    """Read a folder's ``config.json``.

    Raises:
        ParameterError: folder or file is missing, or the file is not a JSON object.
    """
    require_folder(folder)
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text("utf-8"), object_hook=_with_floats)
    except FileNotFoundError:
        link = " (it is a link, and what it leads to is not there)" if path.is_symlink() else ""
        raise ParameterError(
            f"model folder {folder} has no config.json{link}", fix="give a complete model folder"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ParameterError(f"{path} is not JSON: {error}", fix="fetch it again") from error
    if not isinstance(raw, dict):
        raise ParameterError(f"{path} is not a JSON object", fix="fetch it again")
    return ModelConfig(path, raw, _language_part(raw))


def _with_floats(value: dict[str, Any]) -> Any:
    """transformers 5 writes infinity, which JSON lacks, as ``{"__float__": "Infinity"}``."""
    return float(value["__float__"]) if value.keys() == {"__float__"} else value


def _language_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The innermost part; one that is ``null`` or empty does not count."""
    inner = (raw[name] for name in PARTS if isinstance(raw.get(name), dict) and raw[name])
    part = next(inner, None)
    return raw if part is None else _language_part(part)


def _type_of(part: Mapping[str, Any]) -> str:
    """A part's model type; if it states none, the type of its model class."""
    if part.get("model_type"):
        return str(part["model_type"])
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    wanted = (part.get("architectures") or [""])[0]
    return next((kind for kind, name in CLASSES.items() if name == wanted), "")
