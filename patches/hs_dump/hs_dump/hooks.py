"""The seams in SGLang: what is hooked, what is checked, what plugin.json says.

Nothing here may let an exception reach SGLang once the server runs: a failed dump is that
request's ``error.json``. Only a server that could never dump right is refused, at start.
"""

import importlib.metadata
import inspect
import json
import logging
import os
import pkgutil
import shutil
import stat
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hs_dump import __version__, api_key, loading
from hs_dump.boundaries import CaptureError, parse_boundaries, set_boundaries
from hs_dump.capture import Capture
from hs_dump.writer import Budget, Writer

logger = logging.getLogger(__name__)

CHECKED_WITH = ("0.5.23",)
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch"
# Every name this plugin relies on: dotted target -> parameters that must be there.
_SEAMS = {
    f"{_RUNNER}.init_attention_backends": ("self",),
    f"{_RUNNER}.forward": ("self", "forward_batch"),
    f"{_BATCH}.init_new": ("batch", "model_runner"),
    "sglang.srt.runtime_context.get_parallel": (),
    **loading.SEAMS,
}

_capture: Capture | None = None
_loading = loading.Loading()


def install() -> None:
    """Check the seams and register the hooks, in whichever SGLang process this is."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    api_key.install(HookRegistry, HookType)
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return  # a process without a model (the detokenizer); its start stays quick
    problems = missing_seams()
    if problems:
        write_plugin_json(dump_root(), {"problems": problems})
        return
    HookRegistry.register(f"{_RUNNER}.init_attention_backends", _on_backends, HookType.AFTER)
    HookRegistry.register(f"{_RUNNER}.forward", _on_forward, HookType.AFTER)
    HookRegistry.register(f"{_BATCH}.init_new", _on_batch, HookType.AFTER)
    loading.install(_loading, HookRegistry, HookType, _refuse_weights)


def missing_seams() -> list[str]:
    """One line for each name or parameter that this SGLang does not have."""
    problems = []
    for target, parameters in _SEAMS.items():
        try:
            found = inspect.signature(pkgutil.resolve_name(target)).parameters
        except Exception as error:
            problems.append(f"{target} is not there ({type(error).__name__}: {error})")
            continue
        absent = [name for name in parameters if name not in found]
        if absent:
            problems.append(f"{target} has no parameter {', '.join(absent)}")
    if problems:
        problems.append(
            f"hs_dump {__version__} was checked with SGLang {', '.join(CHECKED_WITH)}; "
            f"this is {sglang_version()}"
        )
    return problems


def sglang_version() -> str:
    return importlib.metadata.version("sglang")


def dump_root() -> Path:
    """The dump directory, made private to this user.

    Raises:
        CaptureError: when it is a link or belongs to another user.
    """
    root = Path(os.environ["SGLANG_HS_DUMP_DIR"])
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(root)
    if not stat.S_ISDIR(found.st_mode):
        raise CaptureError(f"{root} is a link, not a directory: name the directory itself")
    if found.st_uid != os.geteuid():
        raise CaptureError(f"{root} belongs to user {found.st_uid}: choose a directory of your own")
    root.chmod(0o700)
    return root


def write_plugin_json(root: Path, content: dict[str, Any], dp_rank: int = 0) -> None:
    """Replace ``plugin.json`` (``plugin.dp1.json`` and so on for further replicas)."""
    name = "plugin.json" if dp_rank == 0 else f"plugin.dp{dp_rank}.json"
    full = {
        "pid": os.getpid(),
        "plugin_version": __version__,
        "sglang_version": sglang_version(),
        "written_at": time.time(),
        "problems": [],
        **content,
    }
    temporary = root / f".{name}-{os.getpid()}"
    temporary.write_text(json.dumps(full, indent=1))
    temporary.rename(root / name)


def _refuse_weights(problem: str) -> None:
    """Say why the load fails, whichever rank finds it: the others see their own part alone."""
    from sglang.srt.runtime_context import get_parallel

    write_plugin_json(dump_root(), {"problems": [problem]}, get_parallel().dp_rank or 0)


def _on_backends(_result: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After SGLang configured its own capture and before any CUDA graph is recorded."""
    global _capture
    if runner.is_draft_worker:
        return
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    dp_rank = parallel.dp_rank or 0
    try:
        boundaries = prepare_model(runner, parallel)
        if parallel.tp_rank != 0:
            return  # every tensor-parallel rank sees the same states; one writes
        root = dump_root()
        _capture = make_capture(root, runner, boundaries, parallel, dp_rank)
        weights = _loading.describe(runner.model_config.model_path)
        write_plugin_json(root, {**describe(runner), **weights, **_capture.describe()}, dp_rank)
    except Exception as error:
        if parallel.tp_rank == 0:
            report = {**describe(runner), "problems": [str(error)]}
            write_plugin_json(Path(os.environ["SGLANG_HS_DUMP_DIR"]), report, dp_rank)
        raise


