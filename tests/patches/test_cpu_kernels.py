"""The stand-in kernels: importable, honest when called, found by SGLang as a plugin."""

import os
import subprocess
import sys
from pathlib import Path

PATCHES = Path(__file__).parents[2] / "patches"


def run(code: str) -> str:
    """Run code as a server would, with the folder first on its path."""
    environment = {**os.environ, "PYTHONPATH": str(PATCHES / "cpu_kernels")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    return done.stdout + done.stderr


def test_any_kernel_can_be_imported() -> None:
    code = "from sgl_kernel import rmsnorm, copy_all_layer_kv_cache_cpu as c; print('fine', c)"
    assert "fine <missing kernel sgl_kernel.copy_all_layer_kv_cache_cpu>" in run(code)


def test_a_kernel_that_is_called_raises_with_its_name() -> None:
    text = run("import sgl_kernel; sgl_kernel.rmsnorm(1, eps=2)")
    assert "NotImplementedError: sgl_kernel.rmsnorm was called" in text


def test_there_are_no_submodules_so_that_sglangs_own_fallbacks_take_over() -> None:
    assert "ModuleNotFoundError" in run("import sgl_kernel.scalar_type")


def test_the_attention_choice_is_an_sglang_plugin_while_the_folder_is_on_the_path() -> None:
    code = (
        "import importlib.metadata as m;"
        "print(sorted(e.name for e in m.entry_points(group='sglang.srt.plugins')))"
    )
    assert "'hs_cpu_kernels', 'hs_dump'" in run(code)
