"""The notebooks' parameters as pydantic models; an unknown name is an error.

A notebook's ``parameters`` cell has the same names and defaults; a test compares them.
"""

import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import Field

from hslib import demo
from hslib.dataset import absolute_source
from hslib.errors import ParameterError
from hslib.model import local_folder
from hslib.rows import Recipe
from hslib.store import StoreUrl, read_store_url

Port = Annotated[int, Field(ge=0, le=65535)]


def _layers_text(value: Any) -> Any:
    """papermill gives a single boundary as a number, and ``[3, 31]`` as a list."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return ",".join(map(str, value)) if isinstance(value, list) else value


Layers = Annotated[str, pydantic.BeforeValidator(_layers_text)]


class Parameters(pydantic.BaseModel):
    """What every notebook has: ``run_dir`` holds all that a run makes."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    run_dir: str = "runs/demo"

    @property
    def run_path(self) -> Path:
        """``run_dir``, absolute; a relative one is below ``$HSLIB_RUNS_ROOT`` if that is set."""
        return Path(os.environ.get("HSLIB_RUNS_ROOT", ""), self.run_dir).absolute()

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """Build from a notebook's names and values.

        Raises:
            ParameterError: an unknown name (with the nearest known one), or a bad value.
        """
        known = set(cls.model_fields)
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {sorted(known)}"
                raise ParameterError(f"unknown parameter {name!r}", fix=hint)
        try:
            return cls(**values)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"])) or "parameters"
            raise ParameterError(
                f"parameter {name!r}: {first['msg']}", got=first.get("input"), fix="correct it"
            ) from error


class KeyParameters(Parameters):
    """``api_key_env`` names an environment variable; the key itself is never written anywhere."""

    api_key_env: str = ""

    @property
    def api_key(self) -> str:
        """The key out of the environment; raises :class:`ParameterError` if it is not set there."""
        return read_api_key(self.api_key_env)


class CaptureParameters(Parameters):
    """What is captured of which model, and how a server for that is started.

    ``model_path``: a folder or an id of the hub, empty = the demo's model. ``store_final``: the
    final state is stored beside the ``layers``. ``accept_unwitnessed``: go on where no layer's
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


class RowsParameters(KeyParameters):
    """Notebook 00. ``chats_path`` empty = the demo's conversations, ``model_path`` empty = its
    model, ``out_path`` empty = ``rows.jsonl`` in the run.

    The others are those of :class:`hslib.rows.Recipe`. ``workers``: processes, 0 = one per core, at
    most eight. ``max_rejected_share``: a larger share of rejected rows is no success.

    ``regenerate``: the served model answers every user turn anew; ``server_url`` empty = the run's
    server, else one is started and stopped. ``max_answer_tokens``: an answer that comes to it is
    cut, and with ``cut_answers`` its turn dropped, or kept: its row's ``stop_reasons`` say
    ``length``. ``samples``: how often each conversation is answered. ``concurrency``: conversations
    in flight.
    """

    chats_path: str = ""
    model_path: str = ""
    out_path: str = ""
    train_on: Literal["all", "last"] = "all"
    thinking: Literal["keep", "drop"] = "keep"
    unstable: Literal["per_turn", "reject"] = "per_turn"
    special_in_text: Literal["reject", "allow"] = "reject"
    max_tokens: int = Field(0, ge=0)
    system_prompt: str = ""
    chat_template: str = ""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    end_tokens: list[str] = Field(default_factory=list)
    date: str = ""
    trust_remote_code: bool = False
    workers: int = Field(0, ge=0)
    max_rejected_share: float = Field(0.1, ge=0, le=1)
    regenerate: bool = False
    server_url: str | list[str] = ""
    temperature: float = Field(0.0, ge=0)
    max_answer_tokens: int = Field(1024, ge=1)
    samples: int = Field(1, ge=1)
    cut_answers: Literal["drop", "keep"] = "drop"
    concurrency: int = Field(16, ge=1, le=1024)

    @pydantic.model_validator(mode="after")
    def _fit_together(self) -> Self:
        if not self.regenerate:
            given = [n for n in ("server_url", "temperature") if getattr(self, n)]
            given += ["samples"] * (self.samples > 1)
            if given:
                raise ValueError(f"{', '.join(given)}: only with regenerate")
            return self
        if self.samples > 1 and not self.temperature:
            raise ValueError("samples at temperature 0 are all the same: set temperature")
        if self.unstable == "reject":
            raise ValueError("unstable 'reject' is for answers that are there")
        if self.thinking == "drop":
            raise ValueError(
                "thinking 'drop' is for answers that are there; a model that is to answer without "
                "is asked so by chat_template_kwargs"
            )
        return self

    @property
    def source(self) -> str:
        return self.chats_path or str(demo.dataset_path())

    @property
    def server_urls(self) -> list[str]:
        """The servers that are named; none when the run's own is meant."""
        return _named_urls(self.server_url)

    @property
    def out_file(self) -> Path:
        return Path(self.out_path).absolute() if self.out_path else self.run_path / "rows.jsonl"

    @property
    def recipe(self) -> Recipe:
        """What the rows' making depends on."""
        model = local_folder(self.model_path, "tokenizer") if self.model_path else None
        return Recipe(
            model=model or demo.model_path(),
            template=self.chat_template_kwargs,
            end_tokens=tuple(self.end_tokens),
            **{
                name: getattr(self, name)
                for name in (
                    *("train_on", "thinking", "unstable", "special_in_text", "max_tokens"),
                    *("system_prompt", "chat_template", "date", "trust_remote_code"),
                )
            },
        )


