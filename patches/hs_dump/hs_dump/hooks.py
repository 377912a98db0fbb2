"""The plugin's hooks in SGLang, and ``plugin.json``.

While the server runs no exception of the plugin may reach SGLang: a dump that fails becomes its
request's ``error.json``. A server that could never dump right is refused at start.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hs_dump import __version__, loading, server_flags
from hs_dump.capture import Capture, is_dumped
from hs_dump.proof import SEAMS, Proof
from hs_dump.recorder import Recorder
from hs_dump.stack import CaptureError, find_stack, parse_boundaries
from hs_dump.writer import Budget, Writer

logger = logging.getLogger(__name__)

CHECKED_WITH = ("0.5.23",)
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_STAGE = "sglang.srt.layers.layer_boundary.stage"
_BATCH = "sglang.srt.model_executor.forward_batch_info.ForwardBatch"
# Every name this plugin relies on: dotted target -> parameters that must be there.
_SEAMS = {
    f"{_RUNNER}.init_attention_backends": ("self",),
    f"{_RUNNER}.forward": ("self", "forward_batch"),
    f"{_BATCH}.init_new": ("batch", "model_runner"),
    "sglang.srt.runtime_context.get_parallel": (),
    "sglang.srt.layers.logits_processor.LogitsProcessor.forward": ("hidden_states", "lm_head"),
    f"{_STAGE}.StageBoundary.prepare": ("hidden_states", "forward_batch"),
    f"{_STAGE}.StageBoundary._prepare_attention": ("capture",),
    **loading.SEAMS,
}
# Settings that split the states over ranks: field of get_parallel() -> (harmless value, name).
_SPLITS = {
    "attn_dp_size": (1, "attention data parallelism (--attn-dp-size, --enable-dp-attention)"),
    "attn_cp_size": (1, "context parallelism (--attn-cp-size, --enable-prefill-cp)"),
    "pp_size": (1, "pipeline parallelism (--pp-size)"),
    "enable_layernorm_sp": (False, "sequence parallelism (--enable-layernorm-sp)"),
    "enable_attn_tp_input_scattered": (False, "--enable-attn-tp-input-scattered"),
}

_capture: Capture | None = None  # on the rank that writes
_recorder: Recorder | None = None  # on every rank
_loading = loading.Loading()


def install() -> None:
    """Check the seams and register the hooks in this process of SGLang."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    server_flags.install(HookRegistry, HookType)
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return  # a process without a model (the detokenizer); its start stays quick
    problems = missing_seams()
    if problems:
        write_plugin_json(dump_root(), {"problems": problems})
        return
    HookRegistry.register(f"{_RUNNER}.init_attention_backends", _on_backends, HookType.AFTER)
    HookRegistry.register(f"{_RUNNER}.forward", _around_forward, HookType.AROUND)
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
    """Write why the load fails; any rank may find it, since each sees only its part."""
    from sglang.srt.runtime_context import get_parallel

    write_plugin_json(dump_root(), {"problems": [problem]}, get_parallel().dp_rank or 0)


