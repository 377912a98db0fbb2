"""The stand-in kernels against transformers' own layers, or the formula in another form."""

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional

CPU_KERNELS = Path(__file__).parents[2] / "patches" / "cpu_kernels"


class StandIns(NamedTuple):
    plugin: Any
    mamba: Any
    ops: Any


@pytest.fixture(scope="module")
def stand_ins() -> Iterator[StandIns]:
    """Loaded beside ``sgl_kernel``, whose name they have on a server only."""
    _load("stand_ins", CPU_KERNELS / "sgl_kernel" / "__init__.py")
    yield StandIns(
        _load("stand_in_plugin", CPU_KERNELS / "hs_cpu_kernels.py"),
        importlib.import_module("stand_ins.mamba"),
        importlib.import_module("stand_ins.ops"),
    )
    for name in [name for name in sys.modules if name.startswith("stand_in")]:
        del sys.modules[name]


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(3)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def differ(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return not torch.allclose(got, expected, rtol=1e-2, atol=1e-3)


# --- convolution ---


def convolve(stand_ins: StandIns, x: torch.Tensor, cuts: list[int], resumed: bool) -> torch.Tensor:
    """Two sequences in one batch, then the second's rest, which may resume its state."""
    weight, bias = torch.linspace(-1, 1, 24).view(6, 4), torch.linspace(0, 1, 6)
    states = torch.full((3, 6, 3), 9.0)  # what another sequence left there
    first, second, end = cuts
    together = stand_ins.mamba.causal_conv1d_fn_cpu(
        x[:, :second],
        weight,
        bias,
        conv_states=states,
        has_initial_state=torch.tensor([False, False]),
        cache_indices=torch.tensor([2, 0]),
        query_start_loc=torch.tensor([0, first, second]),
    )
    rest = stand_ins.mamba.causal_conv1d_fn_cpu(
        x[:, second:end],
        weight,
        bias,
        conv_states=states,
        has_initial_state=torch.tensor([resumed]),
        cache_indices=torch.tensor([0]),
        query_start_loc=torch.tensor([0, end - second]),
    )
    return torch.cat([together, rest], dim=1)


def convolved(x: torch.Tensor) -> torch.Tensor:
    weight, bias = torch.linspace(-1, 1, 24).view(6, 1, 4), torch.linspace(0, 1, 6)
    padded = functional.pad(x[None], (3, 0))
    return functional.silu(functional.conv1d(padded, weight, bias, groups=6)[0])


def test_a_convolution_neither_sees_its_neighbour_nor_feels_its_chunks(
    stand_ins: StandIns,
) -> None:
    x = torch.randn(6, 20)
    expected = torch.cat([convolved(x[:, :8]), convolved(x[:, 8:])], dim=1)
    assert_close(convolve(stand_ins, x, [8, 10, 20], resumed=True), expected)
    assert differ(convolve(stand_ins, x, [8, 10, 20], resumed=False), expected)


# --- recurrences ---


def delta_inputs() -> dict[str, torch.Tensor]:
    return {
        "q": torch.randn(1, 30, 2, 8),
        "k": torch.randn(1, 30, 2, 8),
        "v": torch.randn(1, 30, 4, 6),
        "g": -torch.rand(1, 30, 4),
        "beta": torch.rand(1, 30, 4),
    }


def delta_rule(stand_ins: StandIns, inputs: dict[str, torch.Tensor], cut: int) -> torch.Tensor:
    states = torch.zeros(2, 4, 6, 8)
    outputs = []
    for tokens in (slice(0, cut), slice(cut, 30)):
        part = {name: x[:, tokens] for name, x in inputs.items()}
        outputs.append(
            stand_ins.mamba.chunk_gated_delta_rule_cpu(
                **part,
                initial_state=states,
                initial_state_indices=torch.tensor([1]),
                cu_seqlens=torch.tensor([0, part["q"].shape[1]]),
            )[0]
        )
    assert not states[0].any()  # another sequence's
    return torch.cat(outputs, dim=1)


def test_the_delta_rule_is_transformers_and_does_not_feel_its_chunks(stand_ins: StandIns) -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next

    inputs = delta_inputs()
    repeated = {name: inputs[name].repeat_interleave(2, dim=2) for name in ("q", "k")}
    expected, _ = modeling_qwen3_next.torch_chunk_gated_delta_rule(
        repeated["q"],
        repeated["k"],
        inputs["v"],
        inputs["g"],
        inputs["beta"],
        use_qk_l2norm_in_kernel=True,
    )
    assert_close(delta_rule(stand_ins, inputs, 13), expected)
    assert differ(delta_rule(stand_ins, {**inputs, "g": inputs["g"] * 2}, 13), expected)


def test_gates_of_the_delta_rule_are_transformers(stand_ins: StandIns) -> None:
    rate, a, b, bias = torch.randn(4), torch.randn(5, 4), torch.randn(5, 4), torch.randn(4)
    decay, beta = stand_ins.ops.fused_gdn_gating_cpu(rate, a, b, bias)
    assert_close(decay[0], -rate.exp() * (1 + (a + bias).exp()).log())
    assert_close(beta[0], 1 / (1 + (-b).exp()))


def test_mambas_scan_is_its_sum_over_all_earlier_tokens(stand_ins: StandIns) -> None:
    tokens, heads, dim, state = 12, 4, 3, 5
    x, dt = torch.randn(1, tokens, heads, dim), torch.randn(1, tokens, heads)
    a, b, c = -torch.rand(heads), torch.randn(1, tokens, 2, state), torch.randn(1, tokens, 2, state)
    skip, bias = torch.randn(heads), torch.randn(heads)
    out, last = torch.empty_like(x), None
    for part in (slice(0, 7), slice(7, tokens)):
        _, last, _ = stand_ins.mamba.mamba_chunk_scan_combined(
            x[:, part],
            dt[:, part],
            a,
            b[:, part],
            c[:, part],
            D=skip,
            dt_bias=bias,
            initial_states=last,
            cu_seqlens=torch.tensor([0, part.stop - part.start]),
            out=out[:, part],
            state_dtype=torch.float32,
        )
    step = functional.softplus(dt[0] + bias)
    reach = (step * a).cumsum(0)
    decay = (reach[:, None] - reach[None]).exp()  # [to, from, heads]
    b, c = (m[0].repeat_interleave(2, dim=1) for m in (b, c))
    weight = torch.einsum("thn,shn->tsh", c, b) * decay * step[None]
    weight = weight * torch.ones(tokens, tokens).tril()[..., None]
    expected = torch.einsum("tsh,shd->thd", weight, x[0]) + skip[:, None] * x[0]
    assert_close(out[0], expected)
    assert differ(out[0], expected - skip[:, None] * x[0])


# --- attention ---


def heads_of(tokens: int) -> list[torch.Tensor]:
    return [torch.randn(1, heads, tokens, 8) for heads in (4, 2, 2)]


def attend(stand_ins: StandIns, qkv: list[torch.Tensor], **kwargs: Any) -> torch.Tensor:
    defaults = {"attn_mask": None, "enable_gqa": True, "scale": 0.3, "is_causal": True}
    result: torch.Tensor = stand_ins.plugin._attention(
        *qkv, **{**defaults, "sinks": None, "cap": 0.0, **kwargs}
    )
    return result


def eager(module: Any, qkv: list[torch.Tensor], layer: Any, **kwargs: Any) -> torch.Tensor:
    tokens = qkv[0].shape[2]
    mask = torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]
    layer.num_key_value_groups, layer.training = 2, False
    output, _ = module.eager_attention_forward(layer, *qkv, mask, scaling=0.3, **kwargs)
    result: torch.Tensor = output.transpose(1, 2)
    return result


