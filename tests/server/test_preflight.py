"""What is wrong with a model folder is said before a server starts; its code is never run unasked.

The servers and the loaders are SGLang's own.
"""

import dataclasses
import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from make.drafts import write_draft
from real.servers import end_server
from real.warm import WarmServers

from hslib.errors import ServerError
from hslib.parameters import ServerParameters
from hslib.server import command_line, preflight
from hslib.server import launch as server
from hslib.server.remote_code import TRUST_FLAG, ask_sglang, remote_files


@pytest.fixture
def folder(tmp_path: Path, model_of: Callable[[str], Path]) -> Path:
    """A tiny Llama of the test's own."""
    return Path(shutil.copytree(model_of("llama"), tmp_path / "model"))


def parameters_of(folder: Path | str, tmp_path: Path, **values: Any) -> ServerParameters:
    places = {"run_dir": str(tmp_path / "run"), "dump_dir": str(tmp_path / "dumps")}
    defaults = {"model_path": str(folder), "layers": "1,3,5"}
    return ServerParameters.model_validate({**defaults, **places, **values})


def problems_of(folder: Path, tmp_path: Path, **values: Any) -> str:
    plan, problems = preflight.preflight(parameters_of(folder, tmp_path, **values))
    assert plan is None
    assert all(problem.fix for problem in problems)
    return "\n".join(map(str, problems))


# --- layers ---------------------------------------------------------------------------------


def test_a_draft_names_the_layers_and_the_table_says_so(folder: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", folder, None, target_layer_ids=[0, 2, 5])
    plan, problems = preflight.preflight(parameters_of(folder, tmp_path, layers=str(draft)))
    assert plan is not None and plan.boundaries == (1, 3, 6), problems
    facts = preflight.facts(plan, problems)
    assert facts["boundaries to capture"] == "1, 3, 6"
    assert facts["layers from"].startswith(f"{draft}, target_layer_ids [0, 2, 5]: the outputs")
    assert command_line.environment(plan)["SGLANG_HS_DUMP_BOUNDARIES"] == "1,3,6"


def test_a_draft_for_another_model_is_a_problem_with_its_cure(folder: Path, tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "draft", folder, [0, 2, 5], vocab_size=5)
    text = problems_of(folder, tmp_path, layers=str(draft))
    assert f"parameter 'layers': draft {draft}: it is a draft for another target" in text
    assert "vocab_size" in text
    assert "it is not there" in problems_of(folder, tmp_path, layers=f"{tmp_path}/gone")


# --- files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "generation_config.json"])
def test_a_link_that_leads_nowhere_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "blobs/gone")
    text = problems_of(folder, tmp_path)
    assert f"{folder / name} is not there: it is a link to {tmp_path / 'blobs/gone'}" in text
    assert "copy the folder with what it links to" in text


def test_a_dangling_link_in_a_hub_cache_comes_with_the_command_that_mends_it(
    folder: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--Some--Model/snapshots/abc"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../blobs/gone")
    assert "hf download Some/Model" in problems_of(snapshot, tmp_path)


