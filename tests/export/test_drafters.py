"""Every drafter of both trainers: its export, its trainer's reader, a step of its own model.

SpecForge's pins are for another SGLang, so it is no requirement of this project:
``pip install --no-deps specforge==0.2.0`` is enough for what is imported here.
"""

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from make import models
from make.rows import demo_samples, random_sample
from make.stores import model_store
from make.training import (
    Step,
    command,
    specforge_step,
    speculators_step,
    with_index,
    with_mtp_layer,
)

from hslib import demo, terminal
from hslib.drafter import eagle3
from hslib.errors import ExportError
from hslib.export import DRAFTERS, TRAINERS, Drafter, export_store, find_drafter, read_back
from hslib.export.drafters import table_lines
from hslib.export.export import has_pair
from hslib.export.fp8 import open_dataset
from hslib.parameters import ExportParameters
from hslib.store import Store

ROOT = Path(__file__).parents[2]
FIVE = (2, 4, 5, 7, 8)

needs_specforge = pytest.mark.skipif(
    importlib.util.find_spec("specforge") is None,
    reason="SPECFORGE IS ABSENT, so its own reader and models were NOT tried: "
    "pip install --no-deps specforge==0.2.0",
)


def _params(drafters: list[Drafter]) -> list[Any]:
    return [
        pytest.param(
            drafter,
            id=f"{drafter.trainer}-{drafter.name}",
            marks=[needs_specforge] if drafter.trainer == "specforge" else [],
        )
        for drafter in drafters
    ]


every = pytest.mark.parametrize("drafter", _params([d for d in DRAFTERS if not d.refused]))
of_the_demo = pytest.mark.parametrize(
    "drafter", _params([d for d in DRAFTERS if not d.refused and d.name != "mtp"])
)


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    with eagle3._quiet():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's, with the index that SpecForge's EAGLE-3 wants."""
    folder = tmp_path_factory.mktemp("drafters") / "model"
    return with_index(Path(shutil.copytree(demo.model_path(), folder)))


@pytest.fixture(scope="module")
def store(model: Path) -> Store:
    return model_store(model.with_name("store"), model, demo_samples(3, 80), FIVE)


@pytest.fixture(scope="module")
def with_n(model: Path) -> Store:
    """With boundary n: the demo has ten layers."""
    return model_store(model.with_name("n"), model, demo_samples(2, 60), (2, 5, 10))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 with an MTP layer."""
    return with_mtp_layer(models.build("qwen3", tmp_path_factory.mktemp("qwen") / "model"))


@pytest.fixture(scope="module")
def of_qwen(qwen: Path) -> Store:
    samples = [random_sample(index, 40) for index in range(3)]
    return model_store(qwen.with_name("store"), qwen, samples, ())


def export(store: Store, drafter: Drafter, out: Path, **options: Any) -> Any:
    """An export of five boundaries, or of three for the one that reads three."""
    if drafter.layers > 0:
        options = {"boundaries": FIVE[: drafter.layers], **options}
    trainer = TRAINERS[drafter.trainer](drafter.name)
    return export_store(store, out, trainer, Path(store.manifest.model_path), **options)


def take_step(drafter: Drafter, out: Path, model: Path) -> Step:
    if drafter.trainer == "specforge":
        return specforge_step(out, model)
    return speculators_step(out)


# --- the proof ----------------------------------------------------------------------------


