"""Parameters: unknown names, bad values, layers, models; the notebooks' cells keep the contract."""

import ast
import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from hslib.errors import ParameterError
from hslib.model import parse_layers, read_model
from hslib.model.layers import auto_boundaries
from hslib.parameters import (
    DiagnosisParameters,
    ExportParameters,
    ExtractionParameters,
    Parameters,
    ProbeParameters,
    RowsParameters,
    ServerParameters,
    StatisticsParameters,
)

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_an_unknown_parameter_names_the_nearest_known_one() -> None:
    with pytest.raises(ParameterError, match=r"'concurency'[\s\S]*did you mean 'concurrency'"):
        ExtractionParameters.from_values({"concurency": 8})


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"scan_scope": "all"}, "scan_scope"),
        ({"port": 70000}, "port"),
        ({"shard_index": 2, "num_shards": 2}, "shard_index 2"),
        ({"limit": "many"}, "limit"),
    ],
)
def test_a_bad_value_names_its_parameter(values: dict[str, Any], name: str) -> None:
    model = ServerParameters if "port" in values else ExtractionParameters
    with pytest.raises(ParameterError, match=name):
        model.from_values(values)


def test_an_api_key_comes_from_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = ServerParameters(api_key_env="MY_KEY")
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ParameterError, match="MY_KEY"):
        _ = parameters.api_key
    monkeypatch.setenv("MY_KEY", "secret-value")
    assert parameters.api_key == "secret-value"
    assert "secret-value" not in parameters.model_dump_json()


def test_each_run_has_a_dump_directory_of_its_own() -> None:
    first, second = (ServerParameters(run_dir=name).dump_path for name in ("a", "b"))
    assert first != second
    assert ServerParameters(run_dir="a").dump_path == first


@pytest.mark.parametrize(
    ("notebook", "model"),
    [
        ("00_rows.ipynb", RowsParameters),
        ("01_tokenizer_alignment.ipynb", DiagnosisParameters),
        ("02_server_launch.ipynb", ServerParameters),
        ("04_statistics.ipynb", StatisticsParameters),
        ("03_extraction.ipynb", ExtractionParameters),
        ("05_layer_probe.ipynb", ProbeParameters),
        ("06_training_export.ipynb", ExportParameters),
    ],
)
def test_a_notebooks_parameters_cell_and_its_model_have_the_same_names_and_defaults(
    notebook: str, model: type[Parameters]
) -> None:
    cells = nbformat.read(NOTEBOOKS / notebook, as_version=4).cells
    (cell,) = [c for c in cells if "parameters" in c.metadata.get("tags", [])]
    assert cell.source.startswith("# parameters")
    values: dict[str, Any] = {}
    exec(compile(ast.parse(cell.source), notebook, "exec"), values)
    defaults = model().model_dump()
    shown = set(values) - {"__builtins__", "__annotations__"}
    assert {name: values[name] for name in shown} == {name: defaults[name] for name in shown}
    assert set(defaults) - shown <= {"for_job"}


@pytest.mark.parametrize(("given", "text"), [(3, "3"), (-1, "-1"), ([3, 31], "3,31")])
def test_layers_may_be_a_number_as_papermill_hands_one_over(given: Any, text: str) -> None:
    assert ExtractionParameters.from_values({"layers": given}).layers == text
    with pytest.raises(ParameterError, match="layers"):
        ExtractionParameters.from_values({"layers": True})


def test_layers_auto_are_eagle3s_customary_ones() -> None:
    assert auto_boundaries(61) == (2, 30, 58)
    assert parse_layers("auto", 12) == (2, 6, 9)
    with pytest.raises(ParameterError, match="name them yourself"):
        auto_boundaries(5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3,31,x", "not a list"),
        ("31,3", 'write "3,31"'),
        ("3,3", "ascend"),
        ("0,3", "outside 1..61"),
        ("3,62", "outside 1..61"),
    ],
)
def test_layers_that_cannot_be_captured_say_why(text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_layers(text, 61)


def test_layers_of_the_case_study() -> None:
    assert parse_layers("3,31,59", 61) == (3, 31, 59)


def model_folder(path: Path, config: dict[str, Any], weights: bytes = b"x" * 99) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(weights)
    return path


SIZES = {"num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840}


def test_a_wrappers_text_config_is_the_one_that_counts(tmp_path: Path) -> None:
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": SIZES}
    found = read_model(model_folder(tmp_path / "m", config))
    assert (found.num_layers, found.hidden_size, found.vocab_size) == (61, 7168, 163840)
    assert found.architecture == "KimiK25ForConditionalGeneration"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: (p / "config.json").unlink(), "no config.json"),
        (lambda p: (p / "model.safetensors").unlink(), "no weights"),
        (lambda p: (p / "config.json").write_text("<html>"), "not JSON"),
        (lambda p: (p / "config.json").write_text("{}"), "lacks"),
        (
            lambda p: (p / "model.safetensors").write_text("version https://git-lfs.github.com"),
            "LFS pointer",
        ),
    ],
)
def test_an_incomplete_model_folder_says_what_is_missing(
    tmp_path: Path, spoil: Any, message: str
) -> None:
    folder = model_folder(tmp_path / "m", SIZES)
    spoil(folder)
    with pytest.raises(ParameterError, match=message):
        read_model(folder)


def test_a_model_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="nowhere"):
        read_model(tmp_path / "nowhere")


def test_an_export_lies_by_trainer_drafter_and_dtype_and_the_usual_ones_are_not_named() -> None:
    for values, name in (
        ({}, "speculators"),
        ({"trainer": "specforge"}, "specforge"),
        ({"drafter": "dflash"}, "speculators-dflash"),
        ({"drafter": "mtp", "dtype": "fp8"}, "speculators-mtp-fp8"),
    ):
        assert ExportParameters.from_values(values).export_path.name == name


def test_an_exports_boundaries_are_layers_of_the_model_or_all_that_the_drafter_reads() -> None:
    assert ExportParameters().chosen_boundaries(61) is None
    chosen = ExportParameters.from_values({"boundaries": [3, 31, 59]}).chosen_boundaries(61)
    assert chosen == (3, 31, 59)
    with pytest.raises(ParameterError, match="outside"):
        ExportParameters(boundaries="3,99").chosen_boundaries(61)