def test_links_that_lead_somewhere_and_links_that_no_server_reads_are_no_problem(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    (folder / "README.md").symlink_to(tmp_path / "gone")
    assert preflight.preflight(parameters_of(folder, tmp_path))[1] == []


def test_shards_that_the_index_names_and_the_folder_lacks_are_named(
    folder: Path, tmp_path: Path
) -> None:
    shards = {"a.weight": "model.safetensors", "b.weight": "two.safetensors", "c": "3.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    text = problems_of(folder, tmp_path)
    for name in ("two.safetensors", "3.safetensors"):
        assert f"{folder / name} is not there: it is named in {index.name}" in text
    assert f"{folder / 'model.safetensors'} is not there" not in text
    index.write_text("<html>")
    assert "is no index of shards" in problems_of(folder, tmp_path)
    index.write_text(json.dumps({"weight_map": {"a.weight": "model.safetensors"}}))
    assert preflight.preflight(parameters_of(folder, tmp_path))[1] == []


def test_a_relative_model_path_is_absolute_in_the_plan(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    plan = preflight.require(parameters_of(folder.name, tmp_path))
    assert plan.model.path == folder
    assert str(folder) in command_line.command(plan)


def test_two_counts_of_layers_are_in_the_facts(folder: Path, tmp_path: Path) -> None:
    plan, problems = preflight.preflight(parameters_of(folder, tmp_path))
    assert "layers counted" not in preflight.facts(plan, problems)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_layers": 7}))
    plan, problems = preflight.preflight(parameters_of(folder, tmp_path))
    assert "num_layers says 7" in preflight.facts(plan, problems)["layers counted"]


# --- code in the folder ---------------------------------------------------------------------

TOKENIZER = """
from transformers import PreTrainedTokenizer
open({marker!r}, "w").write("ran")
class Own(PreTrainedTokenizer):
    vocab_size = 512
    def get_vocab(self): return {{str(n): n for n in range(512)}}
    def _tokenize(self, text): return list(text)
    def _convert_token_to_id(self, token): return 5
    def _convert_id_to_token(self, index): return str(index)
"""


@pytest.fixture
def own_tokenizer(folder: Path, tmp_path: Path) -> Path:
    """A tiny Llama whose tokenizer is code beside it, as Kimi-K2's is; running it leaves a mark."""
    (folder / "own.py").write_text(TOKENIZER.format(marker=str(tmp_path / "ran")))
    names = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "tiktoken.model").write_text("")
    return folder


@pytest.mark.slow
def test_a_server_starts_without_the_tokenizer_that_is_code(
    own_tokenizer: Path,
    tmp_path: Path,
    start_server: Callable[..., server.ServerState],
    warm: WarmServers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And captures: ``start`` ends with a canary request that came back right."""
    monkeypatch.setattr(preflight, "ask_sglang", functools.cache(ask_sglang))  # 10 s a question
    plan = preflight.require(parameters_of(own_tokenizer, tmp_path))
    assert plan.skip_tokenizer
    state = start_server(own_tokenizer)
    assert state.model_path == str(own_tokenizer)
    end_server(state)
    assert not (tmp_path / "ran").exists()
    # control: SGLang given the tokenizer dies of it
    monkeypatch.setattr(server, "spawn", warm.spawn)
    failing = server.launch(dataclasses.replace(plan, skip_tokenizer=False))
    try:
        with pytest.raises(ServerError, match="contains custom code which must be executed"):
            server.wait_ready(failing, 400)
    finally:
        end_server(failing)


def test_a_trusted_tokenizer_is_left_to_the_server(own_tokenizer: Path, tmp_path: Path) -> None:
    plan = preflight.require(parameters_of(own_tokenizer, tmp_path, extra_args=[TRUST_FLAG]))
    assert not plan.skip_tokenizer
    assert TRUST_FLAG in command_line.command(plan)


@pytest.mark.slow
def test_a_model_type_that_is_code_in_the_folder_is_refused_with_the_flag(
    folder: Path, tmp_path: Path
) -> None:
    config = json.loads((folder / "config.json").read_text())
    own = {"model_type": "somebodys_own", "auto_map": {"AutoConfig": "own.Own"}}
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    text = problems_of(folder, tmp_path)
    assert f"SGLang can't read {folder} without running code that lies there (config.json)" in text
    assert f'extra_args = ["{TRUST_FLAG}"]' in text
    assert not (tmp_path / "ran").exists()
    preflight.require(parameters_of(folder, tmp_path, extra_args=[TRUST_FLAG]))


@pytest.mark.slow
def test_code_that_sglang_does_not_need_asks_for_no_flag(folder: Path) -> None:
    """As DeepSeek-V3's: its config names code, and SGLang has a class of its own."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "auto_map": {"AutoConfig": "gone.Own"}})
    )
    assert remote_files(folder) == ["config.json"]
    assert ask_sglang(sys.executable, folder)[0] == ""


def test_a_folder_that_names_no_code_is_not_asked_about(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "ask_sglang", lambda *_: pytest.fail("asked SGLang"))
    plan = preflight.require(parameters_of(folder, tmp_path))
    assert plan.skip_tokenizer, "there is none"
    (folder / "tokenizer.json").write_text("{}")
    assert not preflight.require(parameters_of(folder, tmp_path)).skip_tokenizer


def test_an_sglang_that_cannot_be_asked_refuses_nothing(folder: Path) -> None:
    assert ask_sglang("/no/such/python", folder) == ("", False)
    assert ask_sglang("/bin/true", folder) == ("", False)
