"""Convolutions and recurrences of linear-attention layers in plain torch, for prefill.

The names ending in ``_cpu`` are those that SGLang imports from ``sgl_kernel`` on a CPU.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from . import MissingKernel

causal_conv1d_update_cpu = MissingKernel(f"{__name__}.causal_conv1d_update_cpu")  # decoding's


def causal_conv1d_fn_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
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
    for number, slot, tokens in _sequences(cache_indices, query_start_loc):
        before = conv_states[slot].to(x.dtype)
        if has_initial_state is None or not has_initial_state[number]:
            before = torch.zeros_like(before)
        inputs = torch.cat([before, x[:, tokens]], dim=1)
        output[:, tokens] = functional.conv1d(
            inputs[None], weight[:, None], bias, groups=len(weight)
        )[0]
        conv_states[slot] = inputs[:, inputs.shape[1] - (width - 1) :]
    return functional.silu(output) if activation in ("silu", "swish") else output


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
        g: ``[1, tokens, value heads]``, the decay's logarithm; ``beta`` is shaped as it is.
        initial_state: ``[slots, value heads, value dim, key dim]``; updated.
    """
    repeats = v.shape[2] // q.shape[2]
    q, k = (_unit(x[0].float()).repeat_interleave(repeats, dim=1) for x in (q, k))
    q, values, decay, beta = q * q.shape[-1] ** -0.5, v[0].float(), g[0].float().exp(), beta[0]
    output = torch.empty_like(values)
    for _number, slot, tokens in _sequences(initial_state_indices, cu_seqlens):
        state = initial_state[slot].float()
        for t in range(tokens.start, tokens.stop):
            state = state * decay[t][:, None, None]
            missing = values[t] - (state @ k[t][..., None])[..., 0]
            state = state + (missing * beta[t][:, None])[..., None] * k[t][:, None]
            output[t] = (state @ q[t][..., None])[..., 0]
        initial_state[slot] = state.to(initial_state.dtype)
    return output.to(v.dtype)[None], None, None


def mamba_chunk_scan_combined(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    *,
    D: torch.Tensor,  # noqa: N803 - SGLang passes it by this name
    dt_bias: torch.Tensor,
    initial_states: torch.Tensor | None,
    cu_seqlens: torch.Tensor,
    out: torch.Tensor,
    state_dtype: torch.dtype,
    **_: Any,
) -> tuple[None, torch.Tensor, None]:
    """Mamba-2's recurrence, token by token, into ``out``; returns each sequence's last state.

    Follows ``sglang/kernels/ops/mamba/triton_ops/ssd_combined.py``.

    Args:
        x: ``[1, tokens, heads, dim]``, as is ``out``.
        dt: ``[1, tokens, heads]``, before bias and softplus.
        a: ``[heads]``, negative.
        b: ``[1, tokens, groups, state]``, as is ``c``.
        initial_states: ``[sequences, heads, dim, state]``, or None for zeros; so is the result.
    """
    heads, dim = x.shape[2:]
    step = functional.softplus(dt[0].float() + dt_bias.float())
    decay = (step * a.float()).exp()
    b, c = (m[0].float().repeat_interleave(heads // m.shape[2], dim=1) for m in (b, c))
    update = (step[..., None] * x[0].float())[..., None] * b[:, :, None]
    last = []
    for number, _slot, tokens in _sequences(cu_seqlens[1:], cu_seqlens):
        state = x.new_zeros(heads, dim, b.shape[-1], dtype=torch.float32)
        if initial_states is not None:
            state = initial_states[number].float()
        for t in range(tokens.start, tokens.stop):
            state = state * decay[t][:, None, None] + update[t]
            y = (state @ c[t][..., None])[..., 0] + D.float()[:, None] * x[0, t].float()
            out[0, t] = y.to(out.dtype)
        last.append(state.to(state_dtype))
    return None, torch.stack(last), None


def _sequences(slots: torch.Tensor, starts: torch.Tensor) -> Iterator[tuple[int, int, slice]]:
    """Each sequence's number, slot and tokens."""
    bounds = starts.tolist()
    for number, slot in enumerate(slots.tolist()):
        yield number, slot, slice(bounds[number], bounds[number + 1])


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
