"""(j) What the witness costs: the job with and without it, on two servers of one model, in turns.

    python tests/bench/witness_cost.py --load short --rows 1000
    python tests/bench/witness_cost.py --load wide512 --rows 60

The second server has a plugin of the tests beside the kit's, which reads and compares nothing
after the first pass. The first is measured twice, so that its own spread is seen beside the ratio.
"""

import os
import shutil
import tempfile
from pathlib import Path

from common import (
    Cost,
    arguments,
    extract_all,
    job,
    measure,
    median,
    open_endpoints,
    report,
    rows_of,
    serve,
    workload,
)

PLANTED = Path(__file__).parents[1] / "real" / "planted"


def main() -> None:
    chosen = arguments(__doc__ or "", load="short", rows=1000, turns=5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = workload(chosen.load, folder, chosen.rows)
        rows_of(load, folder / "rows.jsonl")
        with serve(load, folder / "witnessed") as witnessed:
            os.environ |= {"PYTHONPATH": str(PLANTED), "HS_UNWITNESSED": "1"}
            with serve(load, folder / "silent") as silent:
                arms: dict[str, list[Cost]] = {"without": [], "with": [], "with again": []}
                servers = {"without": silent, "with": witnessed, "with again": witnessed}
                fleets = {arm: open_endpoints(job(load, s, folder)) for arm, s in servers.items()}
                for turn in range(chosen.turns + 1):
                    for arm, state in servers.items():
                        wanted = job(load, state, folder)
                        work = lambda w=wanted, f=fleets[arm]: extract_all(w, f)  # noqa: E731
                        cost = measure(work, state)
                        shutil.rmtree(wanted.run_path)
                        if turn:  # the first warms up
                            arms[arm].append(cost)
    row = {"load": load.name, "rows": len(load.lengths), "turns": chosen.turns}
    for arm, costs in arms.items():
        row[f"{arm} samples/s"] = len(load.lengths) / median([cost.wall_s for cost in costs])
    for arm in ("with", "with again"):
        pairs = list(zip(arms["without"], arms[arm], strict=True))
        row[f"{arm} / without"] = median([a.wall_s / b.wall_s for a, b in pairs])
        row[f"{arm} CPU ms a row"] = (
            median([b.cpu_s - a.cpu_s for a, b in pairs]) / len(load.lengths) * 1e3
        )
    report("(j) the job with and without the witness", [row], chosen.out)


if __name__ == "__main__":
    main()
