"""The demo's store is made where it is meant and missing; nobody else's is."""

from pathlib import Path

import pytest
from make.stores import made_up_rows, write_store

from hslib.errors import ServerError, StoreError
from hslib.extract import require_store
from hslib.parameters import ExtractionParameters, StatisticsParameters
from hslib.server import endpoints as serving


@pytest.fixture(autouse=True)
def _runs_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HSLIB_RUNS_ROOT", str(tmp_path))


def test_a_store_that_is_there_is_taken_and_its_size_said(tmp_path: Path) -> None:
    write_store(tmp_path / "runs/demo/store", made_up_rows(3))
    lines: list[str] = []
    assert len(require_store(StatisticsParameters(), lines.append)) == 3
    assert lines == ["ready: 3 samples are in the store"]


@pytest.mark.parametrize("values", [{"run_dir": "runs/kimi"}, {"store_dir": "somewhere"}])
def test_another_runs_missing_store_is_an_error_and_not_made(
    values: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "open_endpoints", lambda *_: pytest.fail("a server was started"))
    with pytest.raises(StoreError, match="the store is missing"):
        require_store(StatisticsParameters.from_values(values))


def test_the_demos_missing_store_is_extracted_with_the_defaults_of_notebook_03(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[ExtractionParameters] = []

    def refuse(parameters: ExtractionParameters, *_: object) -> None:
        asked.append(parameters)
        raise ServerError("no server today")

    monkeypatch.setattr(serving, "open_endpoints", refuse)
    with pytest.raises(ServerError, match="no server today"):
        require_store(StatisticsParameters())
    assert asked == [ExtractionParameters()]