class StoreParameters(Parameters):
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
    def is_demo(self) -> bool:
        """Whether the run is the default one, which may be made when it is not there."""
        return not self.store_dir and self.run_dir == Parameters().run_dir


class ServerParameters(CaptureParameters, KeyParameters):
    """Notebook 02, and the server that notebook 03 starts for itself.

    ``chunked_prefill_size``: tokens, -1 = off. ``port`` 0 = a free one. ``dump_budget_gb`` 0 = 80 %
    of what the dump directory's file system has free; ``concurrency`` rows of the longest kind
    (``longest_sample`` tokens, 0 = the context length) must fit into it. ``python``: the
    interpreter that runs the server, empty = this one. ``for_job``: the next job that ends stops
    the server.
    """

    action: Literal["demo", "start", "status", "stop"] = "demo"
    host: str = "127.0.0.1"
    port: Port = 0
    dp_size: int = Field(1, ge=1)
    chunked_prefill_size: int = Field(-1, ge=-1)
    dump_dir: str = ""
    dump_budget_gb: float = Field(0.0, ge=0)
    concurrency: int = Field(4, ge=1)
    longest_sample: int = Field(0, ge=0)
    dump_all: bool = False
    python: str = ""
    start_timeout_s: float = Field(1800.0, gt=0)
    for_job: bool = False

    @property
    def dump_path(self) -> Path:
        """The dump directory; by default one in tmpfs that belongs to this run alone."""
        return dump_path(self.dump_dir, self.run_path)


class ExtractionParameters(CaptureParameters, DatasetParameters, StoreParameters, KeyParameters):
    """Notebook 03. ``server_url`` empty = the run's server, else one started for the job; a list
    names several, with one ``dump_dir`` for each or for all.

    ``concurrency``: requests in flight. ``max_tokens`` 0 = the server's limit. ``limit`` 0 =
    all rows. ``resume_check``: what a stored sample must pass to count as done.
    ``mask_column``: the only column that says which tokens train; empty = those that are known.
    ``max_attempts``: tries per sample. ``max_zero_mask_share``: the job is refused when the masks
    of a larger share of the rows are all zero. ``max_rejected_share``: it is refused when a larger
    share of the rows can't be extracted. ``on_changed_rows``: rows whose ids or mask are no
    longer those stored stop the job, or are extracted again. ``samples_per_request``: short rows
    share a request, up to so many or ``tokens_per_request`` tokens. ``server_wait_s``: how long a
    server that does not answer may take to come back.

    ``ray_address``: empty = the job runs in this process; ``local`` = on a Ray started here, else
    on the cluster at that address, with ``num_replicas`` servers, each started where its GPUs
    are. ``tp_size``, ``context_length`` and ``extra_args`` are for servers that the job starts.
    """

    server_url: str | list[str] = ""
    dump_dir: str | list[str] = ""
    ray_address: str = ""
    num_replicas: int = Field(1, ge=1)
    scan_scope: Literal["request", "directory"] = "request"
    concurrency: int = Field(16, ge=1, le=1024)
    max_tokens: int = Field(0, ge=0)
    limit: int = Field(0, ge=0)
    mask_column: str = ""
    strict: bool = False
    retry_failed: bool = False
    resume_check: Literal["size", "deep"] = "size"
    shard_index: int = Field(0, ge=0)
    num_shards: int = Field(1, ge=1)
    max_attempts: int = Field(3, ge=1)
    max_zero_mask_share: float = Field(0.1, ge=0, le=1)
    max_rejected_share: float = Field(0.1, ge=0, le=1)
    on_changed_rows: Literal["refuse", "redo"] = "refuse"
    samples_per_request: int = Field(8, ge=1)
    tokens_per_request: int = Field(2048, ge=1)
    max_failures_in_a_row: int = Field(20, ge=1)
    server_wait_s: float = Field(600.0, ge=0)
    request_timeout_s: float = Field(600.0, gt=0)
    dump_timeout_s: float = Field(60.0, gt=0)

    @property
    def server_urls(self) -> list[str]:
        """The servers that are named; none when the run's own is meant."""
        return _named_urls(self.server_url)

    @pydantic.model_validator(mode="after")
    def _fit_together(self) -> Self:
        if problems := list(self._contradictions()):
            raise ValueError("; ".join(problems))
        return self

    def _contradictions(self) -> Iterator[str]:
        """Parameters that exclude each other."""
        if self.shard_index >= self.num_shards:
            yield f"shard_index {self.shard_index} is not one of 0..{self.num_shards - 1}"
        if isinstance(self.dump_dir, list) and len(self.dump_dir) != len(self.server_urls):
            yield (
                f"dump_dir has {len(self.dump_dir)} entries, server_url {len(self.server_urls)}: "
                "name one for each, or one that all share"
            )
        if self.num_replicas > 1 and not self.ray_address:
            yield f"num_replicas = {self.num_replicas} needs a ray_address ('local' or a cluster's)"
        if not self.ray_address:
            return
        if self.server_urls:
            yield (
                "ray_address and server_url exclude each other: a cluster's replicas start their "
                "own servers"
            )
        if isinstance(self.dump_dir, list):
            yield "with a ray_address name one dump_dir, below which each replica has one"
        if self.scan_scope == "directory":
            yield 'scan_scope "directory" is for servers that somebody else runs'

    @property
    def dump_paths(self) -> list[Path]:
        """A dump directory for each server."""
        if isinstance(self.dump_dir, list):
            return [dump_path(name, self.run_path) for name in self.dump_dir]
        return [dump_path(self.dump_dir, self.run_path)] * max(1, len(self.server_urls))