def _on_backends(_result: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """After the model is loaded and before any CUDA graph is recorded."""
    global _capture, _recorder
    if runner.is_draft_worker:
        return
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    dp_rank = parallel.dp_rank or 0
    try:
        writes = parallel.tp_rank == 0  # every tensor-parallel rank sees the same states
        _recorder = make_recorder(runner, parallel, writes)
        if not writes:
            return
        root = dump_root()
        about = describe(runner) | _loading.describe(runner.model_config.model_path)
        _capture = make_capture(root, runner, _recorder, parallel, about)
        write_plugin_json(root, {**about, **_capture.describe(), "proven": False}, dp_rank)
    except Exception as error:
        # the first rank that refuses ends all of them, so each writes to plugin.json itself
        report = {**describe(runner), "problems": [str(error)]}
        write_plugin_json(Path(os.environ["SGLANG_HS_DUMP_DIR"]), report)
        raise


def make_recorder(runner: Any, parallel: Any, writes: bool) -> Recorder:
    """Hook the model, or refuse one whose states could not be dumped right.

    Raises:
        CaptureError: with the model's class and what to change.
    """
    name, config = type(runner.model).__name__, runner.model_config
    refuse_split_states(name, parallel)
    if runner.dtype != torch.bfloat16:
        raise CaptureError(
            f"{name} runs in {runner.dtype}: dumps are bfloat16, start with --dtype bfloat16"
        )
    stores_final, seam = _setting("FINAL", "1") != "0", _setting("SEAM", "")
    if seam and seam not in SEAMS:
        raise CaptureError(f"SGLANG_HS_DUMP_SEAM={seam!r}: known are {', '.join(SEAMS)}")
    stack = find_stack(runner.model, config.num_hidden_layers, config.hidden_size)
    boundaries = parse_boundaries(_setting("BOUNDARIES", ""), len(stack.layers))
    if not boundaries and not stores_final:
        raise CaptureError("nothing is captured: SGLANG_HS_DUMP_BOUNDARIES is empty, FINAL is 0")
    sizes = (config.hidden_size, config.vocab_size)
    return Recorder(stack, boundaries, stores_final, sizes, writes, seam)


def refuse_split_states(name: str, parallel: Any) -> None:
    """Refuse settings under which no rank holds every token's state at every boundary.

    Raises:
        CaptureError: with the model's class and the setting.
    """
    for field, (harmless, setting) in _SPLITS.items():
        if getattr(parallel, field) != harmless:
            raise CaptureError(f"{name}: {setting} is not supported; drop it")


def make_capture(
    root: Path, runner: Any, recorder: Recorder, parallel: Any, about: dict[str, Any]
) -> Capture:
    replicas, dp_rank = parallel.dp_size, parallel.dp_rank or 0
    free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
    limit = int(_setting("BUDGET_BYTES", "0")) or free // 2
    budget = Budget(root, limit // replicas, float(_setting("WAIT_S", "120")))
    meta = {
        "boundaries": list(recorder.boundaries),
        "stores_final": recorder.stores_final,
        "pid": os.getpid(),
        "dp_rank": dp_rank,
        "plugin_version": __version__,
        "sglang_version": sglang_version(),
    }
    hidden_size = runner.model_config.hidden_size
    remove_leftovers(root)
    writer = Writer(root, len(recorder.places), hidden_size, budget, meta)
    accepts = _setting("ACCEPT_UNWITNESSED", "") == "1"

    def on_proof(proof: Proof) -> None:
        unwitnessed = proof.unwitnessed()
        problems = [] if accepts else [_refused(runner, s, r) for s, r in unwitnessed.items()]
        told = {"proven": True, "capture": proof.describe(), "unwitnessed": unwitnessed}
        content = {**about, **capture.describe(), **told, "problems": problems}
        write_plugin_json(root, content, dp_rank)

    dump_all = _setting("ALL", "") == "1"
    capture = Capture(writer, recorder, dump_all, accepts, on_proof, dp_rank, replicas)
    return capture


def _refused(runner: Any, state: str, reason: str) -> str:
    return f"{type(runner.model).__name__}, {state}: {reason}"


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
        "device": device_name(runner.device),
        "checked_with_this_sglang": sglang_version() in CHECKED_WITH,
    }


def device_name(device: torch.device | str) -> str:
    """What a person calls it: "NVIDIA H200", "cpu"."""
    kind = torch.device(device).type
    return torch.cuda.get_device_name() if kind == "cuda" else kind


def _on_batch(batch_info: Any, _cls: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
    """Remember each request's full length: the pass itself knows only its chunk's."""
    if _capture is None:
        return
    try:
        batch_info.hs_dump_totals = [len(req.origin_input_ids) for req in batch.reqs]
    except Exception:  # without lengths the pass can't be split: its requests get an error.json
        logger.exception("hs_dump: requests without their lengths")


def _around_forward(
    forward: Any, runner: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """Switch the hooks on for a pass with rows to dump, then take its states."""
    if runner.is_draft_worker or _recorder is None:
        return forward(runner, forward_batch, *args, **kwargs)
    if not is_dumped(forward_batch, _setting("ALL", "") == "1"):
        return forward(runner, forward_batch, *args, **kwargs)
    try:
        _guarded(forward_batch, _begin, forward_batch)
        output = forward(runner, forward_batch, *args, **kwargs)
        if _capture is not None:
            _guarded(forward_batch, _capture.take, forward_batch, output)
        return output
    finally:
        _recorder.seen.clear()
        if _capture is not None:
            _capture.end()


def _begin(forward_batch: Any) -> None:
    """Start a pass, on every rank: a stage's hook may complete a sum over all ranks."""
    assert _recorder is not None
    _recorder.seen.begin(sum(forward_batch.extend_seq_lens_cpu))
    if _capture is not None:
        _capture.begin(forward_batch)


def _guarded(forward_batch: Any, step: Callable[..., None], *arguments: Any) -> None:
    """Run a step; an exception becomes the requests' error.json and does not reach SGLang."""
    try:
        step(*arguments)
    except Exception as error:
        logger.exception("hs_dump: a forward could not be captured")
        if _capture is not None:
            _capture.fail_all(forward_batch, f"{type(error).__name__}: {error}")


def _setting(name: str, default: str) -> str:
    return os.environ.get(f"SGLANG_HS_DUMP_{name}") or default
