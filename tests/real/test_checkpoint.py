"""Checkpoints that lack a tensor, or that change under a job, against real servers."""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from make import models as tiny_models
from make.reference import reference_states, relative_errors
from make.rows import random_sample, write_rows
from real.servers import end_server
from real.warm import WarmServers
from safetensors.torch import load_file, save_file

from hslib import extract
from hslib.errors import ServerError, StoreError
from hslib.parameters import ExtractionParameters, ServerParameters
from hslib.server import launch as server
from hslib.server.dumps import DumpDir
from hslib.server.endpoints import open_endpoints
from hslib.server.plugin_info import PluginInfo
from hslib.store import Store

Start = Callable[..., server.ServerState]
Tensors = dict[str, torch.Tensor]


def changed(model: Path, folder: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy of a model whose tensors ``change`` has edited; its config.json is the same."""
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def refusal(start_server: Start, model: Path, **parameters: object) -> str:
    with pytest.raises(ServerError) as caught:
        start_server(model, **parameters)
    return str(caught.value)


def rename(tensors: Tensors, old: str, new: str) -> None:
    tensors[new] = tensors.pop(old)


# --- what is missing ----------------------------------------------------------------------


def test_a_checkpoint_that_lacks_tensors_is_refused_with_each_by_its_name(
    tmp_path: Path, start_server: Start
) -> None:
    """One layer's norm, a renamed part of a fused tensor, and one that no layer has."""

    def spoil(tensors: Tensors) -> None:
        del tensors["model.layers.4.input_layernorm.weight"]
        rename(tensors, "model.layers.2.self_attn.q_proj.weight", "model.layers.2.self_attn.q.w")
        for layer in range(tiny_models.NUM_LAYERS):
            del tensors[f"model.layers.{layer}.self_attn.k_norm.weight"]

    whole = tiny_models.build("qwen3", tmp_path / "whole", tie_word_embeddings=True)
    said = refusal(start_server, changed(whole, tmp_path / "model", spoil))
    assert "Qwen3ForCausalLM: the checkpoint lacks tensors" in said
    assert "model.layers.4.input_layernorm.weight: never loaded" in said
    assert "model.layers.2.self_attn.qkv_proj.weight: rows 0..63 of 128 never loaded" in said
    assert "lacks self_attn.q_proj.weight" in said
    assert "has self_attn.q.w: renamed?" in said
    assert re.search(r"model\.layers\.0\.self_attn\.k_norm\.weight and 5 more like it", said)
    assert "lm_head" not in said, "a tied head is no fault"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "missing"),
    [
        (
            "llama",
            {
                r"\.mlp\.down_proj\.weight$": r"layers\.0\.mlp\.down_proj\.weight and 5 more",
                r"^lm_head": r"lm_head\.weight: never loaded",
            },
        ),
        (
            "qwen3_moe",
            {r"\.3\.mlp\.experts\.2\.gate_proj": r"3\.mlp\.experts\.w13_weight: local"},
        ),
        (
            "deepseek_v3",
            {
                r"\.2\.self_attn\.kv_b_proj": r"2\.self_attn\.kv_b_proj\.weight: never",
                r"\.2\.self_attn\.q_a_proj": r"2\.self_attn\.fused_qkv_a_proj.*: never",
            },
        ),
    ],
    ids=["llama", "qwen3_moe", "deepseek_v3"],
)
def test_what_each_family_calls_a_missing_tensor(
    model_of: Callable[[str], Path],
    tmp_path: Path,
    start_server: Start,
    family: str,
    missing: dict[str, str],
) -> None:
    """``missing``: patterns of tensors that are taken away, and what is said of them."""

    def spoil(tensors: Tensors) -> None:
        for name in [name for name in tensors if re.search("|".join(missing), name)]:
            del tensors[name]

    told = refusal(start_server, changed(model_of(family), tmp_path / "m", spoil))
    for said in missing.values():
        assert re.search(said, told)


