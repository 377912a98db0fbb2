"""What would keep a server from starting or capturing, found before it is started."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from hslib.errors import HslibError, ParameterError, ServerError
from hslib.model import (
    ModelInfo,
    choose_layers,
    how_to_fetch,
    layers_source,
    missing_files,
    read_model,
)
from hslib.parameters import ServerParameters
from hslib.server.dumps import DUMP_SHARE, dump_bytes
from hslib.server.remote_code import TRUST_FLAG, ask_sglang, remote_files
from hslib.store import state_bytes

# Runs in the interpreter that would run the server: versions without imports, CUDA by driver.
_PROBE = """
import ctypes, importlib.metadata as m, json
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return ""
def devices():
    try:
        cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        cuda.cuInit(0); cuda.cuDeviceGetCount(ctypes.byref(count)); return count.value
    except OSError: return 0
plugins = [e.name for e in m.entry_points(group="sglang.srt.plugins")]
found = dict(sglang=version("sglang"), hs_dump=version("hs-dump"), plugins=plugins, cuda=devices())
print(json.dumps(found))
"""

_SPLITTING = (  # a rank holds the states of some tokens or layers only
    "--attn-dp-size",
    "--attention-data-parallel-size",
    "--enable-dp-attention",
    "--attn-cp-size",
    "--attention-context-parallel-size",
    "--enable-prefill-cp",
    "--pp-size",
    "--pipeline-parallel-size",
    "--enable-layernorm-sp",
    "--enable-attn-tp-input-scattered",
    "--enable-two-batch-overlap",
    "--enable-pdmux",
)
_SPLITS = (
    "splits the states over ranks: none holds every token's",
    "drop it; tp_size and dp_size are what may be split",
)
# these override --disable-prefill-cuda-graph
_REPLAYS = ("replays prefills past the plugin's hooks", "drop it")
# cores and memory are planned from the parameters
_TP, _DP = (("is a parameter here", f"set {name} instead") for name in ("tp_size", "dp_size"))
_REFUSED = {  # a flag of SGLang's in extra_args: what is wrong with it, and the cure
    **dict.fromkeys(_SPLITTING, _SPLITS),
    **dict.fromkeys(("--cuda-graph-backend-prefill", "--cuda-graph-config"), _REPLAYS),
    **dict.fromkeys(("--tp-size", "--tensor-parallel-size", "--tp"), _TP),
    **dict.fromkeys(("--dp-size", "--data-parallel-size", "--dp"), _DP),
}


class Problems(list[HslibError]):
    """What keeps the server from starting: each error has its cure."""

    def add(self, what: str, cure: str) -> None:
        self.append(ServerError(what, fix=cure))


@dataclass(frozen=True)
class Interpreter:
    """The Python that will run the server, and what is installed there."""

    path: str
    sglang_version: str
    plugin_version: str
    cuda_devices: int


@dataclass(frozen=True)
class LaunchPlan:
    """What is to be started: everything about it that is known beforehand."""

    parameters: ServerParameters
    interpreter: Interpreter
    model: ModelInfo
    boundaries: tuple[int, ...]
    port: int
    budget_bytes: int
    skip_tokenizer: bool = False  # it is absent, or needs code that the server may not run


def preflight(parameters: ServerParameters) -> tuple[LaunchPlan | None, Problems]:
    """Check everything: the plan when nothing is in the way, else all problems."""
    problems = Problems()
    interpreter = _check_interpreter(parameters, problems)
    model, boundaries = _check_model(parameters, problems)
    skip_tokenizer = _check_code(parameters, interpreter, model, problems)
    port = _check_port(parameters, problems)
    _check_key(parameters, problems)
    _check_ranks(parameters, interpreter, problems)
    root_ok = _check_dump_directory(parameters.dump_path, problems)
    budget = _check_budget(parameters, model, boundaries, problems) if root_ok else 0
    if problems or interpreter is None or model is None:
        return None, problems
    plan = LaunchPlan(parameters, interpreter, model, boundaries, port, budget, skip_tokenizer)
    return plan, problems


def facts(plan: LaunchPlan | None, problems: Problems) -> dict[str, str]:
    """The plan, or else the problems, for a table."""
    if plan is None:
        return {f"problem {n}": str(problem) for n, problem in enumerate(problems, start=1)}
    parameters, model = plan.parameters, plan.model
    longest = parameters.longest_sample or parameters.context_length or model.context_length
    return {
        "interpreter": f"SGLang {plan.interpreter.sglang_version}, "
        f"hs_dump {plan.interpreter.plugin_version}",
        "model": f"{model.architecture}: {model.num_layers} layers, hidden size "
        f"{model.hidden_size}, vocabulary {model.vocab_size}",
        **({"layers counted": "; ".join(model.notes)} if model.notes else {}),
        "boundaries to capture": ", ".join(map(str, plan.boundaries)) or "none",
        **layers_source(parameters.layers, model),
        "final state": "captured" if parameters.store_final else "not captured",
        "bytes per token": f"{_bytes_per_token(parameters, model, plan.boundaries):,}",
        "dump directory": f"yours, private, room for {parameters.dumps_at_once} rows of "
        f"{longest:,} tokens",
        "port": "free",
    }


def require(parameters: ServerParameters) -> LaunchPlan:
    """The plan; raises :class:`ServerError` with every problem in its text."""
    plan, problems = preflight(parameters)
    if plan is None:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise ServerError(f"the server can't start:\n{lines}", fix="fix these and run again")
    return plan


def _check_interpreter(parameters: ServerParameters, problems: Problems) -> Interpreter | None:
    path = parameters.python or sys.executable
    try:
        run = subprocess.run([path, "-c", _PROBE], capture_output=True, text=True, timeout=60)
        found = json.loads(run.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        problems.add(f"{path} does not run: {error}", "set python to an interpreter with sglang")
        return None
    if not found["sglang"]:
        problems.add(
            f"no sglang in {path}, the interpreter that would run the server",
            "pip install -r requirements.txt there, or set python to the one that has it",
        )
    if found["sglang"] and "hs_dump" not in found["plugins"]:
        problems.add(f"no hs_dump plugin in {path}", f"{path} -m pip install ./patches/hs_dump")
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and "hs_dump" not in [name.strip() for name in allowed.split(",")]:
        problems.add(
            f"SGLANG_PLUGINS={allowed!r} keeps the hs_dump plugin out: the server would answer "
            "200 and dump nothing",
            "unset SGLANG_PLUGINS, or add hs_dump (and hs_cpu_kernels without CUDA) to it",
        )
    return Interpreter(path, found["sglang"], found["hs_dump"], found["cuda"])


def _check_model(
    parameters: ServerParameters, problems: Problems
) -> tuple[ModelInfo | None, tuple[int, ...]]:
    try:
        folder = parameters.model_folder
        missing = missing_files(folder) if folder.is_dir() else {}
        for name, why in missing.items():
            cure = "fetch that file, or copy the folder with what it links to"
            problems.add(f"{folder / name} is not there: it is {why}", how_to_fetch(folder) or cure)
        model = read_model(folder)
        boundaries = choose_layers(parameters.layers, model)
    except ParameterError as error:
        problems.append(error)
        return None, ()
    if not boundaries and not parameters.store_final:
        problems.add(
            "nothing would be captured: no layers, and store_final is False",
            'name layers, or set store_final = True for layers = "none"',
        )
    return model, boundaries


def _check_code(
    parameters: ServerParameters,
    interpreter: Interpreter | None,
    model: ModelInfo | None,
    problems: Problems,
) -> bool:
    """Whether the server must not load the tokenizer: it is absent, or needs code that may not run.

    Requests carry ids, so none is needed.
    """
    if interpreter is None or model is None:
        return False
    no_tokenizer = not model.tokenizer_hash
    if TRUST_FLAG in parameters.extra_args or not remote_files(model.path):
        return no_tokenizer
    refused, loads_tokenizer = ask_sglang(interpreter.path, model.path)
    if refused:
        problems.add(
            f"SGLang can't read {model.path} without running code that lies there "
            f"({', '.join(remote_files(model.path))}): {refused}",
            f'read that code; to run it, set extra_args = ["{TRUST_FLAG}"]',
        )
    return no_tokenizer or not loads_tokenizer


def _check_port(parameters: ServerParameters, problems: Problems) -> int:
    if parameters.port == 0:
        with socket.socket() as free:
            free.bind((parameters.host, 0))
            return int(free.getsockname()[1])
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((parameters.host, parameters.port))
        except OSError as error:
            holder = port_holder(parameters.port)
            problems.add(
                f"port {parameters.port} on {parameters.host} is taken by {holder} "
                f"({error.strerror})",
                "stop that process, or set port = 0 for a free one",
            )
    return parameters.port


def port_holder(port: int) -> str:
    """Which process listens on a port, as far as this user may see."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            if connection.pid is None:
                break
            command = " ".join(psutil.Process(connection.pid).cmdline()[:4])
            return f"process {connection.pid}: {command[:120]}"
    return "a process that this user can't see"


