"""Linear attention's kernels, as SGLang's CPU build names them, in plain torch. Prefill only."""

from typing import Any

import torch
from torch.nn import functional

from . import MissingKernel

causal_conv1d_update_cpu = MissingKernel(f"{__name__}.causal_conv1d_update_cpu")  # decoding's


def causal_conv1d_fn_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    conv_states: torch.Tensor,
    has_initial_state: torch.Tensor | None,
    cache_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    activation: str | None = "silu",
    **_: Any,
) -> torch.Tensor:
    """Depthwise causal convolution of sequences that lie one after the other.

    Follows ``causal_conv1d_fn`` of ``sglang/kernels/ops/mamba/causal_conv1d_triton.py``.

    Args:
        x: ``[channels, tokens]``.
        weight: ``[channels, width]``.
        conv_states: ``[slots, channels, width - 1]``, each sequence's last inputs; updated.
        query_start_loc: ``[sequences + 1]``, where each sequence begins.
    """
    width, output = weight.shape[1], torch.empty_like(x)
    for number, slot in enumerate(cache_indices.tolist()):
        start, end = query_start_loc[number : number + 2].tolist()
        before = conv_states[slot].to(x.dtype)
        if has_initial_state is None or not has_initial_state[number]:
            before = torch.zeros_like(before)
        inputs = torch.cat([before, x[:, start:end]], dim=1)
        output[:, start:end] = functional.conv1d(
            inputs[None], weight[:, None], bias, groups=len(weight)
        )[0]
        conv_states[slot] = inputs[:, inputs.shape[1] - (width - 1) :]
    return functional.silu(output) if activation in ("silu", "swish") else output


def fused_gdn_gating_cpu(
    A_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A gated delta net's decay (as a logarithm) and step size, ``[1, tokens, heads]``.

    Follows ``sglang/kernels/ops/attention/linear/fused_gdn_gating.py``.
    """
    decay = -A_log.float().exp() * functional.softplus(a.float() + dt_bias.float())
    return decay[None], b.float().sigmoid()[None]


def chunk_gated_delta_rule_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    initial_state: torch.Tensor,
    initial_state_indices: torch.Tensor,
    cu_seqlens: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None, None]:
    """The gated delta rule, token by token.

    Follows ``torch_recurrent_gated_delta_rule`` of transformers' ``modeling_qwen3_next.py``.

    Args:
        q: ``[1, tokens, key heads, dim]``, as is ``k``; not yet normalised.
        v: ``[1, tokens, value heads, dim]``.
        g: ``[1, tokens, value heads]``, as is ``beta``.
        initial_state: ``[slots, value heads, value dim, key dim]``; updated.
    """
    repeats = v.shape[2] // q.shape[2]
    q, k = (_unit(x[0].float()).repeat_interleave(repeats, dim=1) for x in (q, k))
    q, values, decay, beta = q * q.shape[-1] ** -0.5, v[0].float(), g[0].float().exp(), beta[0]
    output = torch.empty_like(values)
    for number, slot in enumerate(initial_state_indices.tolist()):
        state = initial_state[slot].float()
        for t in range(*cu_seqlens[number : number + 2].tolist()):
            state = state * decay[t][:, None, None]
            missing = values[t] - (state @ k[t][..., None])[..., 0]
            state = state + (missing * beta[t][:, None])[..., None] * k[t][:, None]
            output[t] = (state @ q[t][..., None])[..., 0]
        initial_state[slot] = state.to(initial_state.dtype)
    return output.to(v.dtype)[None], None, None


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
