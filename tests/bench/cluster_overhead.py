"""(i) The demo job on Ray with one replica / the same in this process, on the same server.

python tests/bench/cluster_overhead.py
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from common import arguments, median, report

from hslib import extract
from hslib.cluster.opening import open_cluster
from hslib.parameters import ExtractionParameters
from hslib.server import launch as server
from hslib.server.endpoints import open_endpoints


def main() -> None:
    chosen = arguments(__doc__ or "", turns=5, rows=256)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def parameters(**values: Any) -> ExtractionParameters:
            store = tempfile.mkdtemp(dir=folder)
            values = {
                "run_dir": str(folder / "run"),
                "store_dir": f"{store}/store",
                "limit": chosen.rows,
                **values,
            }
            return ExtractionParameters.from_values(values)

        cluster = open_cluster(parameters(ray_address="local"), print)
        state = server.read_state(folder / "run/replicas/00000")
        assert state is not None
        fleet = open_endpoints(parameters(server_url=state.url, dump_dir=state.dump_dir))
        seconds: dict[str, list[float]] = {"in this process": [], "on Ray": []}
        try:
            for turn in range(chosen.turns + 1):  # the first warms the server up
                here = parameters(
                    run_dir=str(folder / "here"), server_url=state.url, dump_dir=state.dump_dir
                )
                arms = [
                    ("in this process", here, fleet),
                    ("on Ray", parameters(ray_address="local"), cluster),
                ]
                for arm, wanted, servers in arms if turn % 2 else reversed(arms):
                    started = time.perf_counter()
                    assert extract.run(extract.prepare(wanted, servers), servers).is_whole
                    if turn:
                        seconds[arm].append(time.perf_counter() - started)
        finally:
            cluster.close()
    here_s, ray_s = (median(seconds[arm]) for arm in ("in this process", "on Ray"))
    pairs = [b / a for a, b in zip(*seconds.values(), strict=True)]
    rows = [
        {
            "in_process_s": here_s,
            "ray_s": ray_s,
            "ray / in process": ray_s / here_s,
            "least": min(pairs),
            "most": max(pairs),
        }
    ]
    report("(i) the Ray path", rows, chosen.out)


if __name__ == "__main__":
    main()