def _check_key(parameters: ServerParameters, problems: Problems) -> None:
    try:
        _ = parameters.api_key
    except ParameterError as error:
        problems.append(error)
    if any(arg.startswith(("--api", "--admin")) for arg in parameters.extra_args):
        problems.add(
            "an API key in extra_args would show in the process list and in server.log",
            "put it into an environment variable and name that in api_key_env",
        )


def _check_ranks(
    parameters: ServerParameters, interpreter: Interpreter | None, problems: Problems
) -> None:
    """Flags that the plugin would refuse after minutes of loading, and too few GPUs."""
    flags = {argument.partition("=")[0] for argument in parameters.extra_args}
    for flag in sorted(flags & _REFUSED.keys()):
        what, cure = _REFUSED[flag]
        problems.add(f"{flag} in extra_args {what}", cure)
    devices = interpreter.cuda_devices if interpreter else 0
    needed = parameters.tp_size * parameters.dp_size
    if 0 < devices < needed and "--nnodes" not in flags:
        problems.add(
            f"tp_size {parameters.tp_size} x dp_size {parameters.dp_size} takes {needed} GPUs; "
            f"{devices} can be seen here",
            "lower them, or let the server see more (CUDA_VISIBLE_DEVICES)",
        )


def _check_dump_directory(root: Path, problems: Problems) -> bool:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(root)
    except OSError as error:
        problems.add(f"dump directory {root}: {error.strerror}", "choose another dump_dir")
        return False
    own = "choose a dump_dir of your own"
    for is_so, what, cure in (
        (not stat.S_ISDIR(found.st_mode), "is a link", "name the directory it points to itself"),
        (found.st_uid != os.geteuid(), f"belongs to user {found.st_uid}", own),
        (not os.access(root, os.W_OK), "is read-only", "choose another dump_dir"),
    ):
        if is_so:
            problems.add(f"dump directory {root} {what}", cure)
            return False
    return True


