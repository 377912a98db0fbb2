"""A checkpoint's fingerprint, and what it lacks: on files and modules, without a server."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hs_dump.checkpoint import fingerprint, group_of
from hs_dump.loading import Loading
from hs_dump.stack import CaptureError
from hs_dump.unloaded import Marks, Missing, at_fault, explain, is_accepted
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]


def tensors(seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    names = ["lm_head.weight", "model.norm.weight"]
    names += [f"model.layers.{n}.{part}" for n in range(12) for part in ("up.weight", "up.bias")]
    return {name: torch.randn(40, 30, generator=generator) for name in names}


def save(folder: Path, *shards: Tensors) -> list[Path]:
    folder.mkdir(parents=True)
    files = [folder / f"model-{n}.safetensors" for n in range(len(shards))]
    for file, shard in zip(files, shards, strict=True):
        save_file(shard, file, metadata={"format": "pt"})
    return files


# --- fingerprint --------------------------------------------------------------------------


def test_a_moved_and_resharded_checkpoint_has_the_same_fingerprint(tmp_path: Path) -> None:
    whole = tensors()
    one = fingerprint(save(tmp_path / "a", whole))
    biases = {name: tensor for name, tensor in whole.items() if name.endswith("bias")}
    parts = [{name: whole[name] for name in whole.keys() - biases.keys()}, biases]
    assert fingerprint(save(tmp_path / "b" / "c", *parts)) == one
    assert list(one)[:2] == ["lm_head", "model.layers.0"]
    assert len(one) == 14


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["model.layers.4.up.weight"].mul_(1.001),
        lambda t: t["model.layers.4.up.bias"][0, 0].add_(1),
        lambda t: t["model.layers.4.up.bias"][-1, -1].add_(1),
        lambda t: t.update(
            {"model.layers.4.up.weight": t["model.layers.4.up.weight"].reshape(30, 40)}
        ),
        lambda t: t.update({"model.layers.4.up.bias": t["model.layers.4.up.bias"].half()}),
        lambda t: t.pop("model.layers.4.up.bias"),
        lambda t: t.update({"model.layers.4.down.weight": t.pop("model.layers.4.up.weight")}),
        lambda t: t.update({"model.layers.4.extra": torch.zeros(1)}),
    ],
)
def test_a_change_of_one_layer_is_seen_in_that_layer_alone(
    tmp_path: Path, change: Callable[[Tensors], object]
) -> None:
    before, changed = tensors(), tensors()
    change(changed)
    one, other = (
        fingerprint(save(tmp_path / "a", before)),
        fingerprint(save(tmp_path / "b", changed)),
    )
    assert {group for group in one if one[group] != other[group]} == {"model.layers.4"}


def test_two_tensors_that_changed_places_are_seen(tmp_path: Path) -> None:
    swapped = tensors()
    up, bias = "model.layers.4.up.weight", "model.layers.4.up.bias"
    swapped[up], swapped[bias] = swapped[bias], swapped[up]
    one = fingerprint(save(tmp_path / "a", tensors()))
    assert one != fingerprint(save(tmp_path / "b", swapped))


def test_files_of_other_formats_count_by_their_size_and_stretches(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(b"a" * 100_000)
    one = fingerprint([file])
    assert list(one) == ["pytorch_model.bin"]
    file.write_bytes(b"a" * 99_999 + b"b")
    assert fingerprint([file]) != one
    file.write_bytes(b"a" * 100_001)
    assert fingerprint([file]) != one


def test_a_file_that_is_no_safetensors_is_an_error_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=r"model\.safetensors is no safetensors file"):
        fingerprint([file])


def test_groups_are_layers_and_modules() -> None:
    assert group_of("model.layers.61.mlp.experts.3.up_proj.weight") == "model.layers.61"
    assert group_of("visual.blocks.2.norm.weight") == "visual.blocks.2"
    assert group_of("model.norm.weight") == "model.norm"
    assert group_of("scale") == "scale"


# --- marks --------------------------------------------------------------------------------


class Fused(torch.nn.Module):
    """As SGLang's QKVParallelLinear: three projections in one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.output_partition_sizes = [64, 32, 32]
        self.weight = torch.nn.Parameter(torch.zeros(128, 48, dtype=torch.bfloat16))
        self.bias = torch.nn.Parameter(torch.zeros(128, dtype=torch.bfloat16))


