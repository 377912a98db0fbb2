"""``run.json``: what a job was given and where it ran, for its report."""

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pydantic

from hslib.files import write_atomically
from hslib.parameters import ExtractionParameters
from hslib.server.plugin_info import PluginInfo
from hslib.store import Manifest

_PACKAGES = ("hslib", "torch", "transformers", "numpy", "safetensors")


class RunRecord(pydantic.BaseModel):
    """``parameters``: those that are not at their defaults. ``versions``: of the job's process and
    of its server."""

    model_config = pydantic.ConfigDict(frozen=True, protected_namespaces=())

    parameters: dict[str, Any]
    model_path: str
    model_class: str
    dataset: str
    store: str
    states: str
    encoding: str = "plain"
    hardware: str
    versions: dict[str, str]

    @property
    def num_shards(self) -> int:
        return int(self.parameters.get("num_shards", 1))

    @property
    def shard_index(self) -> int:
        return int(self.parameters.get("shard_index", 0))


def record_run(parameters: ExtractionParameters, manifest: Manifest, plugin: PluginInfo) -> None:
    """Write ``run.json``; a run that goes on replaces it."""
    record = RunRecord(
        parameters=changed_parameters(parameters),
        model_path=manifest.model_path,
        model_class=plugin.model_class,
        dataset=parameters.dataset_source,
        store=str(parameters.store_path),
        states=manifest.states_sentence(),
        encoding=manifest.encoding,
        hardware=_hardware(plugin.device, manifest.server, parameters.num_replicas),
        versions={
            "SGLang": plugin.sglang_version,
            "hs_dump": plugin.plugin_version,
            "Python": platform.python_version(),
            **installed_versions(_PACKAGES),
        },
    )
    parameters.run_path.mkdir(parents=True, exist_ok=True)
    text = record.model_dump_json(indent=1)
    write_atomically(parameters.run_path / "run.json", text.encode())


def read_record(run_path: Path) -> RunRecord | None:
    """The run's record, None when no job ran here."""
    try:
        return RunRecord.model_validate_json((run_path / "run.json").read_bytes())
    except FileNotFoundError:
        return None


def changed_parameters(parameters: ExtractionParameters) -> dict[str, Any]:
    """What was set, as a command line would say it again."""
    defaults = ExtractionParameters().model_dump()
    return {n: v for n, v in parameters.model_dump().items() if v != defaults[n]}


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Of those that are installed in this process's environment."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _hardware(device: str, settings: dict[str, Any], replicas: int) -> str:
    """The server's devices, in words; of a CPU the cores and memory of the job's host."""
    import psutil

    if not device:
        return "not recorded by this server's plugin"
    if device != "cpu":
        ranks = settings.get("tp_size", 1) * settings.get("dp_size", 1) * replicas
        return f"{ranks} x {device}"
    cores = len(os.sched_getaffinity(0))
    return f"{cores} CPU cores, {psutil.virtual_memory().total / 2**30:,.0f} GiB of memory"
