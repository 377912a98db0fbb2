"""Who is believed: a state is what its layer read, or it is refused. Values, no model."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hs_dump.head import Head
from hs_dump.norms import Norm, is_norm, norms_within, variants
from hs_dump.proof import (
    TOLERANCE,
    TOLERANCE_QUANTISED,
    Choice,
    FinalChoice,
    Proof,
    Read,
    Refusal,
    choose,
    choose_final,
    choose_last,
    token_errors,
)
from hs_dump.witness import Check, Testimony, dequantised, pick_rows

from hslib.server import plugin_info

TOKENS, HIDDEN = 12, 64
RNG = np.random.default_rng(0)


def bf16(values: np.ndarray) -> np.ndarray:
    """As a model in bfloat16 would hold them."""
    return torch.from_numpy(np.asarray(values, np.float32)).bfloat16().float().numpy()


def states(seed: int = 0) -> np.ndarray:
    return bf16(np.random.default_rng(seed).normal(0, 3, (TOKENS, HIDDEN)))


def norm(kind: str = "rms", form: str = "w", with_bias: bool = False, name: str = "n") -> Norm:
    rng = np.random.default_rng(9)
    gain = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
    bias = rng.normal(0, 0.5, HIDDEN).astype(np.float32) if with_bias else None
    return Norm(name, kind, form, 1e-6, gain, bias)


class Module(torch.nn.Module):
    """A norm as a server holds it: only its weights are looked at."""

    def __init__(self, weight: np.ndarray | None, bias: np.ndarray | None = None) -> None:
        super().__init__()
        if weight is not None:
            self.weight = torch.nn.Parameter(torch.from_numpy(weight))
        if bias is not None:
            self.bias = torch.nn.Parameter(torch.from_numpy(bias))
        self.variance_epsilon = 1e-6


# --- layers -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("form", ["w", "1 + w"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_kind_of_norm_is_found_by_what_the_layer_reads(
    kind: str, form: str, with_bias: bool
) -> None:
    true = norm(kind, form, with_bias)
    assert true.gain is not None
    weight = true.gain - 1 if form == "1 + w" else true.gain
    found = choose(
        {"sum": states()},
        [Read("attn", bf16(true.of(states())))],
        list(variants("n", Module(weight, true.bias))),
    )
    assert isinstance(found, Choice)
    assert (found.norm.kind, found.norm.form) == (kind, form)
    assert found.error < 0.005


@pytest.mark.parametrize("factor", [0.01, 1.0, 300.0])
def test_the_right_seam_is_taken_whatever_the_scale_of_the_stream(factor: float) -> None:
    right, wrong = bf16(states() * factor), bf16(states(1) * factor)
    read = Read("attn", bf16(norm().of(right)))
    found = choose({"stage": wrong, "sum": right, "hidden": bf16(right - wrong)}, [read], [norm()])
    assert isinstance(found, Choice)
    assert found.seam == "sum"
    assert found.errors["stage"] > 10 * TOLERANCE


def test_the_preferred_seam_is_taken_when_several_are_right() -> None:
    read = Read("attn", bf16(norm().of(states())))
    found = choose({"hidden": states(), "stage": states()}, [read], [norm()])
    assert isinstance(found, Choice)
    assert found.seam == "stage"


@pytest.mark.parametrize(
    "planted",
    [
        lambda _right: states(1),  # another layer's
        lambda right: np.roll(right, 1, axis=0),  # a neighbour's rows
        lambda right: np.where(np.arange(TOKENS)[:, None] == 7, states(1), right),  # one token
        lambda right: right + 0.3 * states(1),  # without a part of the residual
        lambda right: np.where(np.arange(HIDDEN) == 3, np.nan, right),
    ],
)
def test_a_wrong_state_is_refused_with_its_error(planted: Any) -> None:
    read = Read("attn", bf16(norm().of(states())))
    found = choose({"sum": bf16(planted(states()))}, [read], [norm()])
    assert isinstance(found, Refusal)
    assert found.errors["sum"] > TOLERANCE
    assert "against what attn read" in found.reason


def test_the_norm_after_the_attention_proves_nothing() -> None:
    """The stream after the attention is what the MLP's norm reads, and not what entered."""
    entered, after = states(), bf16(states() + states(1))
    first, second = norm(name="first"), norm(form="w", name="second")
    reads = [Read("attn", bf16(first.of(entered))), Read("mlp", bf16(second.of(after)))]
    found = choose({"sum": entered}, reads, [first, second])
    assert isinstance(found, Choice)
    assert found.reader == "attn"
    assert isinstance(choose({"sum": bf16(entered * 1.2 + states(2))}, reads, [first]), Refusal)


