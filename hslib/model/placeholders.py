"""Ids that stand for images, video or sound, which an encoder's output replaces."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hslib.errors import ParameterError
from hslib.model.config import PARTS, ModelConfig, read_config

_MEDIA = "audio|boa|boi|eoa|eoi|image|img|media|speech|video|vision"
_NAME = re.compile(rf"((?:\w+_)?(?:{_MEDIA})(?:_\w+)?)_token_(?:id|index)|(image_(?:start|end))_id")
_ENCODERS = ("audio_config", "vision_config")  # Phi-4-multimodal states them there


def placeholder_ids(folder: Path) -> dict[int, str]:
    """Each placeholder's id, and its name in ``config.json``; empty for a model of text alone.

    What a wrapper leaves out comes from its class in transformers, unless that refuses the config.
    Code in the folder is never run: ids that only such code knows are not found.

    Raises:
        ParameterError: no readable config.
    """
    config = read_config(folder)
    # by what they stand for: a stated image_token_index goes before the class's image_token_id
    found = {**_named(_of_class(config)), **_named(config.raw)}
    return {value: name for name, value in found.values()}


def _of_class(config: ModelConfig) -> Mapping[str, Any]:
    if config.text is config.raw and not any(name in config.raw for name in _ENCODERS):
        return {}
    try:
        return config.with_defaults()
    except ParameterError:
        return {}


def _named(part: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """``{"image": ("image_token_id", 151655)}`` of a part and of those in it."""
    found: dict[str, tuple[str, int]] = {}
    for name, value in part.items():
        match = _NAME.fullmatch(name)
        if match and type(value) is int and value >= 0:
            found[match[1] or match[2]] = (name, value)
        elif name in (*PARTS, *_ENCODERS) and isinstance(value, Mapping):
            found = {**_named(value), **found}
    return found