def test_attention_with_sinks_is_gpt_oss(stand_ins: StandIns) -> None:
    from transformers.models.gpt_oss import modeling_gpt_oss

    qkv, sinks = heads_of(9), torch.randn(4)
    expected = eager(modeling_gpt_oss, qkv, SimpleNamespace(sinks=sinks))
    assert_close(attend(stand_ins, qkv, sinks=sinks), expected)
    assert differ(attend(stand_ins, qkv), expected)


def test_attention_with_capped_scores_is_gemma_2(stand_ins: StandIns) -> None:
    from transformers.models.gemma2 import modeling_gemma2

    qkv = heads_of(9)
    expected = eager(modeling_gemma2, qkv, SimpleNamespace(), softcap=0.5)
    assert_close(attend(stand_ins, qkv, cap=0.5), expected)
    assert differ(attend(stand_ins, qkv), expected)


def test_attention_with_neither_is_torchs_own_with_a_window_too(stand_ins: StandIns) -> None:
    qkv = heads_of(9)
    window = torch.ones(9, 9, dtype=torch.bool).tril().triu(-3)
    for mask in (None, window):
        how: dict[str, Any] = {"attn_mask": mask, "is_causal": mask is None}
        expected = functional.scaled_dot_product_attention(*qkv, scale=0.3, enable_gqa=True, **how)
        assert_close(attend(stand_ins, qkv, **how), expected)


# --- norms, gates, experts ---


def test_the_gated_norm_is_qwen3_nexts(stand_ins: StandIns) -> None:
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    norm = Qwen3NextRMSNormGated(8, eps=1e-6)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    x, gate = torch.randn(5, 8), torch.randn(5, 8)
    with torch.no_grad():
        expected = norm(x, gate)
        got = stand_ins.plugin._gated_norm(x, gate, norm.weight, None, "silu", eps=1e-6)
    how = {"group_size": None, "norm_before_gate": True, "is_rms_norm": True}
    assert_close(got, expected)
    by_name = {"x": x, "z": gate, "weight": norm.weight, "bias": None, "eps": 1e-6}
    assert_close(stand_ins.plugin._norm_then_gate(**by_name, **how), expected)
    with pytest.raises(NotImplementedError, match="norm_before_gate"):
        stand_ins.plugin._norm_then_gate(**by_name, **{**how, "norm_before_gate": False})