@every
def test_its_own_reader_gives_what_the_store_holds_and_its_own_model_trains_on_it(
    drafter: Drafter, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name = "of_qwen" if drafter.name == "mtp" else "store"
    store: Store = request.getfixturevalue(name)
    report = export(store, drafter, tmp_path / "e")
    back = read_back(store, report)
    back.require_whole()
    assert (back.rows, back.final_equal) == (3, 3 if drafter.last else None)
    step = take_step(drafter, report.path, report.model_path)
    assert 0 < step.loss < 100
    assert step.gradients_finite
    assert step.changed > 0


@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_a_draft_vocabulary_goes_into_the_step(name: str, store: Store, tmp_path: Path) -> None:
    drafter = find_drafter("speculators", name)
    report = export(store, drafter, tmp_path / "e", draft_vocab_size=96)
    assert "--d2t-path" in command(report.path)
    assert speculators_step(report.path).gradients_finite


@of_the_demo
def test_an_export_takes_some_of_the_stores_boundaries(
    drafter: Drafter, store: Store, tmp_path: Path
) -> None:
    """Two exports of one store, for two drafters that read other layers."""
    for name, chosen in (("a", (2, 5, 8)), ("b", (4, 5, 7))):
        report = export(store, drafter, tmp_path / name, boundaries=chosen)
        assert report.boundaries == chosen
        assert read_back(store, report).is_whole
        if drafter.trainer == "speculators":
            words = command(report.path)
            ids = words[words.index("--target-layer-ids") + 1 :][:3]
            assert ids == [str(boundary) for boundary in chosen]
        else:
            draft = json.loads((report.path / "draft_config.json").read_text())
            ids = (draft.get("eagle_config") or draft["dflash_config"]).values()
            assert [boundary - 1 for boundary in chosen] in ids


@of_the_demo
def test_one_boundary_is_enough_where_any_number_will_do(
    drafter: Drafter, store: Store, tmp_path: Path
) -> None:
    if drafter.layers > 0:
        with pytest.raises(ExportError, match="reads exactly three aux layers, 1 are named"):
            export(store, drafter, tmp_path / "e", boundaries=(5,))
        return
    report = export(store, drafter, tmp_path / "e", boundaries=(5,))
    assert read_back(store, report).is_whole
    assert take_step(drafter, report.path, report.model_path).gradients_finite


@needs_specforge
@pytest.mark.parametrize("name", ["eagle3", "dflash", "dspark"])
def test_specforges_rows_have_the_tensors_that_its_storage_contract_names(
    name: str, store: Store, tmp_path: Path
) -> None:
    from specforge.algorithms.builtin import builtin_algorithm_registry

    drafter = find_drafter("specforge", name)
    report = export(store, drafter, tmp_path / "e")
    algorithm = builtin_algorithm_registry().resolve(name)
    wanted = algorithm.spec.feature_contract("offline", "text").storage.required_tensors
    raw = torch.load(report.path / TRAINERS["specforge"]().file(0), weights_only=True)
    assert set(raw) == wanted == {"input_ids", "loss_mask", *drafter.tensors}


# --- the table ----------------------------------------------------------------------------


def test_the_table_has_speculators_own_types() -> None:
    import speculators.models  # noqa: F401
    from speculators.model import SpeculatorModel

    registry = SpeculatorModel.registry or {}
    ours = {drafter.name for drafter in DRAFTERS if drafter.trainer == "speculators"}
    assert ours == {name for name, kind in registry.items() if "get_trainer_kwargs" in dir(kind)}


@needs_specforge
def test_the_table_has_specforges_own_algorithms_and_refuses_what_it_cannot_read() -> None:
    from specforge.algorithms.builtin import builtin_algorithm_registry

    registry = builtin_algorithm_registry()
    ours = {drafter.name: drafter for drafter in DRAFTERS if drafter.trainer == "specforge"}
    assert set(ours) == set(registry.names)
    for name, drafter in ours.items():
        spec = registry.resolve(name).spec
        assert spec.supports("offline", "text") is not bool(drafter.refused)
        assert spec.capabilities.supports_vocab_mapping is drafter.takes_vocabulary


def test_the_table_stands_in_the_notebooks_readme() -> None:
    assert "\n".join(table_lines()) in (ROOT / "notebooks/README.md").read_text()


def test_parameters_and_terminal_offer_the_drafters_of_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    names = {drafter.name for drafter in DRAFTERS}
    assert set(get_args(ExportParameters.model_fields["drafter"].annotation)) == names
    assert terminal.main(["export", "--help"]) == 0
    (offered,) = re.findall(r"--drafter +<([\w|]+)>", capsys.readouterr().out)
    assert set(offered.split("|")) == names


# --- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trainer", "name", "said"),
    [
        ("speculators", "domino", "speculators has no drafter 'domino'.*'specforge' has it"),
        ("specforge", "mtp", "specforge has no drafter 'mtp'.*'speculators' has it"),
        ("specforge", "peagle", "no reader of files for peagle.*'speculators' has it"),
        ("speculators", "medusa", "choose one of its own: eagle3, peagle"),
    ],
)
def test_a_drafter_that_a_trainer_lacks_is_refused(trainer: str, name: str, said: str) -> None:
    with pytest.raises(ExportError, match=f"(?s){said}"):
        TRAINERS[trainer](name)


@pytest.mark.parametrize(
    ("trainer", "name", "boundaries", "said"),
    [
        (
            "speculators",
            "dflash",
            (2, 3),
            r"the store lacks boundaries \[3\].*stored=\[2, 4, 5, 7, 8",
        ),
        ("speculators", "dflash", (5, 2), r"must ascend without repeats.*write \[2, 5\]"),
        ("speculators", "dflash", (), "reads one aux layer or more, 0 are named"),
        ("specforge", "eagle3", None, '5.*name them, such as boundaries = "2,4,5"'),
    ],
)
def test_boundaries_that_will_not_do_are_refused(
    trainer: str,
    name: str,
    boundaries: tuple[int, ...] | None,
    said: str,
    store: Store,
    tmp_path: Path,
) -> None:
    with pytest.raises(ExportError, match=f"(?s){said}"):
        export_store(
            store, tmp_path, TRAINERS[trainer](name), demo.model_path(), boundaries=boundaries
        )


