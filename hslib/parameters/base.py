"""What several notebooks' parameters share."""

import importlib.util
import os
import warnings
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic
from pydantic import Field

from hslib import demo
from hslib.dataset import absolute_source
from hslib.errors import ParameterError
from hslib.model import local_folder
from hslib.parameters.problems import as_message, bad_values, unknown_name
from hslib.store import StoreUrl, read_store_url


def _layers_text(value: Any) -> Any:
    """papermill gives a single boundary as a number, and ``[3, 31]`` as a list."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, list) else value


Layers = Annotated[str, pydantic.BeforeValidator(_layers_text)]


class Parameters(pydantic.BaseModel):
    """What every notebook has: ``run_dir`` holds all that a run makes."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    renamed: ClassVar[dict[str, str]] = {}  # old names that are still taken, with their new ones

    run_dir: str = "runs/demo"

    @property
    def run_path(self) -> Path:
        """``run_dir``, absolute; a relative one is below ``$HSLIB_RUNS_ROOT`` if that is set."""
        return Path(os.environ.get("HSLIB_RUNS_ROOT", ""), self.run_dir).absolute()

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """Build from a notebook's names and values.

        Raises:
            ParameterError: names that are unknown (with the nearest known one) and bad values.
        """
        for old in cls.renamed.keys() & values.keys():
            new = cls.renamed[old]
            warnings.warn(f"{old!r} is now called {new!r}: please write that", stacklevel=2)
            values = {n: v for n, v in values.items() if n != old} | {new: values[old]}
        known = {name: value for name, value in values.items() if name in cls.model_fields}
        problems = [unknown_name(n, cls.model_fields) for n in values if n not in known]
        try:
            found = cls(**known)
        except pydantic.ValidationError as error:
            problems += bad_values(cls, error)
        if problems:
            raise ParameterError(as_message(problems))
        return found


class TrackedParameters(Parameters):
    """``tracker``: the metrics also become an MLflow or W&B run, if that package is installed."""

    tracker: Literal["", "mlflow", "wandb"] = ""

    @pydantic.field_validator("tracker")
    @classmethod
    def _is_installed(cls, name: str) -> str:
        if name and importlib.util.find_spec(name) is None:
            raise ValueError(f"the package {name} is not installed: pip install {name}")
        return name


class KeyParameters(Parameters):
    """``api_key_env`` names an environment variable; the key itself is never written anywhere."""

    api_key_env: str = ""

    @property
    def api_key(self) -> str:
        """The key out of the environment; raises :class:`ParameterError` if it is not set there."""
        return read_api_key(self.api_key_env)


class CaptureParameters(Parameters):
    """What is captured of which model, and how a server for that is started.

    ``model_path``: a folder or an id of the hub, empty = the demo's model. ``layers``: words,
    numbers, or a draft that names them (:func:`hslib.model.choose_layers`). ``store_final``: the
    final state is stored beside them. ``accept_unwitnessed``: go on where no layer's
    reading confirms a state; the store then says so. ``context_length``: tokens, 0 = the model's
    own. ``extra_args``: further flags of SGLang's.
    """

    model_path: str = ""
    layers: Layers = "auto"
    store_final: bool = True
    accept_unwitnessed: bool = False
    tp_size: int = Field(1, ge=1)
    context_length: int = Field(0, ge=0)
    extra_args: list[str] = Field(default_factory=list)

    @property
    def model_folder(self) -> Path:
        """The model's folder, absolute; an id of the hub is looked up, and fetched if need be."""
        return local_folder(self.model_path) if self.model_path else demo.model_path()


class DatasetParameters(Parameters):
    """``dataset_path``: a file, folder, glob, ``datasets`` folder or ``hf:NAME``; empty = the
    demo's rows."""

    dataset_path: str = ""

    @property
    def dataset_source(self) -> str:
        """``dataset_path``, absolute where it is a path."""
        return absolute_source(self.dataset_path or demo.dataset_path())


class StoreParameters(TrackedParameters):
    """``store_dir``: a directory or ``s3://bucket/prefix``, empty = the run's own store.

    Region, endpoint and credentials of a bucket are botocore's own settings: its environment
    variables and files. No parameter holds them.
    """

    store_dir: str = ""

    @pydantic.field_validator("store_dir")
    @classmethod
    def _is_a_store_url(cls, text: str) -> str:
        read_store_url(text)
        return text

    @property
    def store_path(self) -> StoreUrl:
        """``store_dir``, absolute where it is a directory."""
        url = read_store_url(self.store_dir) if self.store_dir else self.run_path / "store"
        return url.absolute() if isinstance(url, Path) else url

    @property
    def store_name(self) -> str:
        """The store as a command would be given it: not absolute where it was not given so."""
        return self.store_dir or f"{self.run_dir}/store"

    @property
    def is_demo(self) -> bool:
        """Whether the run is the default one, which may be made when it is not there."""
        return not self.store_dir and self.run_dir == Parameters().run_dir


def named_urls(given: str | list[str]) -> list[str]:
    return [url for url in ([given] if isinstance(given, str) else given) if url]


def dump_path(dump_dir: str, run_path: Path) -> Path:
    """``dump_dir``, or a directory in /dev/shm named after the run (its path's hash)."""
    if dump_dir:
        return Path(dump_dir).absolute()
    import xxhash

    name = f"hslib-{os.getuid()}-{xxhash.xxh3_64_hexdigest(str(run_path).encode())[:12]}"
    shared_memory = Path("/dev/shm")
    return (shared_memory if shared_memory.is_dir() else run_path) / name


def read_api_key(variable: str) -> str:
    """The value of an environment variable; "" when no variable is named."""
    if not variable:
        return ""
    if variable not in os.environ:
        raise ParameterError(
            f"api_key_env names {variable!r}, which is not set",
            fix=f"export {variable}=... before starting Jupyter, or leave api_key_env empty",
        )
    return os.environ[variable]
