"""SGLang plugin for hosts without CUDA: plain torch where SGLang 0.5.23 has only GPU kernels.

Each stand-in follows the kernel that it replaces, named beside it. Prefill is what they are
for: nothing that only decoding needs is here.
"""

import dataclasses
import functools
import importlib.util
import sys
from typing import Any
from unittest import mock

_MODELS = "sglang.srt.models"
_LAYERS = "sglang.srt.layers"
_OPS = "sglang.kernels.ops"


def register() -> None:
    """Called by SGLang in each process; does nothing where the real kernels are loaded."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return  # a process without a model: resolving the targets would import all of them
    spec = importlib.util.find_spec("sgl_kernel")
    if spec is None or not spec.origin or "cpu_kernels" not in spec.origin:
        return
    from sglang.srt.layers.attention.mamba import mamba as mixer
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # on a CPU SGLang's Mamba mixer leaves these names undefined
    mixer.causal_conv1d_fn = mixer.causal_conv1d_fn_triton = _convolve
    for target, hook in _wrapped().items():
        HookRegistry.register(target, hook, HookType.AROUND)
    for target, hook in _replaced().items():
        HookRegistry.register(target, hook, HookType.REPLACE)


def _wrapped() -> dict[str, Any]:
    attention = f"{_LAYERS}.attention.torch_native_backend.TorchNativeAttnBackend"
    return {
        "torch.get_device_module": _cpu_module,
        f"{attention}.forward_extend": _attend,
        f"{attention}.forward_decode": _attend,
        f"{_LAYERS}.moe.fused_moe_native.moe_forward_native": _weigh_inputs,
        f"{_MODELS}.llama4.Llama4Attention.forward": _rotate_in_place,
    }


def _replaced() -> dict[str, Any]:
    from sgl_kernel.mamba import mamba_chunk_scan_combined

    handlers = f"{_MODELS}.deepseek_common.attention_backend_handler.AttentionBackendRegistry"
    return {
        f"{handlers}.get_handler": _absorbed_mla,
        f"{_OPS}.elementwise.elementwise._launch_fused_gate_sigmoid_mul": _gate,
        f"{_OPS}.attention.fla.fused_norm_gate.rms_norm_gated": _gated_norm,
        f"{_OPS}.attention.fla.layernorm_gated.rms_norm_gated": _norm_then_gate,
        f"{_OPS}.mamba.triton_ops.mamba_chunk_scan_combined": mamba_chunk_scan_combined,
        f"{_LAYERS}.attention.mamba.causal_conv1d.causal_conv1d_fn": _convolve,
        f"{_MODELS}.minimax_m2.rms_sumsq_serial": _sums_of_squares,
        f"{_MODELS}.minimax_m2.rms_apply_serial": _scaled_by_sums,
    }


def _absorbed_mla(_registry: Any, _backend_name: str) -> Any:
    """DeepSeek's attention on ``torch_native``, which has no handler of its own.

    The default one, MHA, reads the latent keys with the wrong width there.
    """
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    return lambda _attention, _forward_batch: AttnForwardMethod.MLA


def _cpu_module(original: Any, device: Any = None) -> Any:
    """The device's module; torch answers CUDA's wherever it is a CUDA build."""
    return original(device or "cpu")


def _attend(original: Any, *args: Any, sinks: Any = None, **kwargs: Any) -> Any:
    """Attention with sinks (gpt-oss) or capped scores (Gemma-2), which ``torch_native`` lacks."""
    from sglang.srt.layers.attention import torch_native_backend

    cap = args[4].logit_cap  # of the layer: (self, q, k, v, layer, ...)
    if sinks is None and not cap:
        return original(*args, **kwargs)
    attention = functools.partial(_attention, sinks=sinks, cap=cap)
    with mock.patch.object(torch_native_backend, "scaled_dot_product_attention", attention):
        return original(*args, **kwargs)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    attn_mask: Any,
    enable_gqa: bool,
    scale: float,
    is_causal: bool,
    sinks: Any,
    cap: float,
) -> Any:
    """``scaled_dot_product_attention``; a sink takes part in a head's softmax, not in its sum.

    Args:
        query: ``[1, heads, tokens, dim]``, as are ``key`` and ``value`` with their own heads.
        sinks: a logit per head, or None.
    """
    import torch

    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = query.float() @ key.float().transpose(-1, -2) * scale
    if cap:
        scores = torch.tanh(scores / cap) * cap
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return (weights @ value.float()).to(query.dtype)


def _weigh_inputs(original: Any, layer: Any, x: Any, topk_output: Any, config: Any) -> Any:
    """Experts whose router weighs what they read (Llama-4); each token has one.

    As SGLang's AMX path does: ``apply_topk_weights_cpu`` of ``layers/moe/topk.py``.
    """
    if config.apply_router_weight_on_input:
        weights = topk_output.topk_weights
        x = x * weights.to(x.dtype)
        topk_output = topk_output._replace(topk_weights=weights.new_ones(weights.shape))
        config = dataclasses.replace(config, apply_router_weight_on_input=False)
    return original(layer, x, topk_output, config)


def _rotate_in_place(original: Any, attention: Any, *args: Any, **kwargs: Any) -> Any:
    """Llama-4's attention, which drops what the rotation returns: GPUs rotate in place."""
    rotate = attention.rotary_emb
    if rotate is None:
        return original(attention, *args, **kwargs)

    def in_place(positions: Any, query: Any, key: Any) -> tuple[Any, Any]:
        for view, rotated in zip((query, key), rotate(positions, query, key), strict=True):
            view.copy_(rotated)
        return query, key

    with mock.patch.dict(attention._modules, rotary_emb=in_place):
        return original(attention, *args, **kwargs)


