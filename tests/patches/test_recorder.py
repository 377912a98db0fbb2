"""The hooks in small torch models: what they take, what they see, and when they are silent."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hs_dump import recorder as recorder_module
from hs_dump.proof import FINAL, TOLERANCE, Choice, Refusal
from hs_dump.recorder import Recorder
from hs_dump.stack import CaptureError, Stack, find_stack, parse_boundaries
from hs_dump.witness import pick_rows

HIDDEN, VOCAB, NUM_LAYERS, TOKENS = 64, 96, 4, 10


class Norm(torch.nn.Module):
    """RMSNorm that adds a residual in place, as SGLang's fused one does."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        weight = torch.rand(HIDDEN, generator=torch.Generator().manual_seed(seed)) + 0.5
        self.weight, self.variance_epsilon = torch.nn.Parameter(weight.bfloat16()), 1e-6

    def forward(self, *args: Any) -> Any:
        x, residual = (*args, None)[:2]
        if residual is not None:
            residual += x
            x = residual
        wide = x.float()
        scale = (wide.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
        normed = (wide * scale * self.weight.float()).bfloat16()
        return normed if residual is None else (normed, residual)


class Mixer(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(
            torch.randn(HIDDEN, HIDDEN, generator=generator).bfloat16()
        )

    def forward(self, _positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        return (hidden_states @ self.weight) / 4


class Layer(torch.nn.Module):
    """Pre-norm, the residual beside; its mixer is called as ``mixer.forward``, as Nemotron-H's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.input_norm, self.mixer = Norm(seed), Mixer(seed + 100)
        self.post_norm, self.mlp = Norm(seed + 200), Mixer(seed + 300)

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual = hidden_states.clone()
            hidden_states = self.input_norm(hidden_states)
        else:
            hidden_states, residual = self.input_norm(hidden_states, residual)
        hidden_states = self.mixer.forward(positions, hidden_states)
        hidden_states, residual = self.post_norm(hidden_states, residual)
        return self.mlp(positions, hidden_states), residual


class Processor(torch.nn.Module):
    def forward(self, _ids: Any, hidden_states: Any, lm_head: Any, _batch: Any) -> Any:
        return hidden_states @ lm_head.weight.T


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = torch.randn(VOCAB, HIDDEN, generator=generator).bfloat16()
        self.layers = torch.nn.ModuleList(Layer(seed) for seed in range(NUM_LAYERS))
        self.norm, self.logits_processor = Norm(77), Processor()
        self.lm_head = SimpleNamespace(weight=self.table)

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits, and the true states: of each boundary from 0 on, then final."""
        hidden, residual, true = self.table[input_ids].clone(), None, []
        positions = torch.arange(len(input_ids))
        for layer in self.layers:
            true.append(hidden if residual is None else hidden + residual)
            hidden, residual = layer(positions, hidden, residual)
        true.append(hidden + residual)
        hidden, _ = self.norm(hidden, residual)
        true.append(hidden.clone())
        return self.logits_processor(input_ids, hidden, self.lm_head, None), true


@pytest.fixture(autouse=True)
def _without_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages are SGLang's; real servers show them."""
    monkeypatch.setattr(recorder_module, "stage_of", lambda _layer: None)


@pytest.fixture
def model() -> Model:
    return Model().requires_grad_(False)


def stack_of(model: Model) -> Stack:
    return Stack("layers", list(model.layers), {"norm": model.norm}, [model.logits_processor])


def record(model: Model, *boundaries: int, stores_final: bool = True, seam: str = "") -> Recorder:
    sizes = (HIDDEN, VOCAB)
    return Recorder(stack_of(model), boundaries, stores_final, sizes, forced_seam=seam)


def ids(seed: int = 0, count: int = TOKENS) -> torch.Tensor:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


def first_pass(recorder: Recorder, model: Model) -> list[torch.Tensor]:
    recorder.seen.begin(TOKENS, torch.arange(TOKENS))
    logits, true = model(ids())
    recorder.prove(logits, list(range(TOKENS)), None)
    return true


def errors(recorder: Recorder, model: Model, picked: list[int], seed: int = 1) -> Any:
    """A later pass: (states taken, true states, witness errors [S, L])."""
    recorder.seen.begin(TOKENS, torch.tensor(picked))
    logits, true = model(ids(seed))
    last = [number for number, row in enumerate(picked) if row == TOKENS - 1]
    states = recorder.states()
    found = recorder.testimony(logits[[TOKENS - 1]] if last else None, last)
    rows = [state[picked].float().numpy() for state in states]
    return states, true, found.errors(rows)


def test_states_are_those_that_enter_the_layers_also_when_they_are_overwritten(
    model: Model,
) -> None:
    recorder = record(model, 1, 3, 4)
    true = first_pass(recorder, model)
    assert recorder.proof is not None
    assert recorder.proof.unwitnessed() == {}
    assert [c.seam for c in recorder.proof.layers.values()] == ["sum", "sum", "sum"]  # type: ignore[union-attr]
    assert recorder.proof.layers[1].reader == "mixer"  # type: ignore[union-attr]
    for place, state in zip((1, 3, 4, 5), recorder.states(), strict=True):
        assert torch.equal(state, true[place]), f"boundary {place}"
    states, true, found = errors(recorder, model, [0, 4, 7, 9])
    for place, state in zip((1, 3, 4, 5), states, strict=True):
        assert torch.equal(state, true[place]), f"boundary {place}, in a later pass"
    assert found.shape == (4, 4)
    assert found.max() < TOLERANCE / 2


def test_nothing_is_kept_of_passes_that_are_not_dumped(model: Model) -> None:
    recorder = record(model, 2)
    model(ids())
    assert recorder.seen.states == recorder.seen.reads == {}
    first_pass(recorder, model)
    recorder.seen.clear()
    model(ids())
    assert recorder.seen.states == recorder.seen.reads == {}


def test_only_what_is_needed_stays_hooked(model: Model) -> None:
    recorder = record(model, 2)
    assert all("forward" in vars(m) for m in (model.layers[2].mlp, model.layers[2].mixer))
    first_pass(recorder, model)
    hooked = [n for n, m in model.named_modules() if "forward" in vars(m)]
    assert hooked == ["layers.2", "layers.2.mixer", "norm", "logits_processor"]


def test_final_alone_and_layers_alone(model: Model) -> None:
    recorder = record(model)
    true = first_pass(recorder, model)
    (state,) = recorder.states()
    assert torch.equal(state, true[-1])
    assert errors(recorder, model, [0, 9])[2].max() < TOLERANCE / 2
    other = Model().requires_grad_(False)
    recorder = record(other, 1, 4, stores_final=False)
    true = first_pass(recorder, other)
    assert recorder.places == (1, 4)
    assert [torch.equal(s, true[b]) for s, b in zip(recorder.states(), (1, 4), strict=True)] == [
        True,
        True,
    ]
    assert errors(recorder, other, [0, 9])[2].max() < TOLERANCE / 2


def test_hidden_without_residual_is_refused_with_both_errors(model: Model) -> None:
    recorder = record(model, 2, seam="hidden")
    first_pass(recorder, model)
    assert recorder.proof is not None
    refusal = recorder.proof.layers[2]
    assert isinstance(refusal, Refusal)
    assert refusal.errors["hidden"] > 10 * TOLERANCE
    assert "hidden" in recorder.proof.unwitnessed()["boundary 2"]


def test_a_layer_off_by_one_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the hooks: boundary 2 takes what enters layer 1, and layer 2 is asked."""
    right = Recorder._entrance
    recorder = record(model)
    recorder.boundaries = (2,)
    recorder._hooks.before(model.layers[1], right(recorder, 2, ("sum", "hidden")))
    recorder._hooks.before(model.layers[2].mixer, recorder._reading(2, "mixer"))
    monkeypatch.setattr(Recorder, "_entrance", right)
    first_pass(recorder, model)
    assert recorder.proof is not None
    assert isinstance(recorder.proof.layers[2], Refusal)


@pytest.mark.parametrize(
    ("plant", "wrong"),
    [
        (lambda states: states[0].copy_(states[0].roll(1, 0)), [0]),  # a neighbour's rows
        (lambda states: states[0].mul_(0).add_(1), [0]),  # a buffer used again
        # another boundary's: the final state is then not this stream's norm either
        (lambda states: states[1].copy_(states[0]), [1, 2]),
        (lambda states: states[2].copy_(states[1]), [2]),  # final before the norm
    ],
)
def test_what_goes_wrong_later_shows_in_the_witness(
    model: Model, plant: Any, wrong: list[int]
) -> None:
    recorder = record(model, 1, 4)
    first_pass(recorder, model)
    picked = [0, 3, 9]
    recorder.seen.begin(TOKENS, torch.tensor(picked))
    logits, _ = model(ids(2))
    states = recorder.states()
    plant(states)
    found = recorder.testimony(logits[[9]], [2])
    rows = [state[picked].float().numpy() for state in states]
    worst = found.errors(rows).max(axis=0)
    assert (worst > TOLERANCE).nonzero()[0].tolist() == wrong


def test_one_wrong_token_of_two_thousand_shows_if_it_is_a_witnessed_one(model: Model) -> None:
    """What a sampled witness can't see: four tokens of a row and chunk are asked, not all."""
    recorder = record(model, 2)
    first_pass(recorder, model)
    picked = pick_rows(0, 2000, 4, random.Random(0))
    other = next(row for row in range(1000, 2000) if row not in picked)
    for wrong in (*picked, other):
        recorder.seen.begin(2000, torch.tensor(picked))
        logits, _ = model(ids(2, 2000))
        states = recorder.states()
        states[0][wrong] = states[0][wrong - 1]  # its neighbour's
        found = recorder.testimony(logits[[1999]], [3])
        errors = found.errors([state[picked].float().numpy() for state in states])
        seen = [row for row, error in zip(picked, errors[:, 0], strict=True) if error > TOLERANCE]
        assert seen == ([wrong] if wrong in picked else [])


def test_a_pass_in_which_a_layer_did_not_run_is_an_error(model: Model) -> None:
    """As when a CUDA graph is replayed: the hooks are Python, and nothing calls them."""
    recorder = record(model, 2)
    first_pass(recorder, model)
    recorder.seen.begin(TOKENS, torch.arange(TOKENS))
    with pytest.raises(RuntimeError, match=r"boundary 2.*was not seen.*CUDA graph"):
        recorder.states()


def test_fewer_rows_than_the_pass_has_are_an_error(model: Model) -> None:
    recorder = record(model, 2)
    first_pass(recorder, model)
    recorder.seen.begin(TOKENS + 1, torch.arange(TOKENS))
    model(ids())
    with pytest.raises(RuntimeError, match="boundary 2"):
        recorder.states()


def test_padding_behind_the_rows_is_left_out(model: Model) -> None:
    recorder = record(model, 2)
    first_pass(recorder, model)
    recorder.seen.begin(TOKENS - 3, torch.arange(TOKENS - 3))
    _, true = model(ids())
    assert torch.equal(recorder.states()[0], true[2][: TOKENS - 3])


def test_an_exception_in_a_hook_is_that_passs_error_and_not_the_models(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = record(model, 2)
    first_pass(recorder, model)
    monkeypatch.setattr(recorder.seen, "keep", lambda *_a, **_k: 1 / 0)
    recorder.seen.begin(TOKENS, torch.arange(TOKENS))
    model(ids())
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        recorder.states()


def test_a_rank_that_does_not_write_keeps_nothing(model: Model) -> None:
    recorder = Recorder(stack_of(model), (2,), True, (HIDDEN, VOCAB), writes=False)
    recorder.seen.begin(TOKENS)
    model(ids())
    assert recorder.seen.states == {}
    assert not any("forward" in vars(m) for m in model.modules())


def test_the_proof_says_seam_witness_and_errors_of_each_state(model: Model) -> None:
    recorder = record(model, 2, 4)
    first_pass(recorder, model)
    assert recorder.proof is not None
    two, four, final = recorder.proof.describe()
    assert (two["state"], two["seam"]) == ("boundary 2", "sum")
    assert two["witness"] == "input_norm (RMSNorm, w) as mixer read it"
    assert two["errors"]["hidden"] > 10 * two["errors"]["sum"]
    assert four["witness"] == "norm (RMSNorm, w) as the head read it"
    assert (final["state"], final["seam"]) == (FINAL, "norm")
    assert set(final["errors"]) == {"norm", "head"}
    assert isinstance(recorder.proof.layers[4], Choice)


# --- where things are ---------------------------------------------------------------------


class Wrapper(torch.nn.Module):
    def __init__(self, inside: Model, tower: torch.nn.Module) -> None:
        super().__init__()
        self.vision_tower, self.language_model = tower, inside


def test_the_layers_are_found_behind_wrappers_and_beside_towers(model: Model) -> None:
    found = find_stack(Wrapper(model, Model()), NUM_LAYERS, HIDDEN)
    assert found.name == "language_model.layers"
    assert list(found.final_norms) == ["norm"]


def test_a_model_without_such_layers_is_refused_with_its_class(model: Model) -> None:
    with pytest.raises(CaptureError, match="Linear: its 4 decoder layers"):
        find_stack(torch.nn.Linear(1, 1), NUM_LAYERS, HIDDEN)
    with pytest.raises(CaptureError, match="Model: its 5 decoder layers"):
        find_stack(model, NUM_LAYERS + 1, HIDDEN)


@pytest.mark.parametrize(("text", "found"), [("", ()), ("3", (3,)), ("1,4", (1, 4))])
def test_boundaries_of_the_environment_are_read(text: str, found: tuple[int, ...]) -> None:
    assert parse_boundaries(text, NUM_LAYERS) == found


@pytest.mark.parametrize("text", ["3,1", "1,1", "a", "0,2", "2,5", "-1"])
def test_boundaries_of_the_environment_must_ascend_within_the_model(text: str) -> None:
    with pytest.raises(CaptureError):
        parse_boundaries(text, NUM_LAYERS)
