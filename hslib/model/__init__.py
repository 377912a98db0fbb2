"""A model's folder: its config, layer numbers, weights, final norm, and identity."""

from hslib.model.config import ModelConfig, read_config, require_folder
from hslib.model.folder import ModelInfo, read_model, read_shape, tokenizer_digest
from hslib.model.hub import how_to_fetch, local_folder, missing_files
from hslib.model.identity import Canary, canary_ids, model_differences, take_canary
from hslib.model.layers import dialect_table, from_boundaries, parse_layers, to_boundaries
from hslib.model.norm import ONE_PLUS_WEIGHT, FinalNorm, Side, norm_eps, read_final_norm
from hslib.model.placeholders import placeholder_ids
from hslib.model.weights import Weights, embedding_and_head, open_weights, read_head

__all__ = [
    "Canary",
    "canary_ids",
    "dialect_table",
    "embedding_and_head",
    "FinalNorm",
    "from_boundaries",
    "how_to_fetch",
    "local_folder",
    "missing_files",
    "model_differences",
    "ModelConfig",
    "ModelInfo",
    "norm_eps",
    "ONE_PLUS_WEIGHT",
    "open_weights",
    "parse_layers",
    "placeholder_ids",
    "read_config",
    "read_final_norm",
    "read_head",
    "read_model",
    "read_shape",
    "require_folder",
    "Side",
    "take_canary",
    "to_boundaries",
    "tokenizer_digest",
    "Weights",
]
