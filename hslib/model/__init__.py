"""A model's folder: its config, layer numbers, weights, final norm, identity; a draft's wishes."""

from hslib.model.config import ModelConfig, read_config, require_folder
from hslib.model.draft import Draft
from hslib.model.draft_layers import DraftLayers, layers_text
from hslib.model.folder import ModelInfo, read_model, read_shape, tokenizer_digest
from hslib.model.hub import how_to_fetch, local_folder, missing_files
from hslib.model.identity import Canary, canary_ids, model_differences, take_canary
from hslib.model.layer_choice import (
    choose_layers,
    draft_layers,
    layers_source,
    names_a_draft,
    read_draft,
)
from hslib.model.layers import dialect_table, from_boundaries, parse_layers, to_boundaries
from hslib.model.norm import ONE_PLUS_WEIGHT, FinalNorm, Side, norm_eps, read_final_norm
from hslib.model.placeholders import placeholder_ids
from hslib.model.weights import Weights, embedding_and_head, open_weights, read_head

__all__ = [
    "Canary",
    "canary_ids",
    "choose_layers",
    "dialect_table",
    "Draft",
    "draft_layers",
    "DraftLayers",
    "embedding_and_head",
    "FinalNorm",
    "from_boundaries",
    "how_to_fetch",
    "layers_source",
    "layers_text",
    "local_folder",
    "missing_files",
    "names_a_draft",
    "model_differences",
    "ModelConfig",
    "ModelInfo",
    "norm_eps",
    "ONE_PLUS_WEIGHT",
    "open_weights",
    "parse_layers",
    "placeholder_ids",
    "read_config",
    "read_draft",
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
