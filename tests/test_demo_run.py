"""A notebook that reads the demo's store finds it, or makes it; no other is made up."""

from pathlib import Path

import pytest
from support import demo_samples, model_store

from hslib import demo
from hslib.config import ProbeParameters
from hslib.demo.run import open_run_store
from hslib.errors import JobError, StoreError


@pytest.fixture(autouse=True)
def _runs_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HSLIB_RUNS_ROOT", str(tmp_path))


def test_the_runs_own_store_is_opened_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "runs/demo/store"
    model_store(path, demo.model_path(), demo_samples(2, 60), (2, 5, 7))
    parameters = ProbeParameters()
    assert len(open_run_store(parameters, parameters.store_path, named=False)) == 2


@pytest.mark.parametrize("values", [{"run_dir": "runs/mine"}, {"store_dir": "somewhere"}])
def test_a_store_that_was_named_or_is_another_runs_is_never_made_up(
    tmp_path: Path, values: dict[str, str]
) -> None:
    parameters = ProbeParameters.from_values(values)
    with pytest.raises(StoreError, match="not a store"):
        open_run_store(parameters, parameters.store_path, named=bool(parameters.store_dir))
    assert not list(tmp_path.rglob("*.log"))


def test_an_extraction_that_fails_is_an_error_with_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    parameters = ProbeParameters()
    with pytest.raises(JobError, match=r"demo-extraction\.log"):
        open_run_store(parameters, parameters.store_path, named=False)


@pytest.mark.slow
def test_the_demos_store_is_extracted_where_there_is_none(tmp_path: Path) -> None:
    parameters = ProbeParameters()
    store = open_run_store(parameters, parameters.store_path, named=False)
    assert len(store) == 256
    assert store.path == tmp_path / "runs/demo/store"
