"""The parameters of notebook 02, and of the server that notebook 03 starts for itself."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hslib.parameters.base import CaptureParameters, KeyParameters, dump_path

Port = Annotated[int, Field(ge=0, le=65535)]


class ServerParameters(CaptureParameters, KeyParameters):
    """Notebook 02, and the server that notebook 03 starts for itself.

    ``chunked_prefill_size``: tokens, -1 = off. ``port`` 0 = a free one. ``dump_budget_gb`` 0 = 80 %
    of what the dump directory's file system has free; ``dumps_at_once`` dumps of the longest row
    (``longest_sample`` tokens, 0 = the context length) must fit into it. ``python``: the
    interpreter that runs the server, empty = this one. ``for_job``: the next job that ends stops
    the server.
    """

    renamed: ClassVar[dict[str, str]] = {"concurrency": "dumps_at_once"}

    action: Literal["demo", "start", "status", "stop"] = "demo"
    host: str = "127.0.0.1"
    port: Port = 0
    dp_size: int = Field(1, ge=1)
    chunked_prefill_size: int = Field(-1, ge=-1)
    dump_dir: str = ""
    dump_budget_gb: float = Field(0.0, ge=0)
    dumps_at_once: int = Field(4, ge=1)
    longest_sample: int = Field(0, ge=0)
    dump_all: bool = False
    python: str = ""
    start_timeout_s: float = Field(1800.0, gt=0)
    for_job: bool = False

    @property
    def dump_path(self) -> Path:
        """The dump directory; by default one in tmpfs that belongs to this run alone."""
        return dump_path(self.dump_dir, self.run_path)
