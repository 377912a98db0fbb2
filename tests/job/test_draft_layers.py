"""A job whose ``layers`` are a draft's: the store has numbers, and the job says where from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.server import SAMPLES, FakeServer
from make.drafts import write_draft
from make.dumps import BOUNDARIES
from make.jobs import prepare, run
from make.rows import write_rows

from hslib.errors import HslibError, ServerError
from hslib.job import input_problems
from hslib.parameters import ExtractionParameters
from hslib.store import Store


@pytest.fixture
def parameters(fake: FakeServer, tmp_path: Path) -> Callable[..., ExtractionParameters]:
    """A job for a draft that reads the outputs of the given layers."""

    def make(outputs: list[int], **values: Any) -> ExtractionParameters:
        draft = write_draft(tmp_path / "draft", fake.model, None, target_layer_ids=outputs)
        defaults = {
            "run_dir": str(tmp_path / "run"),
            "dataset_path": str(write_rows(tmp_path / "rows.jsonl", SAMPLES[:3])),
            "model_path": str(fake.model),
            "layers": str(draft),
            "server_url": fake.url,
            "dump_dir": str(fake.dumps),
        }
        return ExtractionParameters.from_values({**defaults, **values})

    return make


def test_the_store_has_boundaries_and_no_path(parameters: Any, tmp_path: Path) -> None:
    job = parameters([b - 1 for b in BOUNDARIES])
    source = prepare(job).facts()["layers from"]
    assert source.startswith(f"{job.layers}, target_layer_ids [0, 2, 4]")
    run(job).require_whole()
    manifest = (job.store_path / "manifest.json").read_text()
    assert Store(job.store_path).manifest.boundaries == BOUNDARIES
    assert str(tmp_path / "draft") not in manifest
    record = json.loads((job.run_path / "run.json").read_text())
    assert record["parameters"]["layers"] == job.layers
    again = run(parameters([0, 2, 4], layers="1,3,5"))
    assert again.totals.already_done == 3, "numbers resume what a draft began"
    assert "layers from" not in prepare(parameters([0, 2, 4], layers="1,3,5")).facts()


def test_a_server_that_captures_other_layers_than_the_draft_reads_is_refused(
    parameters: Any,
) -> None:
    with pytest.raises(ServerError, match='set layers = "1,3,5"') as error:
        run(parameters([1, 2, 4]))
    assert error.value.fields["expected"] == (2, 3, 5)


def test_a_draft_that_can_not_be_read_is_said_before_a_server_starts(parameters: Any) -> None:
    problems: list[HslibError] = input_problems(parameters([0], layers="./gone"))
    assert ["draft ./gone: it is not there" in str(problem) for problem in problems] == [True]
