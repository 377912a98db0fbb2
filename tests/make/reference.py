"""transformers' own states, to compare with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

CHUNK = 64  # tokens of a prefill chunk; a 200-token row comes in four forward passes


def reference_states(model_path: Path, input_ids: np.ndarray) -> list[torch.Tensor]:
    """transformers' ``hidden_states`` of one row, float32 [T, H] each, by boundary.

    The last one is the final state, after the norm; :func:`reference_last` is before it.
    """
    states, _ = _run_reference(model_path, input_ids)
    return states


def reference_last(model_path: Path, input_ids: np.ndarray) -> torch.Tensor:
    """The last layer's output before the final norm, float32 [T, H]: boundary n."""
    _, last = _run_reference(model_path, input_ids)
    return last


_INNER = ("model", "transformer", "backbone")


_FINAL_NORMS = ("norm", "norm_f", "ln_f", "final_layernorm", "embedding_norm")


def _run_reference(
    model_path: Path, input_ids: np.ndarray
) -> tuple[list[torch.Tensor], torch.Tensor]:
    model = load_reference(model_path)
    inner = next(
        getattr(model, n) for n in ("model", "transformer", "backbone") if hasattr(model, n)
    )
    inner = getattr(inner, "language_model", inner)
    norm = next(getattr(inner, name) for name in _FINAL_NORMS if hasattr(inner, name))
    entered: list[torch.Tensor] = []
    hook = norm.register_forward_pre_hook(lambda _module, given: entered.append(given[0]))
    try:
        with torch.no_grad():
            ids = torch.from_numpy(input_ids.astype(np.int64))[None]
            states = inner(ids, output_hidden_states=True).hidden_states
    finally:
        hook.remove()
    return [state[0].float() for state in states], entered[-1][0].float()


_references: dict[Path, Any] = {}


def load_reference(model_path: Path) -> Any:
    import transformers

    if model_path not in _references:
        config = transformers.AutoConfig.from_pretrained(model_path)
        is_text = type(config) in transformers.AutoModelForCausalLM._model_mapping
        auto = (
            transformers.AutoModelForCausalLM
            if is_text
            else transformers.AutoModelForImageTextToText
        )
        # transformers' default attention leaves out what a score is capped at (Gemma-2)
        capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
        more = {"attn_implementation": "eager"} if capped else {}
        _references[model_path] = auto.from_pretrained(
            model_path, dtype=torch.bfloat16, **more
        ).eval()
    return _references[model_path]


def relative_errors(states: torch.Tensor, references: Sequence[torch.Tensor]) -> list[float]:
    """``|states - reference| / |reference|`` (Frobenius) against each boundary."""
    found = states.float()
    return [float((found - ref).norm() / ref.norm()) for ref in references]