class Experts(torch.nn.Module):
    """As SGLang's FusedMoE."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_local_experts = 6
        for name, shape in (("w13_weight", (6, 64, 24)), ("w2_weight", (6, 24, 32))):
            data = torch.zeros(shape).to(dtype)
            setattr(self, name, torch.nn.Parameter(data, requires_grad=False))


class Model(torch.nn.Module):
    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.qkv = Fused()
        self.experts = Experts(dtype)
        self.norm = torch.nn.Parameter(torch.ones(700))
        self.scalar = torch.nn.Parameter(torch.tensor(3.0))
        self.padded = torch.nn.Parameter(torch.zeros(130, 8))

    def fill(self, leave: str = "") -> None:
        """What a loader does: everything but ``leave``, and the padding of ``padded``."""
        for name, parameter in self.named_parameters():
            if name != leave:
                target = parameter.data[:128] if name == "padded" else parameter.data
                target.copy_(torch.full(target.shape, 0.5).to(target.dtype))


def missing_after(
    load: Callable[[Model], object], dtype: torch.dtype = torch.bfloat16
) -> list[str]:
    model = Model(dtype)
    marks = Marks(model)
    load(model)
    return [str(found) for found in marks.lift()]


DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn]
DTYPES += [torch.float8_e5m2, torch.uint8, torch.int8, torch.int32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_loaded_model_lacks_nothing_and_an_empty_one_everything(dtype: torch.dtype) -> None:
    assert missing_after(lambda model: model.fill(), dtype) == []
    assert len(missing_after(lambda _: None, dtype)) == 7


@pytest.mark.parametrize("name", [name for name, _ in Model().named_parameters()])
def test_a_parameter_that_no_tensor_came_for_is_named(name: str) -> None:
    assert missing_after(lambda model: model.fill(leave=name)) == [f"{name}: never loaded"]


def test_a_projection_of_a_fused_tensor_that_never_came_is_named_with_its_rows() -> None:
    def load(model: Model) -> None:
        model.fill(leave="qkv.weight")
        model.qkv.weight.data[:64].fill_(1)
        model.qkv.weight.data[96:].fill_(1)

    assert missing_after(load) == ["qkv.weight: rows 64..95 of 128 never loaded"]


def test_an_expert_and_half_an_expert_that_never_came_are_named() -> None:
    def load(model: Model) -> None:
        model.fill(leave="experts.w13_weight")
        for expert in (0, 1, 2, 5):
            model.experts.w13_weight.data[expert].fill_(1)
        model.experts.w13_weight.data[3, 32:].fill_(1)

    assert missing_after(load) == [
        "experts.w13_weight: local expert 3 rows 0..31 of 64 never loaded",
        "experts.w13_weight: local expert 4 never loaded",
    ]


def test_what_was_not_loaded_keeps_the_values_that_it_had() -> None:
    model, untouched = Model(), Model()
    model.scalar.data = model.norm.data[5]  # two parameters on one storage
    untouched.scalar.data = untouched.norm.data[5]
    marks = Marks(model)
    assert not torch.equal(model.norm, untouched.norm)
    marks.lift()
    for mine, other in zip(model.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_parameter_that_the_loader_replaced_is_no_fault() -> None:
    def load(model: Model) -> None:
        model.fill(leave="norm")
        model.norm = torch.nn.Parameter(torch.ones(3))

    assert missing_after(load) == []


def test_parameters_without_memory_are_passed_over() -> None:
    model = Model()
    model.lazy = torch.nn.UninitializedParameter()
    model.meta = torch.nn.Parameter(torch.empty(3, device="meta"))
    model.none = torch.nn.Parameter(torch.empty(0, 4))
    marks = Marks(model)
    model.fill(leave="lazy")
    assert (marks.lift(), marks.unmarked) == ([], [])


# --- what is said of it -------------------------------------------------------------------


def test_scales_that_checkpoints_rightly_lack_are_no_fault() -> None:
    found = [Missing("model.layers.0.attn.k_scale"), Missing("model.layers.0.qkv.input_scale")]
    scale = Missing("model.layers.0.qkv.weight_scale")
    assert at_fault([*found, scale], ["model.layers.0.q.weight"]) == [], "made while loading"
    assert at_fault([*found, scale], ["model.layers.0.q.weight_scale"]) == [scale]


def test_what_a_class_makes_and_never_uses_is_no_fault_of_that_class() -> None:
    norm = [Missing("model.layers.0.q_norm.weight")]
    assert at_fault(norm, [], "FalconH1ForCausalLM") == []
    assert at_fault(norm, [], "Qwen3ForCausalLM") == norm


def names_of(layers: int, *parts: str) -> list[str]:
    return [f"model.layers.{n}.{part}" for n in range(layers) for part in parts]


def test_the_checkpoints_own_name_and_a_renamed_tensor_are_said() -> None:
    names = names_of(6, "norm.weight", "attn.q_proj.weight", "attn.k_proj.weight")
    names.remove("model.layers.4.attn.q_proj.weight")
    missing = [Missing("model.layers.4.attn.qkv_proj.weight", "rows 0..63 of 128")]
    text = explain(missing, names)
    assert "model.layers.4.attn.qkv_proj.weight: rows 0..63 of 128 never loaded" in text
    assert "model.layers.4 lacks attn.q_proj.weight, which model.layers.0 has)" in text
    assert "renamed" not in text
    renamed = explain(missing, [*names, "model.layers.4.attn.query.weight"])
    assert "has, but has attn.query.weight: renamed?" in renamed


def test_what_every_layer_lacks_is_one_line_and_one_pattern() -> None:
    missing = [Missing(name) for name in names_of(30, "attn.q_norm.weight")]
    text = explain(missing, names_of(30, "attn.q_proj.weight"))
    assert "model.layers.0.attn.q_norm.weight and 29 more like it (layers 1, 2, 3," in text
    assert text.count("q_norm") == 2
    assert "SGLANG_HS_DUMP_ACCEPT_MISSING=model.layers.*.attn.q_norm.weight " in text
    assert all(is_accepted(found, ["model.layers.*.attn.q_norm.weight"]) for found in missing)
    assert not is_accepted(Missing("model.layers.0.attn.k_norm.weight"), ["*.q_norm.*"])


# --- the seam -----------------------------------------------------------------------------


class Loaded(Model):
    """A model as SGLang's: its tensors come by ``load_weights``."""

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> int:
        given = dict(weights)
        for name, parameter in self.named_parameters():
            if name in given:
                parameter.data.copy_(given[name])
        return len(given)