def _check_budget(
    parameters: ServerParameters,
    model: ModelInfo | None,
    boundaries: tuple[int, ...],
    problems: Problems,
) -> int:
    """The dump directory's budget in bytes, into which ``dumps_at_once`` longest rows must fit."""
    free = shutil.disk_usage(parameters.dump_path).free
    budget = int(parameters.dump_budget_gb * 1e9) or int(free * DUMP_SHARE)
    if model is None:
        return budget
    longest = parameters.longest_sample or parameters.context_length or model.context_length
    per_token = _bytes_per_token(parameters, model, boundaries)
    needed = parameters.dp_size * parameters.dumps_at_once * dump_bytes(longest, 1, per_token)
    if min(budget, free) < needed:
        problems.add(
            f"dump directory {parameters.dump_path} has room for "
            f"{min(budget, free) / 1e9:.3f} GB; {parameters.dumps_at_once} dumps of {longest} "
            f"tokens on {parameters.dp_size} replica(s) take {needed / 1e9:.3f} GB",
            "use a larger tmpfs (docker: --shm-size) or dump_dir, or lower dumps_at_once, "
            "longest_sample or dump_budget_gb to what is really needed",
        )
    return budget


def _bytes_per_token(
    parameters: ServerParameters, model: ModelInfo, boundaries: tuple[int, ...]
) -> int:
    """Bytes of states per token."""
    return state_bytes(len(boundaries) + parameters.store_final, model.hidden_size)
