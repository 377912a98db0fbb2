"""A model's final norm, and how to take a final state back to before it.

``post = pre / sqrt(mean(pre^2) + eps) * gain``. RMSNorm ignores the scale of its input, so the norm
of ``post / gain`` is ``post`` again. A trainer that applies the norm itself gets ``post / gain``:
``pre`` but for the length of each token's vector.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hslib.errors import ExportError
from hslib.model.config import ModelConfig, read_config
from hslib.model.weights import FINAL_NORM, open_weights

if TYPE_CHECKING:
    import torch

Side = Literal["pre", "post"]

# model types whose RMSNorm multiplies by 1 + weight (transformers 5.19's modeling files)
ONE_PLUS_WEIGHT = frozenset(
    {
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "minimax_m3_vl",
        "minimax_m3_vl_text",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_next",
        "recurrent_gemma",
        "step3p5",
        "step3p7",
        "vaultgemma",
    }
)
_EPS_NAMES = ("rms_norm_eps", "norm_eps", "norm_epsilon")
# RMSNorms whose eps has the name that other families' LayerNorms have
_EPS_NAME_OF = {
    "chatglm": "layernorm_epsilon",
    "exaone": "layer_norm_epsilon",
    "falcon_mamba": "layer_norm_epsilon",
    "mamba": "layer_norm_epsilon",
    "mamba2": "layer_norm_epsilon",
    "nemotron_h": "layer_norm_epsilon",
}
_SMALLEST_GAIN = 1e-6  # of the largest; below it a channel's value is lost
_RMS_TOLERANCE = 0.02  # bf16 rounds a value by up to 0.4 %, the mean square by far less


@dataclass(frozen=True, eq=False)
class FinalNorm:
    """An RMSNorm. ``gain``: float32 [H], the weight or 1 + weight, by the family's convention."""

    gain: "torch.Tensor"
    eps: float
    model_type: str

    @cached_property
    def digest(self) -> str:
        """xxh3-128 of gain and eps, which identifies the norm of an export's states."""
        import xxhash

        data = self.gain.numpy().tobytes() + repr(self.eps).encode()
        return xxhash.xxh3_128_hexdigest(data)

    def normed(self, pre: "torch.Tensor") -> "torch.Tensor":
        """The norm of states [..., H]; keeps the dtype."""
        wide = pre.float()
        scale = (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (wide * scale * self.gain).to(pre.dtype)

    def unnormed(self, post: "torch.Tensor") -> "torch.Tensor":
        """The states [..., H] of unit mean square whose norm is ``post``; keeps the dtype.

        Raises:
            ExportError: a gain is nearly zero, so its channel is lost; or another norm made the
                states.
        """
        self.require_invertible()
        wide = post.float() / self.gain
        rms = wide.square().mean(-1).sqrt()
        off = float((rms - 1).abs().median()) if rms.numel() else 0.0
        if not off < _RMS_TOLERANCE:
            raise ExportError(
                "these final states did not come out of this norm: divided by its weight, their "
                "root mean square is not 1",
                expected=1.0,
                got=round(float(rms.median()), 4),
                fix="give the folder of the very checkpoint that the server served",
            )
        return wide.to(post.dtype)

    def require_invertible(self) -> None:
        """Raises :class:`ExportError` with the channels whose gain is nearly zero or not finite."""
        size = self.gain.abs()
        finite = size.isfinite()
        largest = size[finite].max() if finite.any() else 0.0
        bad = (~finite | (size <= _SMALLEST_GAIN * largest)).nonzero().flatten()
        if len(bad):
            raise ExportError(
                f"the final norm's weight is zero or not finite in {len(bad)} of {len(size)} "
                "channels: their values before the norm can't be computed from those after it",
                channels=bad[:8].tolist(),
                fix="export for a trainer that reads the state after the norm (specforge)",
            )


def read_final_norm(folder: Path) -> FinalNorm:
    """Read the final norm of a model folder; no other weight is read.

    Raises:
        ExportError: the model's last norm is not an RMSNorm with a weight alone.
        ParameterError: the folder can't be read.
    """
    config = read_config(folder)
    weights = open_weights(folder)
    name = weights.find(FINAL_NORM)
    eps = norm_eps(config)
    has_bias = name is not None and name.removesuffix("weight") + "bias" in weights.shard_of
    if name is None or eps is None or has_bias:
        why = "it has a bias" if has_bias else f"no {'weight' if name is None else 'rms_norm_eps'}"
        raise ExportError(
            f"the final norm of {folder} is not a known RMSNorm: {why}",
            known=list(FINAL_NORM),
            fix="only an RMSNorm can be undone; export for a trainer that reads states as stored",
        )
    weight = weights.read([name])[name].float()
    gain = weight + 1 if config.model_type in ONE_PLUS_WEIGHT else weight
    return FinalNorm(gain, float(eps), config.model_type)


def norm_eps(config: ModelConfig) -> float | None:
    """The RMSNorms' eps: what the config states, else its class's; None for unknown names."""
    own = _EPS_NAME_OF.get(config.model_type)
    names = (own,) if own else _EPS_NAMES
    found = (read(name) for read in (config.stated, config.get) for name in names)
    return next((value for value in found if value is not None), None)
