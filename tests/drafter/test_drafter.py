"""speculators' drafter, trained for a moment: it learns, is saved, and is loaded again."""

from pathlib import Path

import pytest
from make.rows import demo_samples
from make.stores import model_store

from hslib import demo
from hslib.drafter import train_both
from hslib.drafter.eagle3 import Point, judge, train_drafter
from hslib.drafter.experiment import next_token_accuracy
from hslib.drafter.misfiled import misfile
from hslib.errors import ExportError
from hslib.export import SpecForgeFormat, SpeculatorsFormat, export_store
from hslib.parameters import ExportParameters
from hslib.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    path = tmp_path_factory.mktemp("drafter") / "store"
    return model_store(path, demo.model_path(), demo_samples(40, 90), (2, 5, 7))


@pytest.fixture(scope="module")
def export(store: Store) -> Path:
    out = store.path.parent / "export"
    export_store(store, out, SpeculatorsFormat(), demo.model_path(), draft_vocab_size=200)
    return out


def test_a_drafter_learns_and_its_checkpoint_is_the_same_drafter(
    export: Path, tmp_path: Path
) -> None:
    seen: list[Point] = []
    training = train_drafter(
        export, export, demo.model_path(), tmp_path / "drafter", 30, on_point=seen.append
    )
    assert tuple(seen) == training.points and training.points[-1].step == 30
    assert training.points[-1].loss < training.points[0].loss
    assert training.acceptance[0] > 0.3
    assert training.acceptance[0] >= training.acceptance[1] >= training.acceptance[2]
    assert judge(training.checkpoint, export) == pytest.approx(training.acceptance)


def test_an_untrained_drafter_accepts_next_to_nothing(export: Path, tmp_path: Path) -> None:
    """Negative control: what is learnt above is learnt from the data."""
    training = train_drafter(export, export, demo.model_path(), tmp_path / "d", 1)
    assert training.acceptance[0] < 0.1


def test_a_folder_that_is_no_export_for_speculators_is_refused(
    store: Store, tmp_path: Path
) -> None:
    export_store(store, tmp_path / "e", SpecForgeFormat(), demo.model_path())
    for folder in (tmp_path / "e", tmp_path):
        with pytest.raises(ExportError, match="no export for speculators"):
            train_drafter(folder, folder, demo.model_path(), tmp_path / "d", 1)


def test_a_misfiled_store_is_sound_but_holds_the_states_of_the_sample_before(
    store: Store, tmp_path: Path
) -> None:
    wrong = misfile(store, tmp_path / "wrong")
    assert wrong.verify(deep=True).clean
    assert list(wrong.entries) == list(store.entries)
    indices = list(store.entries)
    for position, index in enumerate(indices):
        own, other, found = store[index], store[indices[position - 1]], wrong[index]
        tokens = min(own.entry.num_tokens, other.entry.num_tokens)
        assert found.input_ids.tolist() == own.input_ids[:tokens].tolist()
        assert found.loss_mask.tolist() == own.loss_mask[:tokens].tolist()
        assert bool((found.hidden_states == other.hidden_states[:tokens]).all())
    assert len(misfile(store, tmp_path / "wrong")) == len(indices), "again: nothing is added"


def test_right_final_states_name_the_next_token_and_misfiled_ones_do_not(
    store: Store, tmp_path: Path
) -> None:
    model = demo.model_path()
    right = next_token_accuracy(store, model)
    wrong = next_token_accuracy(misfile(store, tmp_path / "wrong"), model)
    assert right > 0.4
    assert wrong < right / 2, "short rows of one template begin alike"


def test_nothing_is_trained_for_other_drafters_or_in_no_steps(store: Store, tmp_path: Path) -> None:
    for values in ({"trainer": "specforge"}, {"drafter": "dflash"}, {"num_steps": 0}):
        parameters = ExportParameters.from_values({"run_dir": str(tmp_path), **values})
        assert train_both(parameters, store, tmp_path) is None
    assert not list(tmp_path.iterdir())
