"""What SGLang's modules read from ``torch.ops.sgl_kernel`` while they load on a CPU.

Only those: of others SGLang asks whether they exist, and has a way without them.
"""

import torch
from torch.nn import functional

from . import MissingKernel

_DECODING = "fused_sigmoid_gating_delta_rule_update_cpu"


def install() -> None:
    setattr(torch.ops.sgl_kernel, _DECODING, MissingKernel(f"torch.ops.sgl_kernel.{_DECODING}"))
    for op in (
        fused_gdn_gating_cpu,
        fused_qk_gemma_rmsnorm_cpu,
        fused_qk_gemma_rmsnorm_with_gate_cpu,
        fused_qkvzba_split_reshape_cat_contiguous_cpu,
        fused_sigmoid_mul_cpu,
    ):
        setattr(torch.ops.sgl_kernel, op.__name__, op)


def fused_gdn_gating_cpu(
    log_rate: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A gated delta net's decay (its logarithm) and step size, ``[1, tokens, heads]`` each.

    Follows ``sglang/kernels/ops/attention/linear/fused_gdn_gating.py``.
    """
    decay = -log_rate.float().exp() * functional.softplus(a.float() + dt_bias.float())
    return decay[None], b.float().sigmoid()[None]


def fused_qk_gemma_rmsnorm_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm with ``1 + w`` of each head; ``[tokens * heads, head_dim]`` each."""
    return _norm_heads(q, q_weight, eps, head_dim), _norm_heads(k, k_weight, eps, head_dim)


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    head_dim: int,
    num_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of a query that has each head's gate behind it; the gate comes back as it is."""
    q, gate = q_gate.reshape(-1, num_heads, 2 * head_dim).chunk(2, dim=-1)
    normed = fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, eps, head_dim)
    return *normed, gate.contiguous().reshape(-1, head_dim)


def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    qkvz: torch.Tensor, ba: torch.Tensor, k_heads: int, v_heads: int, k_dim: int, v_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Qwen3.5's linear attention: its projections taken apart, ``(qkv, z, b, a)``.

    Follows ``sglang/kernels/ops/attention/triton_gdn_fused_proj.py``.
    """
    qkv, z = qkvz.split([2 * k_heads * k_dim + v_heads * v_dim, v_heads * v_dim], dim=-1)
    b, a = ba.chunk(2, dim=-1)
    return qkv.contiguous(), z.reshape(-1, v_heads, v_dim), b.contiguous(), a.contiguous()


def fused_sigmoid_mul_cpu(x: torch.Tensor, gate: torch.Tensor) -> None:
    """Multiply ``x`` by ``sigmoid(gate)`` in place."""
    x.copy_(x.float() * gate.float().reshape(x.shape).sigmoid())


def _norm_heads(x: torch.Tensor, weight: torch.Tensor, eps: float, head_dim: int) -> torch.Tensor:
    heads = x.reshape(-1, head_dim)
    return functional.rms_norm(heads.float(), (head_dim,), 1 + weight.float(), eps).to(x.dtype)
