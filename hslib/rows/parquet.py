"""Lines of rows as a Parquet file."""

import os
from itertools import islice
from pathlib import Path

import orjson

_GROUP = 1024  # rows


def write_parquet(lines: Path, out: Path) -> None:
    """Write JSON lines to ``out``, group by group; it appears when it is whole."""
    import pyarrow
    import pyarrow.parquet

    types = {
        "id": pyarrow.string(),
        "input_ids": pyarrow.list_(pyarrow.int32()),
        "loss_mask": pyarrow.list_(pyarrow.uint8()),
        "source_index": pyarrow.int64(),
        "turn": pyarrow.int32(),
        "stop_reasons": pyarrow.list_(pyarrow.string()),
    }
    with lines.open("rb") as rows:
        names = orjson.loads(rows.readline() or "{}").keys() or types.keys() - {"stop_reasons"}
    schema = pyarrow.schema({name: kind for name, kind in types.items() if name in names})
    temporary = out.with_name(f".{out.name}.partial")
    with (
        lines.open("rb") as rows,
        pyarrow.parquet.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        while group := [orjson.loads(line) for line in islice(rows, _GROUP)]:
            writer.write_table(pyarrow.Table.from_pylist(group, schema))
    with temporary.open("rb") as written:
        os.fsync(written.fileno())
    temporary.replace(out)