def prepare_model(runner: Any, parallel: Any) -> tuple[int, ...]:
    """Refuse what could not be dumped right, and set the boundaries.

    Raises:
        CaptureError: with the model's class and what to change.
    """
    name = type(runner.model).__name__
    if parallel.attn_dp_size > 1:
        raise CaptureError(f"{name}: attention data parallelism is not supported; drop it")
    if runner.dtype != torch.bfloat16:
        raise CaptureError(
            f"{name} runs in {runner.dtype}: dumps are bfloat16, start with --dtype bfloat16"
        )
    return set_boundaries(runner.model, parse_boundaries(_setting("BOUNDARIES", "")))


def make_capture(
    root: Path, runner: Any, boundaries: tuple[int, ...], parallel: Any, dp_rank: int
) -> Capture:
    replicas = parallel.dp_size
    free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
    limit = int(_setting("BUDGET_BYTES", "0")) or free // 2
    budget = Budget(root, limit // replicas, float(_setting("WAIT_S", "120")))
    meta = {
        "boundaries": list(boundaries),
        "pid": os.getpid(),
        "dp_rank": dp_rank,
        "plugin_version": __version__,
        "sglang_version": sglang_version(),
    }
    hidden_size = runner.model_config.hidden_size
    remove_leftovers(root)
    writer = Writer(root, len(boundaries) + 1, hidden_size, budget, meta)
    return Capture(writer, hidden_size, boundaries, _setting("ALL", "") == "1", dp_rank, replicas)


def remove_leftovers(root: Path) -> None:
    """Remove unfinished dumps whose process is gone."""
    for path in root.glob(".tmp-*"):
        pid = path.name.split("-")[1]
        if not pid.isdigit() or not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)


def describe(runner: Any) -> dict[str, Any]:
    """What plugin.json says of the model."""
    config = runner.model_config
    return {
        "model_path": config.model_path,
        "model_class": type(runner.model).__name__,
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "dtype": str(runner.dtype).removeprefix("torch."),
        "checked_with_this_sglang": sglang_version() in CHECKED_WITH,
    }


def _on_batch(batch_info: Any, _cls: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
    """Remember each request's full length: the forward itself only knows the chunk's."""
    if _capture is None:
        return
    try:
        batch_info.hs_dump_totals = [len(req.origin_input_ids) for req in batch.reqs]
    except Exception:  # the forward then fails to split, which becomes its requests' error.json
        logger.exception("hs_dump: requests without their lengths")


def _on_forward(output: Any, _runner: Any, forward_batch: Any, *_args: Any, **_kw: Any) -> None:
    if _capture is None:
        return
    try:
        _capture.take(forward_batch, output.logits_output)
    except Exception as error:
        logger.exception("hs_dump: a forward could not be captured")
        _capture.fail_all(forward_batch, f"{type(error).__name__}: {error}")


def _setting(name: str, default: str) -> str:
    return os.environ.get(f"SGLANG_HS_DUMP_{name}") or default