def test_a_layer_without_an_input_norm_is_refused_and_says_so() -> None:
    """OLMo-2 norms after its attention: a wrong state would be read as it is, too."""
    found = choose({"hidden": states()}, [Read("attn", states())], [norm()])
    assert isinstance(found, Refusal)
    assert "no input norm" in found.reason


@pytest.mark.parametrize(
    ("candidates", "reads", "norms", "said"),
    [
        ({}, [Read("attn", states())], [norm()], "several residual streams"),
        ({"sum": states()}, [Read("attn", states())], [], "no norm"),
        ({"sum": states()}, [], [norm()], "no module"),
    ],
)
def test_what_cannot_be_witnessed_says_why(
    candidates: Any, reads: Any, norms: Any, said: str
) -> None:
    found = choose(candidates, reads, norms)
    assert isinstance(found, Refusal)
    assert said in found.reason


@pytest.mark.parametrize("groups", [1, 4])
def test_a_quantised_reading_witnesses_within_its_own_tolerance(groups: int) -> None:
    normed = torch.from_numpy(norm().of(states())).reshape(TOKENS, groups, -1)
    scale = normed.abs().amax(-1, keepdim=True) / 448
    codes = (normed / scale).to(torch.float8_e4m3fn).reshape(TOKENS, HIDDEN)
    read = Read("attn", dequantised(codes, scale.reshape(TOKENS, groups)), quantised=True)
    found = choose({"sum": states()}, [read], [norm()])
    assert isinstance(found, Choice)
    assert TOLERANCE < found.error < found.tolerance == TOLERANCE_QUANTISED
    assert isinstance(choose({"sum": states(1)}, [read], [norm()]), Refusal)


