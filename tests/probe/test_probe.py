"""The probe: planted faults are found, right stores of four families pass."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from make import models as tiny_models
from make.dumps import BOUNDARIES
from make.reference import load_reference
from make.rows import demo_samples, random_sample, write_rows
from make.stores import model_store
from safetensors.torch import load_file, save_file

from hslib import demo
from hslib.errors import ProbeError, RequestError
from hslib.model import read_final_norm, read_head
from hslib.parameters import ProbeParameters
from hslib.probe import against_reference, conclude, plan_probe, through_head
from hslib.probe.head import HeadFinding, HeadReading, judge_head, read_through_head
from hslib.probe.layers import ProbeReport, compare, judge, relative_errors
from hslib.probe.reference import load_reference as probe_reference
from hslib.probe.run import shortest
from hslib.server import launch as server
from hslib.server import processes
from hslib.server.client import ServerClient
from hslib.store import Store

Change = Callable[[torch.Tensor], torch.Tensor]


def matches(report: ProbeReport) -> dict[str, str]:
    return {finding.claimed: finding.match for finding in report.findings}


def probe(tmp_path: Path, store: Store, reference: Path, **parameters: object) -> ProbeReport:
    facts = {"run_dir": str(tmp_path), "store_dir": str(store.path), "min_tokens": 8}
    values = {**facts, "reference_path": str(reference), **parameters}
    report = against_reference(plan_probe(ProbeParameters.from_values(values)))
    assert report is not None
    return report


@pytest.fixture(scope="module")
def llama(model_of: Callable[[str], Path]) -> Path:
    return model_of("llama")


SAMPLES = [random_sample(i, 12 + i) for i in range(3)]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_right_stores_of_four_families_pass(
    tmp_path: Path, family: str, model_of: Callable[[str], Path]
) -> None:
    store = model_store(tmp_path / "store", model_of(family), SAMPLES, BOUNDARIES)
    report = probe(tmp_path, store, model_of(family))
    assert set(matches(report).values()) == {"as claimed"}
    report.require_as_claimed()
    assert report.sentence() == "4 of 4 stored layers are what the manifest says."


def test_layers_shifted_by_one_are_found(tmp_path: Path, llama: Path) -> None:
    """Captured after the layers that were meant to be captured before, as SGLang's ids invite."""
    store = model_store(tmp_path / "store", llama, SAMPLES, (2, 4, 5))
    store.manifest = store.manifest.model_copy(update={"boundaries": (1, 3, 4)})
    (store.path / "manifest.json").write_text(store.manifest.model_dump_json())
    report = probe(tmp_path, store, llama)
    assert [finding.nearest for finding in report.findings[:3]] == ["2", "4", "5"]
    assert list(matches(report).values()) == ["another layer"] * 3 + ["as claimed"]
    with pytest.raises(ProbeError, match="stored as 1, but it IS 2"):
        report.require_as_claimed()


def test_swapped_layers_are_found(tmp_path: Path, llama: Path) -> None:
    store = model_store(
        tmp_path / "store", llama, SAMPLES, BOUNDARIES, lambda s: s[:, [1, 0, 2, 3]]
    )
    report = probe(tmp_path, store, llama)
    assert [finding.nearest for finding in report.findings] == ["3", "1", "5", "final (after norm)"]
    with pytest.raises(ProbeError, match="stored as 1, but it IS 3; stored as 3, but it IS 1"):
        report.require_as_claimed()


def test_a_state_before_the_norm_stored_as_after_is_found(tmp_path: Path, llama: Path) -> None:
    store = model_store(tmp_path / "store", llama, SAMPLES, BOUNDARIES)
    before = probe_reference(llama)
    column = before.columns.index(tiny_models.NUM_LAYERS)
    wrong = []
    for sample in store:
        states = sample.hidden_states.clone()
        states[:, -1] = before.states(sample.input_ids)[column].bfloat16()
        wrong.append(relative_errors(states, before.states(sample.input_ids)))
    names = [str(c) for c in before.columns]
    report = judge(np.stack(wrong), ["1", "3", "5", "final"], names, list(store.entries))
    assert report.findings[-1].match == "another layer"
    assert report.findings[-1].nearest == str(tiny_models.NUM_LAYERS)
    with pytest.raises(ProbeError, match="stored as final, but it IS 6"):
        report.require_as_claimed()


