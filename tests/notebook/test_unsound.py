"""Notebook 03 over a store with a spoilt sample: it fails, and names the command that helps."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import server_process
from real.interrupted import FAKE, Interrupted

from hslib.__main__ import main
from hslib.store import Store


@pytest.mark.slow
def test_a_rerun_that_finds_a_spoilt_sample_fails_until_it_is_repaired(
    model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    fake = {"HS_STARTUP": FAKE, **server_process.for_kernels(tmp_path)}
    job = Interrupted(tmp_path, model_of("llama"), fake, num_rows=20)
    job.finish()
    store = Store(job.parameters.store_path)
    file = store.path / store.entries[7].file  # type: ignore[operator]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert job.start("papermill").wait(120) != 0
    said = (tmp_path / "out.ipynb").read_text()
    assert "1 of 20 stored samples are not sound" in said
    named = re.search(r"`python -m hslib (verify \S+ --repair)`", said)
    assert named
    assert main(shlex.split(named[1])) == 1
    assert job.start("papermill").wait(120) == 0
    assert Store(job.parameters.store_path).verify(deep=True).clean
    assert len(Store(job.parameters.store_path)) == 20
