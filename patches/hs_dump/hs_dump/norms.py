"""The norms that a layer may read its input through, recomputed in float32.

RMSNorm: ``x / sqrt(mean(x^2) + eps) * gain``. LayerNorm: the same of ``x - mean(x)``, plus a
bias. The gain is the weight ``w`` or ``1 + w``, depending on the model family;
:mod:`hs_dump.proof` finds out which from what the running layer computes.

NumPy and not torch, which would use other threads (see :mod:`hs_dump.numbers`).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "rms_norm_eps", "layer_norm_eps")
_USUAL_EPS = 1e-6


class Norm(NamedTuple):
    """One way to compute a norm module's output."""

    name: str  # of the module, below its layer
    kind: str  # "rms" or "layer"
    form: str  # how the weight is applied: "w", "1 + w" or "no weight"
    eps: float
    gain: np.ndarray | None  # float32 [H]
    bias: np.ndarray | None  # float32 [H]

    def of(self, states: np.ndarray) -> np.ndarray:
        """The norm of float32 ``[S, H]``."""
        centred = states
        if self.kind == "layer":
            centred = states - states.mean(axis=-1, keepdims=True)
        power = np.einsum("sh,sh->s", centred, centred) / centred.shape[-1]
        normed = centred / np.sqrt(power + self.eps)[:, None]
        if self.gain is not None:
            normed *= self.gain
        if self.bias is not None:
            normed += self.bias
        return np.asarray(normed)

    def __str__(self) -> str:
        return f"{self.name} ({'RMSNorm' if self.kind == 'rms' else 'LayerNorm'}, {self.form})"


def norms_within(module: torch.nn.Module, hidden_size: int) -> dict[str, torch.nn.Module]:
    """The norms of width ``hidden_size`` inside a module, by name, in its own order."""
    return {n: m for n, m in module.named_modules() if n and is_norm(m, hidden_size)}


def is_norm(module: torch.nn.Module, hidden_size: int) -> bool:
    """Whether a module is a norm: a leaf with vectors of the model's width, or named so."""
    if next(module.children(), None) is not None:
        return False
    parameters = list(module.parameters(recurse=False))
    if not parameters:  # without a weight, or with one that is not a parameter
        weight = getattr(module, "weight", None)
        fits = not isinstance(weight, torch.Tensor) or weight.numel() == hidden_size
        return fits and "norm" in type(module).__name__.lower()
    return all(p.ndim == 1 and p.numel() == hidden_size for p in parameters)


def variants(name: str, module: torch.nn.Module) -> Iterator[Norm]:
    """Every formula that a norm module may compute, the commonest first."""
    weight, bias = _vector(module, "weight"), _vector(module, "bias")
    eps = float(next((getattr(module, e) for e in _EPS_NAMES if hasattr(module, e)), _USUAL_EPS))
    gains: list[tuple[str, Any]] = [("no weight", None)]
    if weight is not None:
        gains = [("w", weight), ("1 + w", weight + 1)]
    for kind in ("rms", "layer"):
        for form, gain in gains:
            yield Norm(name, kind, form, eps, gain, bias)


def _vector(module: torch.nn.Module, name: str) -> np.ndarray | None:
    found = getattr(module, name, None)
    if not isinstance(found, torch.Tensor) or found.ndim != 1:
        return None
    return found.detach().float().cpu().numpy()