def load(
    leave: str, is_draft: bool = False, load_format: str = "auto"
) -> tuple[Loading, list[str]]:
    model, refused, loading = Loaded(), list[str](), Loading()
    config = SimpleNamespace(is_draft_model=is_draft)
    load_config = SimpleNamespace(draft_model_idx=None, load_format=load_format)
    given = [(n, torch.ones_like(p)) for n, p in model.named_parameters() if n != leave]
    loading.on_model(refused.append, model, config, load_config)
    assert model.load_weights(iter(given)) == len(given)
    assert "load_weights" not in vars(model), "weights that come later are not looked at"
    return loading, refused


def test_a_model_that_lacks_a_tensor_is_refused_while_it_loads() -> None:
    refused: list[str] = []
    model, loading = Loaded(), Loading()
    config = SimpleNamespace(is_draft_model=False)
    load_config = SimpleNamespace(draft_model_idx=None, load_format="auto")
    loading.on_model(refused.append, model, config, load_config)
    with pytest.raises(
        CaptureError, match=r"Loaded: the checkpoint lacks tensors, .*: norm: never"
    ):
        model.load_weights([(n, p) for n, p in model.named_parameters() if n != "norm"])
    assert len(refused) == 1
    assert not loading.checked


def test_drafters_and_random_weights_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("")[0].checked
    assert not load("norm", is_draft=True)[0].checked
    assert not load("norm", load_format="dummy")[0].checked
    monkeypatch.setenv("SGLANG_HS_DUMP_ACCEPT_MISSING", "qkv.*, norm")
    loading, refused = load("norm")
    assert (loading.accepted, refused, loading.checked) == (["norm: never loaded"], [], True)


def test_the_fingerprint_is_of_the_files_that_the_loader_resolved(tmp_path: Path) -> None:
    files = save(tmp_path / "real", tensors())
    save_file(tensors(1), tmp_path / "real" / "consolidated.safetensors")
    loading = Loading()
    loading.on_files(("elsewhere", ["no.safetensors"], True))  # a drafter's, before the model
    loading.on_model(lambda _: None, Loaded(), *_configs())
    loading.on_files((str(tmp_path / "real"), [os.fspath(file) for file in files], True))
    said = loading.describe("hub/name")
    assert said["weights"] == fingerprint(files)
    assert said["weights_folder"] == str(tmp_path / "real")
    assert Loading().describe(str(tmp_path / "none"))["weights"] == {}


def _configs() -> tuple[SimpleNamespace, SimpleNamespace]:
    load_config = SimpleNamespace(draft_model_idx=None, load_format="auto")
    return SimpleNamespace(is_draft_model=False), load_config
