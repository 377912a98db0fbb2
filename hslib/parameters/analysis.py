"""The parameters of the notebooks that read what is there: 01, 04, 05, 06."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from hslib import demo
from hslib.model import local_folder, parse_layers
from hslib.parameters.base import (
    DatasetParameters,
    KeyParameters,
    Layers,
    StoreParameters,
    TrackedParameters,
)


class DiagnosisParameters(DatasetParameters, KeyParameters, TrackedParameters):
    """Notebook 01. With nothing given: the case study's log, and the demo's rows and tokenizer.

    ``log_path``: a log, a journal, or a dump directory. With a store, the dataset and the
    tokenizer are those of its manifest, if not given. What is not known is not compared.
    ``mask_column``: the one that the job was given, for stored masks are compared, too.
    ``slow_tokenizer`` compares the Python implementation too. ``sample_limit``: rows that are
    tokenized again, 0 = all. ``trust_remote_code``: run the tokenizer folder's own code.
    """

    log_path: str = ""
    store_dir: str = ""
    mask_column: str = ""
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


class ExportParameters(StoreParameters):
    """Notebook 06. ``export_dir`` empty = one in the run for each trainer, drafter and dtype.

    ``drafter``: one of the trainer's; ``boundaries`` of the store's, empty = all that it reads.
    ``dtype``: ``fp8`` is speculators' layout of half the bytes. ``model_path`` empty = the one that
    the manifest names. ``draft_vocab_size`` 0 = the model's whole vocabulary. ``num_steps``: of the
    drafter trained here; 0 = export only. ``own_answers_store``: of rows that the target answered
    itself (notebook 00, ``regenerate``), to train one more drafter on; empty = none, of the demo
    one that is made. ``encoding_seeds``: so many drafters are trained on plain and on FP8 states,
    to see what that costs; 0 = none, of the demo 3.
    """

    trainer: Literal["speculators", "specforge"] = "speculators"
    drafter: Literal[
        "eagle3", "peagle", "dflash", "dflash2", "domino", "dspark", "xpress", "mtp"
    ] = "eagle3"
    boundaries: Layers = ""
    dtype: Literal["bf16", "fp8"] = "bf16"
    export_dir: str = ""
    model_path: str = ""
    draft_vocab_size: int = Field(320, ge=0)
    num_steps: int = Field(200, ge=0)
    own_answers_store: str = ""
    encoding_seeds: int = Field(0, ge=0)
    seed: int = 0

    @property
    def trains(self) -> bool:
        """Whether a drafter is trained here: speculators' eagle3 has code for it on a CPU."""
        return bool(self.num_steps) and (self.trainer, self.drafter) == ("speculators", "eagle3")

    @property
    def export_path(self) -> Path:
        usual = {"drafter": "eagle3", "dtype": "bf16"}
        chosen = {name: getattr(self, name) for name in usual}
        unusual = [value for name, value in chosen.items() if value != usual[name]]
        default = self.run_path / "export" / "-".join([self.trainer, *unusual])
        return Path(self.export_dir).absolute() if self.export_dir else default

    def chosen_boundaries(self, num_layers: int) -> tuple[int, ...] | None:
        """``boundaries`` as numbers; None = all that the drafter reads.

        Raises:
            ParameterError: not layers of this model.
        """
        return parse_layers(self.boundaries, num_layers) if self.boundaries else None