@pytest.mark.slow
def test_a_missing_tensor_that_is_accepted_is_recorded_and_a_tied_head_is_none(
    tmp_path: Path, start_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tiny_models.build("llama", tmp_path / "whole", tie_word_embeddings=True)
    name = "model.layers.4.input_layernorm.weight"
    lacking = changed(whole, tmp_path / "model", lambda tensors: tensors.pop(name))
    monkeypatch.setenv("SGLANG_HS_DUMP_ACCEPT_MISSING", "model.layers.*.input_layernorm.weight")
    state = start_server(lacking)
    plugin = DumpDir(state.dump_dir).plugin()
    assert plugin is not None
    assert plugin.accepted_missing == (f"{name}: never loaded",)
    assert plugin.weights_checked
    facts = server.check_server(state).facts()
    assert name in facts["LACKS, by SGLANG_HS_DUMP_ACCEPT_MISSING"]
    end_server(state)


@pytest.mark.slow
def test_a_missing_tensor_is_found_on_either_of_two_ranks(
    model_of: Callable[[str], Path],
    tmp_path: Path,
    start_server: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.setenv("SGLANG_NCCL_SO_PATH", "/nonexistent/libnccl.so")
    name = "model.layers.4.self_attn.v_proj.weight"
    lacking = changed(model_of("llama"), tmp_path / "m", lambda tensors: tensors.pop(name))
    said = refusal(start_server, lacking, tp_size=2)
    assert "model.layers.4.self_attn.qkv_proj.weight: rows 48..63 of 64 never loaded" in said
    assert "model.layers.4 lacks self_attn.v_proj.weight" in said


def test_a_whole_model_is_checked_and_has_a_fingerprint(llama_server: server.ServerState) -> None:
    plugin = DumpDir(llama_server.dump_dir).plugin()
    assert plugin is not None
    assert plugin.weights_checked
    assert plugin.weights_folder == llama_server.model_path
    layers = [f"model.layers.{n}" for n in range(tiny_models.NUM_LAYERS)]
    assert list(plugin.weights) == ["lm_head", "model.embed_tokens", *layers, "model.norm"]


# --- which model it is --------------------------------------------------------------------


class Served:
    """One server after another at one port, and a job that knows it by its URL."""

    def __init__(self, folder: Path, warm: WarmServers) -> None:
        self.folder, self._warm = folder, warm
        self._values: dict[str, object] = {"run_dir": str(folder / "server"), "layers": "1,3,5"}
        self.samples = [random_sample(index, 20, seed=4) for index in range(600)]
        self.rows = write_rows(folder / "rows.jsonl", self.samples)
        self.state: server.ServerState | None = None

    def start(self, model: Path, **values: object) -> None:
        self.stop()
        given = self._values | {"model_path": str(model)} | values
        with mock.patch.object(server, "spawn", self._warm.spawn):
            self.state = server.start(ServerParameters.from_values(given))
        port = int(self.state.url.rsplit(":", 1)[1])
        self._values |= {"port": port, "dump_dir": self.state.dump_dir}

    def stop(self) -> None:
        if self.state is not None:
            end_server(self.state)

    def parameters(self, model: Path, **values: object) -> ExtractionParameters:
        assert self.state is not None
        given = {
            "run_dir": str(self.folder / "run"),
            "dataset_path": str(self.rows),
            "model_path": str(model),
            "layers": "1,3,5",
            "server_url": self.state.url,
            "dump_dir": self.state.dump_dir,
            "server_wait_s": 500.0,
            "concurrency": 2,
            "samples_per_request": 1,
        }
        return ExtractionParameters.from_values({**given, **values})

    def run(self, model: Path, **values: object) -> extract.Result:
        parameters = self.parameters(model, **values)
        fleet = open_endpoints(parameters)
        return extract.run(extract.prepare(parameters, fleet), fleet)

    def plugin(self) -> PluginInfo:
        assert self.state is not None
        found = DumpDir(self.state.dump_dir).plugin()
        assert found is not None
        return found


@pytest.fixture
def served(tmp_path: Path, warm: WarmServers) -> Iterator[Served]:
    found = Served(tmp_path, warm)
    yield found
    found.stop()


def like_lora(tensors: Tensors) -> None:
    """A rank-4 update of one layer by 2 % of its weights' norm: below the canary's tolerance."""
    generator = torch.Generator().manual_seed(2)
    for part in ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"):
        name = f"model.layers.3.{part}.weight"
        weight = tensors[name].float()
        update = torch.randn(weight.shape[0], 4, generator=generator)
        update = update @ torch.randn(4, weight.shape[1], generator=generator)
        tensors[name] = (weight + update * 0.02 * weight.norm() / update.norm()).bfloat16()


def reshard(folder: Path) -> None:
    """Two files with an index in place of one."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for part in set(places.values()):
        mine = {name: tensors[name] for name, place in places.items() if place == part}
        save_file(mine, folder / part, metadata={"format": "pt"})
    index = json.dumps({"metadata": {}, "weight_map": places})
    (folder / "model.safetensors.index.json").write_text(index)


@pytest.mark.slow
def test_one_store_holds_one_models_states_whatever_happens_to_the_folder(
    served: Served, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    original, folder = model_of("llama"), tmp_path / "served"
    shutil.copytree(original, folder)
    served.start(folder)
    store_path = served.parameters(folder).store_path

    # the weights are replaced in place, and the server is started again, while a job runs
    other = tiny_models.build("llama", tmp_path / "other", initializer_range=0.09)
    (other / "config.json").unlink()

    def swap() -> None:
        while len(Store(store_path).entries if (store_path / "journal.jsonl").exists() else ()) < 5:
            time.sleep(0.02)
        served.stop()
        shutil.copy(other / "model.safetensors", folder)
        served.start(folder)

    swapping = threading.Thread(target=swap)
    swapping.start()
    with pytest.raises(ServerError, match=r"came back: weights of .* \(8 of 9 groups"):
        served.run(folder)
    swapping.join()
    before = len(Store(store_path))
    assert 5 <= before < len(served.samples)

    # a resume on what lies there now
    with pytest.raises(StoreError, match="another kind: weights of lm_head"):
        served.run(folder)

    # a resume on another folder of the same config.json: one layer is not the same
    adapted = changed(original, tmp_path / "adapted", like_lora)
    served.start(adapted)
    with pytest.raises(StoreError, match=r"weights of model\.layers\.3 \(1 of 9 groups\) differ"):
        served.run(adapted)

    # the same files, and something else is computed from them
    override = json.dumps({"rms_norm_eps": 0.05})
    served.start(original, extra_args=["--json-model-override-args", override])
    with pytest.raises(StoreError, match=r"canary's states .the weights' files are the same"):
        served.run(original)
    assert len(Store(store_path)) == before, "nothing was stored by any of these"

    # the first checkpoint, elsewhere, in other files, chunked
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(original, moved)
    reshard(moved)
    served.start(moved, chunked_prefill_size=16)
    assert served.run(moved).is_whole
    store = Store(store_path)
    assert len(store) == len(served.samples)
    for index in (*range(3), before - 1, before, before + 1, len(store) - 1):
        states = reference_states(original, served.samples[index].input_ids)
        assert relative_errors(store[index].layer(3), states)[3] < 0.03, index


@pytest.mark.slow
def test_two_servers_of_one_job_with_one_differing_layer_are_refused(
    served: Served,
    llama_server: server.ServerState,
    model_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    served.start(changed(model_of("llama"), tmp_path / "adapted", like_lora), dump_all=True)
    assert served.state is not None
    both = {
        "server_url": [llama_server.url, served.state.url],
        "dump_dir": [llama_server.dump_dir, served.state.dump_dir],
    }
    with pytest.raises(ServerError, match=r"weights of model\.layers\.3 \(1 of 9 groups\) differ"):
        served.run(model_of("llama"), **both)
