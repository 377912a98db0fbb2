"""The parameters of notebook 03: the job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

import pydantic
from pydantic import Field

from hslib.parameters.base import (
    CaptureParameters,
    DatasetParameters,
    KeyParameters,
    StoreParameters,
    dump_path,
    named_urls,
)


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

    ``encoding``: how files keep the states; ``lossless`` gives the same bits back, ``fp8`` and
    ``fp8-aux`` (final in bfloat16) do not: a sample of which a token's state would lose more than
    ``max_encoding_error`` (relative, L2) fails.

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
    encoding: Literal["plain", "lossless", "fp8", "fp8-aux"] = "plain"
    max_encoding_error: float = Field(0.05, gt=0)
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
        return named_urls(self.server_url)

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
        if self.encoding == "fp8-aux" and not self.store_final:
            yield 'encoding "fp8-aux" is for a stored final state: use "fp8", or store_final = True'
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