def _gate(hidden: Any, gate: Any, shared: Any, output: Any, *, do_add: bool) -> None:
    """A shared expert's gate (Qwen2-MoE, Qwen3-Next): ``_fused_gate_sigmoid_mul_add_kernel``."""
    gated = (hidden.float() @ gate.float()).sigmoid()[:, None] * shared.float()
    output.copy_(output.float() + gated if do_add else gated)


def _gated_norm(
    x: Any, gate: Any, weight: Any, bias: Any, activation: str = "swish", *, eps: float, **_: Any
) -> Any:
    """The gated delta net's output norm (Qwen3-Next): ``LayerNormGatedFunction`` with RMSNorm."""
    import torch

    normed = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], eps=eps)
    normed = normed if weight is None else normed * weight.float()
    normed = normed if bias is None else normed + bias.float()
    gate = gate.float()
    scale = gate.sigmoid() if activation == "sigmoid" else torch.nn.functional.silu(gate)
    return (normed * scale).to(x.dtype)


def _norm_then_gate(
    *, x: Any, weight: Any, bias: Any, z: Any, eps: float, activation: str = "swish", **how: Any
) -> Any:
    """The same in Qwen3.5: ``rms_norm_gated`` of ``fla/layernorm_gated.py``."""
    if z is None or how["group_size"] or not (how["norm_before_gate"] and how["is_rms_norm"]):
        raise NotImplementedError(f"no stand-in for a gated norm with {how}")
    return _gated_norm(x, z, weight, bias, activation, eps=eps)


def _convolve(*args: Any, **kwargs: Any) -> Any:
    """The causal convolution of Mamba and LFM2."""
    from sgl_kernel.mamba import causal_conv1d_fn_cpu

    return causal_conv1d_fn_cpu(*args, **kwargs)


def _sums_of_squares(x1: Any, x2: Any) -> Any:
    """MiniMax-M2's norms over all heads, first half: ``[2 * tokens]``, summed over the ranks."""
    import torch

    return torch.cat([x.float().square().sum(-1) for x in (x1, x2)])


def _scaled_by_sums(
    x1: Any, x2: Any, w1: Any, w2: Any, sums: Any, tp_world: int = 1, eps: float = 1e-5
) -> tuple[Any, Any]:
    """The second half: ``rmsnorm_apply_kernel_serial``."""
    halves = zip((x1, x2), (w1, w2), sums.chunk(2), strict=True)
    q, k = (
        (x.float() * (total / (x.shape[-1] * tp_world) + eps).rsqrt()[:, None] * w.float())
        for x, w, total in halves
    )
    return q.to(x1.dtype), k.to(x2.dtype)
