"""What is wrong with parameters is said all at once, by name and value, and never as a whole."""

from typing import Any

import pytest

from hslib.errors import ParameterError
from hslib.parameters import ExtractionParameters, RowsParameters


def said(**values: Any) -> str:
    with pytest.raises(ParameterError) as error:
        ExtractionParameters.from_values(values)
    return str(error.value)


def test_a_bad_value_is_one_line_with_its_name_and_value() -> None:
    (line,) = said(limit="many", concurrency=4).splitlines()
    assert line.startswith("parameter 'limit' is 'many': it should be a valid integer")


def test_everything_that_is_wrong_is_listed_at_once() -> None:
    first, *lines = said(limit="many", concurency=4, scan_scope="all").splitlines()
    assert first.startswith("3 things are wrong")
    assert [line.split("'")[1] for line in lines] == ["concurency", "scan_scope", "limit"]
    assert "did you mean 'concurrency'" in lines[0]
    assert "'request' or 'directory'" in lines[1]


def test_parameters_that_exclude_each_other_are_named_without_all_the_others() -> None:
    text = said(shard_index=3, num_replicas=2, dataset_path="rows.jsonl")
    assert "shard_index 3" in text and "num_replicas = 2" in text
    assert "rows.jsonl" not in text


def test_a_value_of_two_possible_types_is_one_line() -> None:
    assert said(server_url=5) == "parameter 'server_url' is 5: it should be str or list[str]"


def test_a_list_given_as_text_says_how_one_is_given() -> None:
    assert "-y 'extra_args: ...'" in said(extra_args="--trust-remote-code")


def test_a_long_value_is_cut() -> None:
    assert len(said(limit=list(range(1000)))) < 200


def test_what_does_not_go_together_in_notebook_00_is_said_in_the_same_way() -> None:
    with pytest.raises(ParameterError) as error:
        RowsParameters.from_values({"samples": 3})
    assert str(error.value) == "'samples': only with 'regenerate'"
