"""An SGLang server's command line and environment, as capture needs them."""

import os
from collections.abc import Sequence
from pathlib import Path

from hslib.server.preflight import LaunchPlan

_PATCHES = Path(__file__).parents[2] / "patches"
_NO_LIBRARY = "/nonexistent/libnccl.so"
_CPU_TOTAL_TOKENS = 65536  # KV pool on a CPU; SGLang's default would take most of the memory


def command(plan: LaunchPlan) -> list[str]:
    """The command line: what capture depends on is fixed; ``extra_args`` come last."""
    parameters = plan.parameters
    arguments = {
        "--model-path": str(plan.model.path),
        "--host": parameters.host,
        "--port": str(plan.port),
        "--tp-size": str(parameters.tp_size),
        "--dp-size": str(parameters.dp_size),
        "--chunked-prefill-size": str(parameters.chunked_prefill_size),
    }
    if parameters.context_length:
        arguments["--context-length"] = str(parameters.context_length)
    if parameters.chunked_prefill_size == -1:
        longest = parameters.context_length or plan.model.context_length
        arguments["--max-prefill-tokens"] = str(max(16384, longest))
    if plan.interpreter.cuda_devices == 0:
        tokens = max(_CPU_TOTAL_TOKENS, 2 * parameters.context_length)
        arguments |= {
            "--device": "cpu",
            "--attention-backend": "torch_native",
            "--max-total-tokens": str(tokens),
            # SGLang's own guess goes below zero on hosts of this size without chunked prefill
            "--mem-fraction-static": "0.6",
        }
    # the plugin's hooks are Python in the model, which a replayed CUDA graph skips
    flags = ["--disable-radix-cache", "--disable-prefill-cuda-graph"]
    if plan.interpreter.cuda_devices == 0:
        flags.append("--sleep-on-idle")  # an idle scheduler would keep a whole core busy
    if plan.skip_tokenizer:
        flags.append("--skip-tokenizer-init")  # requests carry ids; no tokenizer is needed
    return [
        plan.interpreter.path,
        "-u",
        "-m",
        "sglang.launch_server",
        *(part for pair in arguments.items() for part in pair),
        *flags,
        *parameters.extra_args,
    ]


def environment(plan: LaunchPlan) -> dict[str, str]:
    """The environment: this process's own, and the plugin's settings."""
    parameters = plan.parameters
    found = dict(os.environ)
    found |= {
        "PYTHONUNBUFFERED": "1",
        "SGLANG_HS_DUMP_DIR": str(parameters.dump_path),
        "SGLANG_HS_DUMP_BOUNDARIES": ",".join(map(str, plan.boundaries)),
        "SGLANG_HS_DUMP_BUDGET_BYTES": str(plan.budget_bytes),
        "SGLANG_HS_DUMP_ALL": "1" if parameters.dump_all else "",
        "SGLANG_HS_DUMP_FINAL": "1" if parameters.store_final else "0",
        "SGLANG_HS_DUMP_ACCEPT_UNWITNESSED": "1" if parameters.accept_unwitnessed else "",
        "SGLANG_HS_API_KEY": parameters.api_key,
    }
    if parameters.context_length > plan.model.context_length:
        found["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    if plan.interpreter.cuda_devices == 0:
        path = [str(_PATCHES / "cpu_kernels"), *found.get("PYTHONPATH", "").split(os.pathsep)]
        found["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
        found["SGLANG_USE_CPU_ENGINE"] = "1"
        # glibc maps every block over 32 MB anew and the kernel zeroes it: most of the time of
        # a forward pass with wide states
        found.setdefault("MALLOC_MMAP_MAX_", "0")
        found.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 40))
        # OpenMP threads that wait leave their cores to the job's client
        found.setdefault("GOMP_SPINCOUNT", "10000")
        ranks = parameters.tp_size * parameters.dp_size
        if ranks > 1:
            cores = sorted(os.sched_getaffinity(0))
            found.setdefault("SGLANG_CPU_OMP_THREADS_BIND", _cores_of_ranks(cores, ranks))
            # only SGLang's own kernels bind; else each rank starts a thread for every core
            found.setdefault("OMP_NUM_THREADS", str(max(1, len(cores) // ranks)))
        if parameters.tp_size > 1:
            # PyPI's torch has a libnccl that loads without a GPU and then fails; without any
            # library SGLang's ranks talk by gloo
            found["SGLANG_NCCL_SO_PATH"] = _NO_LIBRARY
    return found


def _cores_of_ranks(cores: Sequence[int], ranks: int) -> str:
    """``0|1``: a core per rank. SGLang on a CPU needs them where ranks outnumber the NUMA nodes."""
    return "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))