def test_another_checkpoint_of_the_same_shape_is_found(tmp_path: Path, llama: Path) -> None:
    folder = tmp_path / "retrained"
    shutil.copytree(llama, folder)
    generator = torch.Generator().manual_seed(3)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "proj" in name:  # embedding, norms and head are the same, as after finetuning
            noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std()
            tensors[name] = (tensor.float() + noise).to(tensor.dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    store = model_store(tmp_path / "store", llama, SAMPLES, BOUNDARIES)
    report = probe(tmp_path, store, folder)
    assert set(matches(report).values()) == {"none of them"}
    with pytest.raises(ProbeError, match="NO reference state"):
        report.require_as_claimed()


def test_one_row_with_another_rows_states_is_named(tmp_path: Path, llama: Path) -> None:
    store = model_store(tmp_path / "store", llama, SAMPLES, BOUNDARIES)
    reference = probe_reference(llama)
    errors = [
        relative_errors(sample.hidden_states, reference.states(sample.input_ids))
        for sample in store
    ]
    errors[1] = relative_errors(store[2].hidden_states[:13], reference.states(store[1].input_ids))
    report = judge(
        np.stack(errors), ["1", "3", "5", "final"], [str(c) for c in reference.columns], [0, 1, 2]
    )
    assert {finding.odd_rows for finding in report.findings} == {(1,)}
    with pytest.raises(ProbeError, match=r"samples \[1\] differ"):
        report.require_as_claimed()


def test_the_first_layers_alone_prove_the_first_boundaries(
    tmp_path: Path, model_of: Callable[[str], Path]
) -> None:
    for family in ("llama", "deepseek_v3"):
        folder = model_of(family)
        store = model_store(tmp_path / family, folder, SAMPLES, BOUNDARIES)
        report = probe(tmp_path, store, folder, max_layers=4)
        assert list(matches(report).values()) == ["as claimed"] * 2 + ["not covered"] * 2
        assert "not covered: 5, final" in report.sentence()
        report.require_as_claimed()


def test_the_first_layers_are_read_without_the_shards_of_the_others(
    tmp_path: Path, llama: Path
) -> None:
    import json

    folder = tmp_path / "sharded"
    shutil.copytree(llama, folder)
    tensors = load_file(folder / "model.safetensors")
    late = {name for name in tensors if any(f".layers.{n}." in name for n in (4, 5))}
    save_file(
        {name: tensor for name, tensor in tensors.items() if name not in late},
        folder / "first.safetensors",
    )
    (folder / "model.safetensors").unlink()
    shard = {name: "late.safetensors" if name in late else "first.safetensors" for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shard}))
    ids = torch.from_numpy(SAMPLES[0].input_ids).long()
    whole, cut = probe_reference(llama), probe_reference(folder, 4)
    assert cut.columns == (0, 1, 2, 3, 4)
    torch.testing.assert_close(cut.states(ids), whole.states(ids)[:5])


def test_the_reference_is_transformers_hidden_states(llama: Path) -> None:
    ids = torch.from_numpy(SAMPLES[0].input_ids).long()
    reference = probe_reference(llama)
    with torch.no_grad():
        own = load_reference(llama).model(ids[None], output_hidden_states=True).hidden_states
    found = reference.states(ids)
    for boundary in range(tiny_models.NUM_LAYERS):
        torch.testing.assert_close(found[boundary], own[boundary][0].float())
    torch.testing.assert_close(found[-1], own[-1][0].float())
    assert not torch.allclose(found[-2], found[-1], rtol=0.1), "before and after the norm"


def test_neighbours_that_look_alike_are_not_called_proven() -> None:
    errors = np.array([[[0.5, 0.010, 0.012]]])
    (finding,) = judge(errors, ["1"], ["0", "1", "2"], [0]).findings
    assert finding.match == "can't be told"


def test_a_reference_of_another_shape_is_refused(tmp_path: Path, llama: Path) -> None:
    store = model_store(tmp_path / "store", llama, SAMPLES, BOUNDARIES)
    with pytest.raises(ProbeError, match="another model: hidden_size differs"):
        probe(tmp_path, store, demo_like(tmp_path))


def demo_like(tmp_path: Path) -> Path:
    """The demo's files under the tiny models' number of layers."""
    folder = tmp_path / "demo-like"
    shutil.copytree(demo.model_path(), folder)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        text.replace('"num_hidden_layers": 10', '"num_hidden_layers": 6')
    )
    return folder


def test_short_rows_are_chosen_but_not_too_short_ones() -> None:
    assert shortest([3, 50, 9, 8, 100], 2) == [3, 2]


# --- through the head -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("probe") / "store"
    return model_store(path, demo.model_path(), demo_samples(4, 120), (2, 5, 7))


def head_readings(
    samples: Sequence[object], logprobs: Sequence[Sequence[float]] | None = None
) -> list[HeadReading]:
    head, norm = read_head(demo.model_path()), read_final_norm(demo.model_path())
    return read_through_head(samples, head, norm, logprobs)  # type: ignore[arg-type]


def own_logprobs(store: Store) -> list[list[float]]:
    """What a server answers: the model's log probability of each token but the first."""
    model = load_reference(demo.model_path())
    found = []
    for sample in store:
        with torch.no_grad():
            scores = model(sample.input_ids[None]).logits[0, :-1].float().log_softmax(-1)
        found.append(scores.gather(1, sample.input_ids[1:, None])[:, 0].tolist())
    return found


def test_deeper_boundaries_predict_the_next_token_better(demo_store: Store) -> None:
    shares = [reading.accuracy for reading in head_readings(list(demo_store))]
    assert shares[:4] == sorted(shares[:4])
    assert shares[3] > 0.5


