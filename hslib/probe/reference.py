"""The model's own states by boundary, from transformers: what stored states are compared with.

The whole model is loaded, or its first layers alone: then only their tensors are read from disk.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hslib.model import Weights, open_weights, read_model

if TYPE_CHECKING:
    import torch

FINAL = "final"
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_NORMS = ("norm", "final_layernorm", "ln_f", "norm_f", "final_norm")


def column_name(column: "int | str", num_layers: int) -> str:
    """A reference state in words: its boundary, and its side of the last norm."""
    if column == FINAL:
        return "final (after norm)"
    return f"{column} (before norm)" if column == num_layers else str(column)


@dataclass(frozen=True, eq=False)
class Reference:
    """A loaded model, whole or cut after ``num_loaded`` layers."""

    model: Any  # transformers' causal language model, eval, bf16
    num_layers: int  # of the model itself
    num_loaded: int

    @property
    def columns(self) -> tuple[int | str, ...]:
        """Boundaries ``0 .. num_loaded``; of a whole model also ``"final"``, after the norm."""
        known: tuple[int | str, ...] = tuple(range(self.num_loaded + 1))
        return (*known, FINAL) if self.num_loaded == self.num_layers else known

    def states(self, input_ids: "torch.Tensor") -> "torch.Tensor":
        """float32 [columns, T, H] for ids int64 [T], in the order of :attr:`columns`."""
        import torch

        inner = self.model.base_model
        inner = getattr(inner, "language_model", inner)
        norm = next(getattr(inner, name) for name in _NORMS if hasattr(inner, name))
        before: list[torch.Tensor] = []
        handle = norm.register_forward_pre_hook(lambda _module, given: before.append(given[0]))
        try:
            with torch.no_grad():
                out = inner(input_ids[None], output_hidden_states=True, use_cache=False)
        finally:
            handle.remove()
        found = [state[0].float() for state in out.hidden_states[: self.num_loaded]]
        found.append(before[-1][0].float())
        if self.num_loaded == self.num_layers:
            found.append(out.last_hidden_state[0].float())
        return torch.stack(found)


def load_reference(folder: Path, max_layers: int = 0) -> Reference:
    """Load a model for comparison, in bf16 on the CPU.

    Args:
        max_layers: only the first so many layers; 0 = all.

    Raises:
        ParameterError: the folder is no complete causal language model.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    info = read_model(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    text = config.get_text_config()
    count = min(max_layers or info.num_layers, info.num_layers)
    options: dict[str, Any] = {"dtype": "bfloat16", "low_cpu_mem_usage": True}
    if getattr(text, "attn_logit_softcapping", None):
        options["attn_implementation"] = "eager"  # transformers' default leaves the cap out
    if count == info.num_layers:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
        return Reference(model.eval(), info.num_layers, count)
    text.num_hidden_layers = count
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(text, name, None):
            setattr(text, name, getattr(text, name)[:count])
    tensors = _first_layers(open_weights(folder), count)
    kind = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    model = kind.from_pretrained(None, config=config, state_dict=tensors, **options)
    return Reference(model.eval(), info.num_layers, count)


def _first_layers(weights: Weights, count: int) -> "dict[str, torch.Tensor]":
    """All tensors but those of decoder layers from ``count`` on."""
    return weights.read(
        name for name in weights.shard_of if all(int(n) < count for n in _LAYER.findall(name))
    )


def fits(folder: Path, num_layers: int = 0) -> bool:
    """Whether the weights of a model's first layers (0 = all) fit well into free memory."""
    import psutil

    sizes = [file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file()]
    total = read_model(folder).num_layers
    share = (num_layers or total) / total
    return bool(sum(sizes) * share * 1.5 < psutil.virtual_memory().available)
