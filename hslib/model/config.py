"""A model's ``config.json`` as SGLang reads it: whichever part, whichever names, class defaults.

A published config states what differs from its class: Gemma-3's ``text_config`` has no
``vocab_size``. What is not stated is asked of transformers' own class of that model type; code
that lies in the folder is never run. The class costs seconds to load, so it is asked last.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hslib.errors import ParameterError

# A wrapper's language model, in SGLang's order (get_hf_text_config); they may be nested
_PARTS = ("thinker_config", "llm_config", "language_config", "text_config")
# Names of classes that transformers may lack (ChatGLM, EXAONE, LongCat, Mamba), by the common one
_OTHER_NAMES = {
    "num_hidden_layers": ("num_layers", "n_layer", "n_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "seq_length", "max_seq_len"),
}


@dataclass(frozen=True, eq=False)
class ModelConfig:
    """One ``config.json``; ``text`` is its language model's part, or all of it.

    What a part states comes first, then its class's value, then what the wrapper states.
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
        """The value in the file itself, under this or another name; None when it has none."""
        names = (name, *_OTHER_NAMES.get(name, ()))
        return next((self.text[n] for n in names if self.text.get(n) is not None), None)

    @property
    def model_type(self) -> str:
        """The language model's, which decides what its norm is."""
        own = self.text.get("model_type")
        # who says nothing of its layers is a wrapper that leaves all of its part to the class
        if not own or self.stated("num_hidden_layers") is None:
            own = getattr(self._of_class, "model_type", own)
        return str(own or self.raw.get("model_type") or "")

    @property
    def tied(self) -> bool:
        """Whether embedding and head are one; a wrapper may state it for its language model."""
        stated = self.raw.get("tie_word_embeddings")
        return bool(self.get("tie_word_embeddings") if stated is None else stated)

    def layer_counts(self) -> dict[str, int]:
        """Every count of layers by who states it, first the one that SGLang goes by.

        SGLang takes ``num_hidden_layers``, and the other names only without it. transformers'
        class may count otherwise: LongCat's layers have two attentions each, and count twice.
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
        """The language model's part as transformers' class has it; None for unknown types."""
        from transformers import CONFIG_MAPPING

        part = next((p for p in (self.text, self.raw) if _type_of(p) in CONFIG_MAPPING), None)
        if part is None:
            return None
        from huggingface_hub.errors import StrictDataclassError

        try:
            found = CONFIG_MAPPING[_type_of(part)].from_dict(dict(part))
            return found.get_text_config(decoder=True)
        except (AttributeError, KeyError, TypeError, ValueError, StrictDataclassError) as error:
            raise ParameterError(
                f"{self.path} is not a config of model type {_type_of(part)}: {error}",
                fix="fetch it again, or write what it leaves out into it",
            ) from error


def read_config(folder: Path) -> ModelConfig:
    """Read a folder's ``config.json``.

    Raises:
        ParameterError: not there, or not a JSON object.
    """
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
    """JSON has no word for infinity; transformers 5 writes ``{"__float__": "Infinity"}``."""
    return float(value["__float__"]) if value.keys() == {"__float__"} else value


def _language_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The innermost part; a name with ``null`` or nothing in it is none."""
    inner = (raw[name] for name in _PARTS if isinstance(raw.get(name), dict) and raw[name])
    part = next(inner, None)
    return raw if part is None else _language_part(part)


def _type_of(part: Mapping[str, Any]) -> str:
    """A part's model type; of a file that states none, that of its model class."""
    if part.get("model_type"):
        return str(part["model_type"])
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    wanted = (part.get("architectures") or [""])[0]
    return next((kind for kind, name in CLASSES.items() if name == wanted), "")