def test_a_servers_log_probabilities_prove_the_side_of_the_norm(demo_store: Store) -> None:
    found = judge_head(head_readings(list(demo_store), own_logprobs(demo_store)), 768)
    assert (found.side, found.proven) == ("post", True)
    found.require("post")
    with pytest.raises(ProbeError, match="after the norm"):
        found.require("pre")


def test_a_servers_log_probabilities_expose_other_rows_states(demo_store: Store) -> None:
    wrong = [list(reversed(row)) for row in own_logprobs(demo_store)]
    found = judge_head(head_readings(list(demo_store), wrong), 768)
    assert found.side == "none"
    with pytest.raises(ProbeError, match="another checkpoint, or other rows' states"):
        found.require("post")


def test_without_any_reference_the_head_refuses_what_is_no_better_than_chance(
    tmp_path: Path,
) -> None:
    broken = model_store(
        tmp_path / "s", demo.model_path(), demo_samples(3, 100), (2, 5, 7), lambda s: s.roll(9, 0)
    )
    assert judge_head(head_readings(list(broken)), 768).side == "none"


def test_head_evidence_that_fits_both_sides_is_called_so(demo_store: Store, tmp_path: Path) -> None:
    """The demo's norm hardly changes what its head says, so only a server could prove it."""
    parameters = ProbeParameters(
        run_dir=str(tmp_path), store_dir=str(demo_store.path), max_layers=0, min_tokens=8
    )
    plan = plan_probe(parameters)
    assert against_reference(plan) is None
    readings, found = through_head(plan)
    assert len(readings) == 5
    assert (found.side, found.proven) == ("either", False)
    assert "No layer of a reference was loaded" in conclude(plan, None, found)


def test_states_of_the_reference_that_predict_nothing_are_a_model_that_can_not(
    demo_store: Store, tmp_path: Path
) -> None:
    """Random weights: the states are right, and no head makes words of them."""
    plan = plan_probe(
        ProbeParameters(run_dir=str(tmp_path), store_dir=str(demo_store.path), min_tokens=8)
    )
    assert plan.num_layers == plan.model.num_layers
    readings = [HeadReading("post", 0.0, -9.0), HeadReading("pre", 0.0, -9.5)]
    found = judge_head(readings, vocab_size=100)
    assert found.side == "none" and "a model that can't predict these rows" in found.sentence
    report = judge(np.array([[[0.01, 1.0]]]), ["one"], ["one", "two"], [0])
    assert conclude(plan, report, found).endswith("So the model itself can't predict these rows.")
    likely = HeadFinding("post", False, "")
    assert conclude(plan, report, likely) == report.sentence()


# --- against a running server -------------------------------------------------------------------


def test_a_running_server_is_probed_and_its_log_probabilities_agree(
    tmp_path: Path, llama: Path, llama_server: server.ServerState
) -> None:
    rows = [random_sample(i, 20 + i) for i in range(3)]
    plan = plan_probe(
        ProbeParameters(
            run_dir=str(tmp_path / "run"),
            server_url=llama_server.url,
            dump_dir=llama_server.dump_dir,
            dataset_path=str(write_rows(tmp_path / "rows.jsonl", rows)),
            layers="1,3,5",
            min_tokens=8,
        )
    )
    assert processes.is_alive(llama_server)
    report = against_reference(plan)
    assert report is not None
    readings, found = through_head(plan)
    assert (found.side, found.proven) == ("post", True), readings
    after_norm = readings[-2].server_error
    assert after_norm is not None
    assert min(r.server_error or 0 for r in readings if r is not readings[-2]) > 5 * after_norm
    assert "4 of 4 stored layers" in conclude(plan, report, found)
    with ServerClient(llama_server.url) as client:
        assert len(client.logprobs(rows[0].input_ids, 512)) == 19
    compare(plan.samples, probe_reference(llama)).require_as_claimed()


def test_a_row_that_holds_the_vocabularys_last_id_is_probed_too(
    tmp_path: Path, llama: Path, llama_server: server.ServerState
) -> None:
    """SGLang names that id as 0 beside its log probability, which is the right id's."""
    rows = [random_sample(i, 24) for i in range(3)]
    for row in rows:
        row.input_ids[[0, 7, 8, 23]] = 511
    plan = plan_probe(
        ProbeParameters(
            run_dir=str(tmp_path / "run"),
            server_url=llama_server.url,
            dump_dir=llama_server.dump_dir,
            dataset_path=str(write_rows(tmp_path / "rows.jsonl", rows)),
            layers="1,3,5",
            min_tokens=8,
        )
    )
    readings, found = through_head(plan)
    assert found.proven, readings
    ids = rows[0].input_ids
    with torch.no_grad():
        logits = load_reference(llama)(torch.from_numpy(ids).long()[None]).logits[0, :-1]
    right = logits.float().log_softmax(-1)[torch.arange(23), torch.from_numpy(ids[1:]).long()]
    with ServerClient(llama_server.url) as client:
        np.testing.assert_allclose(client.logprobs(ids, 512), right.numpy(), atol=0.1)
        with pytest.raises(RequestError, match="other tokens than it was sent"):
            client.logprobs(ids, 513)  # control: this server does name it as 0