def test_norms_are_found_by_structure() -> None:
    layer = torch.nn.Module()
    layer.input_layernorm = Module(np.ones(HIDDEN, np.float32))
    layer.attn = torch.nn.Module()
    layer.attn.proj = torch.nn.Linear(HIDDEN, HIDDEN)
    layer.attn.q_norm = Module(np.ones(HIDDEN // 4, np.float32))
    assert list(norms_within(layer, HIDDEN)) == ["input_layernorm"]
    assert not is_norm(torch.nn.Linear(HIDDEN, HIDDEN, bias=False), HIDDEN)
    assert is_norm(torch.nn.LayerNorm(HIDDEN, elementwise_affine=False), HIDDEN)


# --- the last two states ------------------------------------------------------------------

WEIGHT = np.random.default_rng(5).normal(0, 0.1, (32, HIDDEN)).astype(np.float32)


def head(scale: float = 1.0, softcap: float = 0.0) -> Head:
    return Head(torch.arange(32), WEIGHT, None, scale, softcap)


def final(
    stored: np.ndarray | None = None, scale: float = 1.0, softcap: float = 0.0, **changes: Any
) -> FinalChoice:
    """The end of a model whose last stream is ``states()``; ``stored`` is what was captured."""
    output = bf16(norm().of(states()))
    stored = output if stored is None else stored
    logits = bf16(head(0.25, softcap).logits(output * scale)), list(range(TOKENS))
    given: dict[str, Any] = {
        "outputs": {"norm": stored},
        "entrances": {"norm": states()},
        "read": bf16(stored * scale),
        "norms": {"norm": [norm()]},
        "head": head(0.25, softcap),
        "logits": logits,
    }
    return choose_final(**{**given, **changes})


@pytest.mark.parametrize("scale", [1.0, 0.125])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_the_final_state_is_witnessed_by_its_norm_and_by_the_logits(
    scale: float, softcap: float
) -> None:
    found = final(scale=scale, softcap=softcap)
    assert found.reason == ""
    assert found.norm_name == "norm"
    assert found.scale == pytest.approx(scale, rel=0.01)
    assert max(found.errors.values()) < 0.006
    assert set(found.errors) == {"norm", "head"}
    last = choose_last(found)
    assert isinstance(last, Choice)
    assert last.seam == "sum"


def test_a_final_state_before_the_norm_is_refused_by_the_head() -> None:
    found = final(stored=states())
    assert "norm" in found.reason
    assert found.errors["head"] > TOLERANCE
    assert Proof(True, found).unwitnessed()["final"] == found.reason


def test_another_rows_final_states_are_refused_by_the_head() -> None:
    found = final(stored=np.roll(bf16(norm().of(states())), 1, axis=0))
    assert found.errors["head"] > TOLERANCE
    assert found.reason


def test_without_a_head_to_ask_the_norm_alone_speaks() -> None:
    found = final(head="the head's weight is torch.int8")
    assert found.reason == ""
    assert set(found.errors) == {"norm"}


def test_with_neither_norm_nor_head_the_final_state_is_refused() -> None:
    found = final(outputs={}, entrances={}, head="the head's weight is torch.int8")
    assert "int8" in found.reason
    assert isinstance(choose_last(found), Refusal)


# --- every pass ---------------------------------------------------------------------------


def test_the_first_the_last_and_drawn_tokens_are_witnessed() -> None:
    draw = random.Random(0)
    for count in (1, 2, 3, 4):
        assert pick_rows(10, count, 4, draw) == list(range(10, 10 + count))
    picked = [pick_rows(10, 500, 4, draw) for _ in range(50)]
    assert all(len(rows) == len(set(rows)) == 4 for rows in picked)
    assert all((rows[0], rows[-1]) == (10, 509) and rows == sorted(rows) for rows in picked)
    assert len({row for rows in picked for row in rows}) > 80, "they are drawn anew each time"
    assert pick_rows(3, 9, 0, draw) == list(range(3, 12)), "the canary's are all"


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).bfloat16()


def test_the_errors_are_those_of_the_tokens_that_are_wrong() -> None:
    reading = tensor(norm().of(states()))
    stored = states()
    stored[5] = states(1)[5]
    checks = (Check(0, norm(), reading), Check(1, None, tensor(states())))
    errors = Testimony(checks, 3).errors([stored, states(), states()])
    assert (errors[:, 0] > TOLERANCE).nonzero()[0].tolist() == [5]
    assert errors[:, 1].max() == 0
    assert np.isnan(errors[:, 2]).all(), "nothing speaks for the third"


def test_a_reading_that_is_missing_is_no_witness() -> None:
    errors = Testimony((Check(0, norm(), None),), 1).errors([states()])
    assert np.isinf(errors).all()


def test_the_logits_speak_for_the_rows_that_they_are_of() -> None:
    stored = bf16(norm().of(states()))
    said = head().logits(stored[[3, 11]])
    check = Check(0, head(), torch.from_numpy(said), rows=[3, 11])
    errors = Testimony((check,), 1).errors([stored])
    assert errors[[3, 11], 0].max() < 1e-5
    assert np.isnan(np.delete(errors[:, 0], [3, 11])).all()
    stored[11] = stored[3]
    assert Testimony((check,), 1).errors([stored])[11, 0] > TOLERANCE


def test_an_error_that_is_no_number_is_the_largest() -> None:
    broken = states()
    broken[2, 1] = np.nan
    errors = token_errors(broken, states())
    assert np.isinf(errors[2])
    assert errors[[0, 1, 3]].max() == 0


def test_the_job_has_the_same_tolerance() -> None:
    """The plugin imports nothing of the kit, so the number stands twice."""
    assert plugin_info.TOLERANCE == TOLERANCE