class StatisticsParameters(StoreParameters):
    """Notebook 04. ``sample_limit`` 0 = all stored samples.

    ``dataset_path``: the rows of the whole job, from whose lengths its size is computed; empty =
    from the number of rows alone. ``compress_mb``: how much of the store is compressed as a trial.
    """

    sample_limit: int = Field(0, ge=0)
    seed: int = Field(0, ge=0)
    dataset_path: str = ""
    compress_mb: int = Field(64, ge=1)

    def title(self, samples: int, stored: int = 0) -> str:
        """A figure's title: the run, and how many samples its numbers are from."""
        of = f" of {stored:,}" if stored > samples else ""
        return f"{self.run_path.name}, {samples:,}{of} samples"


class ProbeParameters(StoreParameters, KeyParameters):
    """Notebook 05. With ``server_url`` the dataset's first rows are extracted from that server,
    and it is asked for their log probabilities; otherwise a store is read.

    ``reference_path``: the model's folder, empty = the one that the manifest names.
    ``num_rows``: of the shortest rows of at least ``min_tokens``. ``max_layers``: how many of the
    reference's layers to load; -1 = as many as fit into memory, 0 = its output head alone.
    """

    server_url: str = ""
    dump_dir: str = ""
    dataset_path: str = ""
    layers: Layers = "auto"
    reference_path: str = ""
    num_rows: int = Field(4, ge=1)
    min_tokens: int = Field(64, ge=2)
    max_layers: int = Field(-1, ge=-1)


class DiagnosisParameters(DatasetParameters, KeyParameters):
    """Notebook 01. With nothing given: the case study's log, and the demo's rows and tokenizer.

    ``log_path``: a log, a journal, or a dump directory. With a store, the dataset and the
    tokenizer are those of its manifest, if not given. What is not known is not compared.
    ``slow_tokenizer`` compares the Python implementation too. ``sample_limit``: rows that are
    tokenized again, 0 = all. ``trust_remote_code``: run the tokenizer folder's own code.
    """

    log_path: str = ""
    store_dir: str = ""
    tokenizer_path: str = ""
    server_url: str = ""
    slow_tokenizer: bool = False
    sample_limit: int = Field(256, ge=0)
    trust_remote_code: bool = False

    @property
    def is_demo(self) -> bool:
        """Whether nothing was given."""
        given = (self.log_path, self.store_dir, self.dataset_path, self.tokenizer_path)
        return not any((*given, self.server_url))

    @property
    def evidence_name(self) -> str:
        """Of the log or store that says what came; for titles."""
        default = demo.case_study_path().name if self.is_demo else "no log"
        return Path(self.store_dir or self.log_path or default).name

    @property
    def tokenizer_folder(self) -> Path:
        if not self.tokenizer_path:
            return demo.model_path()
        return local_folder(self.tokenizer_path, "tokenizer")


class ExportParameters(StoreParameters):
    """Notebook 06. ``export_dir`` empty = one in the run for each trainer.

    ``model_path`` empty = the one that the manifest names. ``draft_vocab_size`` 0 = the model's
    whole vocabulary. ``num_steps``: of the drafter trained here; 0 = export only.
    ``own_answers_store``: of rows that the target answered itself (notebook 00, ``regenerate``), to
    train one more drafter on; empty = none, of the demo one that is made.
    """

    trainer: Literal["speculators", "specforge"] = "speculators"
    export_dir: str = ""
    model_path: str = ""
    draft_vocab_size: int = Field(320, ge=0)
    num_steps: int = Field(200, ge=0)
    own_answers_store: str = ""
    seed: int = 0

    @property
    def export_path(self) -> Path:
        default = self.run_path / "export" / self.trainer
        return Path(self.export_dir).absolute() if self.export_dir else default


def _named_urls(given: str | list[str]) -> list[str]:
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