def test_mtp_reads_no_boundary_and_goes_on_with_the_models_own_layer(
    store: Store, of_qwen: Store, qwen: Path, tmp_path: Path
) -> None:
    mtp = find_drafter("speculators", "mtp")
    with pytest.raises(ExportError, match=r"for the model types .*this is deepseek_v3"):
        export(store, mtp, tmp_path / "a")
    plain = models.build("qwen3", tmp_path / "plain")
    with pytest.raises(ExportError, match=r"has no tensor mtp\.\*"):
        export_store(of_qwen, tmp_path / "b", TRAINERS["speculators"]("mtp"), plain)
    samples = [random_sample(0, 20)]
    more = model_store(tmp_path / "store", qwen, samples, (2, 3))
    with pytest.raises(ExportError, match="reads the last state alone, 1 are named"):
        export(more, mtp, tmp_path / "c", boundaries=(2,))
    assert export(more, mtp, tmp_path / "d").boundaries == ()


@pytest.mark.parametrize(("trainer", "name"), [("speculators", "dflash2"), ("specforge", "dflash")])
def test_a_draft_vocabulary_is_refused_where_there_is_none(
    trainer: str, name: str, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match="whole vocabulary of 768 tokens, not of 96"):
        export(store, find_drafter(trainer, name), tmp_path, draft_vocab_size=96)


# --- the last state -----------------------------------------------------------------------


def without_final(tmp_path: Path, boundaries: tuple[int, ...]) -> Store:
    return model_store(
        tmp_path / "store",
        demo.model_path(),
        demo_samples(2, 60),
        boundaries,
        keep_final=False,
        final_norm="none",
    )


def test_boundary_n_is_the_state_before_the_norm_and_no_norm_is_undone(
    with_n: Store, tmp_path: Path
) -> None:
    """Bit for bit what the last layer put out, with its scale; undone, only within rounding."""
    drafter = find_drafter("speculators", "dflash")
    report = export(with_n, drafter, tmp_path / "e", boundaries=(2, 5))
    back = read_back(with_n, report)
    assert back.bit_for_bit and back.is_whole
    assert report.bridge == "pre-norm, from the stored boundary 10: no norm was undone"
    assert report.facts()["final state"] == report.bridge
    item = open_dataset(report.path)[0]
    assert torch.equal(item["verifier_last_hidden_states"], next(iter(with_n)).layer(10))


def test_a_store_without_final_serves_those_that_read_none_and_boundary_n_the_others(
    tmp_path: Path,
) -> None:
    lacking = without_final(tmp_path, (2, 5, 7))
    with pytest.raises(ExportError, match=r"(?s)no final state.*or with boundary 10") as refusal:
        export(lacking, find_drafter("speculators", "eagle3"), tmp_path / "a")
    assert "speculators' eagle3 reads the last state" in str(refusal.value)
    if importlib.util.find_spec("specforge"):
        report = export(lacking, find_drafter("specforge", "dflash"), tmp_path / "b")
        assert read_back(lacking, report).is_whole
        assert report.bridge == "not read"
    (tmp_path / "n").mkdir()
    holding = without_final(tmp_path / "n", (2, 5, 10))
    report = export(holding, find_drafter("speculators", "eagle3"), tmp_path / "c")
    assert read_back(holding, report).bit_for_bit


@needs_specforge
def test_a_state_after_the_norm_is_made_of_boundary_n(store: Store, tmp_path: Path) -> None:
    (tmp_path / "n").mkdir()
    holding = without_final(tmp_path / "n", (2, 5, 10))
    report = export(holding, find_drafter("specforge", "dspark"), tmp_path / "e")
    assert report.bridge == "post-norm, from the stored boundary 10: normed here"
    assert read_back(holding, report).is_whole
    raw = torch.load(report.path / TRAINERS["specforge"]().file(0), weights_only=True)
    index = next(iter(holding.entries))
    final = store[index].final.float()
    torch.testing.assert_close(
        raw["target_last_hidden_states"][0].float(), final, rtol=2**-6, atol=1e-6
    )


# --- rows and folders ---------------------------------------------------------------------


def test_a_pair_of_trained_tokens_is_found() -> None:
    for mask, pair in (([1, 1], True), ([0, 1, 0, 1], False), ([1], False), ([0, 1, 1], True)):
        assert has_pair(torch.tensor(mask).numpy()) is pair


