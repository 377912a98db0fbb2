"""Run tiny models of every family on real servers, and write the table in patches/README.md.

    python tests/real/prove_families.py            # all
    python tests/real/prove_families.py gemma3     # one, and the table anew

A row of ``patches/families.json`` is what one run measured; the table adds SGLang's other classes,
which nothing was run of, with the seam that their source shows.
"""

import sys
import tempfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from make import models as tiny_models
from real import family_table
from real.families import CHUNK, LAYERS, Measured, measure, write_row
from real.servers import end_server
from real.warm import WarmServers

from hslib.errors import HslibError
from hslib.parameters import ServerParameters
from hslib.server import launch as server


def check_server(family: str, folder: Path) -> Measured:
    """Build, serve and compare one family; what refuses it is its row."""
    model = tiny_models.build(family, folder / "model")
    values = {
        "run_dir": str(folder / "run"),
        "model_path": str(model),
        "layers": LAYERS,
        "chunked_prefill_size": CHUNK,
        "extra_args": list(tiny_models.server_args(family)),
    }
    try:
        state = server.start(ServerParameters.from_values(values))
    except HslibError as error:
        name = tiny_models.architecture(model)
        return Measured(family, name, [], 0.0, {}, 0.0, reason=error.message.strip())
    try:
        return measure(family, model, state)
    finally:
        end_server(state)


def main() -> None:
    wanted = sys.argv[1:] or list(tiny_models.ALL_FAMILIES)
    warm = WarmServers(Path(tempfile.mkdtemp()) / "log")
    try:
        for family in wanted:
            with (
                tempfile.TemporaryDirectory() as folder,
                mock.patch.object(server, "spawn", warm.spawn),
            ):
                found = check_server(family, Path(folder))
            print(found, flush=True)
            write_row(found)
    finally:
        warm.close()
    family_table.write()


if __name__ == "__main__":
    main()