def test_norms_of_heads_are_qwen3_nexts_with_one_plus_weight(stand_ins: StandIns) -> None:
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm

    q_norm, k_norm = Qwen3NextRMSNorm(8), Qwen3NextRMSNorm(8)
    for norm in (q_norm, k_norm):
        torch.nn.init.uniform_(norm.weight, -0.5, 0.5)
    q, gate, k = torch.randn(5, 4, 8), torch.randn(5, 4, 8), torch.randn(5, 2, 8)
    with torch.no_grad():
        got = stand_ins.ops.fused_qk_gemma_rmsnorm_with_gate_cpu(
            torch.cat([q, gate], dim=-1).flatten(1),
            k.flatten(1),
            q_norm.weight,
            k_norm.weight,
            1e-6,
            8,
            4,
        )
        expected = q_norm(q).view(-1, 8), k_norm(k).view(-1, 8), gate.view(-1, 8)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


def test_norms_over_all_heads_are_minimax_m2s(stand_ins: StandIns) -> None:
    from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2RMSNorm

    norms = MiniMaxM2RMSNorm(32, 1e-6), MiniMaxM2RMSNorm(16, 1e-6)
    for norm in norms:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    inputs = torch.randn(5, 32) * 3, torch.randn(5, 16)
    weights = [norm.weight for norm in norms]
    with torch.no_grad():
        sums = stand_ins.plugin._sums_of_squares(*inputs)
        got = stand_ins.plugin._scaled_by_sums(*inputs, *weights, sums, eps=1e-6)
        for norm, x, one in zip(norms, inputs, got, strict=True):
            assert_close(one, norm(x))


def test_a_shared_experts_gate_is_added_or_written(stand_ins: StandIns) -> None:
    hidden, gate, shared, routed = (torch.randn(n) for n in ((5, 8), (8,), (5, 8), (5, 8)))
    gated = torch.sigmoid(functional.linear(hidden, gate[None])) * shared
    added, written = routed.clone(), routed.clone()
    stand_ins.plugin._gate(hidden, gate, shared, added, do_add=True)
    stand_ins.plugin._gate(hidden, gate, shared, written, do_add=False)
    assert_close(added, routed + gated)
    assert_close(written, gated)


def test_qwen3_5s_projections_are_taken_apart_in_their_order(stand_ins: StandIns) -> None:
    q, k, v, z = (torch.randn(5, n * 8) for n in (2, 2, 4, 4))
    b, a = torch.randn(5, 4), torch.randn(5, 4)
    got = stand_ins.ops.fused_qkvzba_split_reshape_cat_contiguous_cpu(
        torch.cat([q, k, v, z], dim=-1), torch.cat([b, a], dim=-1), 2, 4, 8, 8
    )
    for one, other in zip(got, (torch.cat([q, k, v], -1), z.view(5, 4, 8), b, a), strict=True):
        assert torch.equal(one, other)


def test_a_gate_of_heads_multiplies_in_place(stand_ins: StandIns) -> None:
    x, gate = torch.randn(5, 32), torch.randn(5, 4, 8)
    expected = x * torch.sigmoid(gate.view(5, 32))
    stand_ins.ops.fused_sigmoid_mul_cpu(x, gate)
    assert_close(x, expected)


class TopK(NamedTuple):
    topk_weights: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Config:
    apply_router_weight_on_input: bool


@pytest.mark.parametrize("on_input", [True, False])
def test_a_router_weighs_what_experts_read_only_where_it_should(
    stand_ins: StandIns, on_input: bool
) -> None:
    x, weights = torch.randn(5, 8), torch.rand(5, 1)

    def experts(_layer: Any, x: Any, topk: TopK, config: Config) -> torch.Tensor:
        assert not config.apply_router_weight_on_input
        return torch.tanh(x) * topk.topk_weights

    got = stand_ins.plugin._weigh_inputs(experts, None, x, TopK(weights), Config(on_input))
    assert_close(got, torch.tanh(x * weights) if on_input else torch.tanh(x) * weights)


def test_llama_4s_rotation_reaches_the_tensor_that_its_attention_reads(
    stand_ins: StandIns,
) -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rotary_emb = torch.nn.Module()
            self.rotary_emb.forward = lambda _positions, q, k: (q + 1, k + 2)  # type: ignore[method-assign]

    def forward(attention: Any, qk: torch.Tensor) -> torch.Tensor:
        attention.rotary_emb(None, qk[:, :3], qk[:, 3:])  # what it returns is dropped
        return qk

    attention, qk = Attention(), torch.zeros(2, 5)
    rotated = stand_ins.plugin._rotate_in_place(forward, attention, qk)
    assert rotated.tolist() == [[1, 1, 1, 2, 2]] * 2
    assert forward(attention, torch.zeros(2, 5)).tolist() == [[0] * 5] * 2