@needs_specforge
def test_rows_that_would_stop_specforges_training_are_left_out_and_counted(
    tmp_path: Path,
) -> None:
    from specforge.algorithms.common.dflash_family_data import normalize_offline_sample

    first, second, third = demo_samples(3, 60)
    second.loss_mask[:] = 0
    second.loss_mask[::2] = 1
    store = model_store(tmp_path / "s", demo.model_path(), [first, second, third], (2, 5, 7))
    report = export(store, find_drafter("specforge", "dflash"), tmp_path / "e")
    assert (report.rows, report.left_out) == (2, 1)
    assert report.facts()["left out"] == "1 without two trained tokens in a row"
    assert read_back(store, report).is_whole
    stored = store[second.index]
    row = {"input_ids": stored.input_ids, "loss_mask": stored.loss_mask.long()}
    with pytest.raises(ValueError, match="two consecutive supervised tokens"):
        normalize_offline_sample({**row, "hidden_states": stored.layer(2)}, 99)


def test_a_drafter_that_reads_the_same_files_takes_the_folder_over(
    store: Store, tmp_path: Path
) -> None:
    export(store, find_drafter("speculators", "eagle3"), tmp_path / "e")
    report = export(store, find_drafter("speculators", "dflash2"), tmp_path / "e")
    assert report.made == 0
    assert "dflash2" in command(report.path)
    with pytest.raises(ExportError, match="another kind: boundaries differ"):
        export(store, find_drafter("speculators", "eagle3"), tmp_path / "e", boundaries=(2, 5))
    export(store, find_drafter("specforge", "eagle3"), tmp_path / "f", boundaries=(2, 4, 5))
    with pytest.raises(ExportError, match="another kind: schema differ"):
        export(store, find_drafter("specforge", "dspark"), tmp_path / "f", boundaries=(2, 4, 5))


def test_an_export_that_was_begun_by_undoing_the_norm_goes_on_so(
    with_n: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions did, whatever the store held; their folder's rows must not be mixed."""
    from hslib.export import export as job

    eagle = find_drafter("speculators", "eagle3")
    usual = job.make_reading
    monkeypatch.setattr(
        job, "make_reading", lambda m, d, p, b, _undo: usual(m, d, p, b, undo_norm=True)
    )
    begun = export(with_n, eagle, tmp_path / "e")
    assert "last_state" not in (begun.path / "export.json").read_text()
    monkeypatch.undo()
    again = export(with_n, eagle, tmp_path / "e")
    assert (again.made, again.bridge) == (0, "pre-norm, from the stored post-norm")


# --- families -----------------------------------------------------------------------------


def test_speculators_norms_gemma_right_in_its_dflash_family_alone(tmp_path: Path) -> None:
    """Why its eagle3 is refused for models whose norm multiplies by 1 + weight."""
    from speculators.models.dflash import DFlashDraftModel
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.train.cli import create_transformer_layer_config

    from hslib.model import read_final_norm

    folder = models.build("gemma3", tmp_path / "gemma")
    norm, states = read_final_norm(folder), torch.randn(7, 64)
    for kind, is_right in ((DFlashDraftModel, True), (Eagle3DraftModel, False)):
        layer = create_transformer_layer_config(str(folder), 1, "qwen3", "silu", 64, [0])
        draft = kind.from_training_args(
            layer,
            draft_vocab_size=models.VOCAB_SIZE,
            target_layer_ids=[2, 3],
            norm_before_residual=True,
            ttt_steps=1,
            verifier_name_or_path=str(folder),
        )
        found = draft.verifier_norm.float()(states)
        assert torch.allclose(found, norm.normed(states), rtol=1e-2, atol=1e-4) is is_right


def test_a_vision_models_norm_embedding_and_head_are_found(tmp_path: Path) -> None:
    """``model.language_model.norm.weight``, as Qwen3-VL and Qwen3.5 have it."""
    folder = with_index(models.build("qwen3_vl", tmp_path / "model"))
    samples = [random_sample(index, 40) for index in range(2)]
    seen = model_store(tmp_path / "store", folder, samples, (2, 3, 4))
    report = export(seen, find_drafter("speculators", "dflash"), tmp_path / "a")
    back = read_back(seen, report)
    assert back.is_whole and not back.bit_for_bit
    assert speculators_step(report.path, "--mask-token-id", "3").gradients_finite
    if importlib.util.find_spec("specforge"):
        report = export(seen, find_drafter("specforge", "dflash"), tmp_path / "b")
        settings = (report.path / "specforge.yaml").read_text()
        assert 'embedding_key: "model.language_model.embed_tokens.weight"' in settings
        assert read_back(seen, report).is_whole
