"""(j) What the witness costs: the job with and without it, on two servers of one model, in turns.

    python tests/bench/witness_cost.py --load short --rows 1000
    python tests/bench/witness_cost.py --load wide512 --rows 60

The second server has a plugin of the tests beside the kit's, which reads and compares nothing
after the first pass. The first is measured twice, so that its own spread is seen beside the ratio.
"""

import os
from pathlib import Path

from common import Cost, arguments, median, ratio, report, rows_for, serve

PLANTED = Path(__file__).parents[1] / "real" / "planted"


def main() -> None:
    chosen = arguments(__doc__ or "", load="short", rows=1000, turns=5)
    with rows_for(chosen.load, chosen.rows) as found, serve(*found, run="witnessed") as witnessed:
        os.environ |= {"PYTHONPATH": str(PLANTED), "HS_UNWITNESSED": "1"}
        with serve(*found, run="silent") as silent:
            arms: dict[str, list[Cost]] = {"without": [], "with": [], "with again": []}
            servers = {"without": silent, "with": witnessed, "with again": witnessed}
            for turn in range(chosen.turns + 1):
                for arm, bench in servers.items():
                    cost = bench.extract()
                    if turn:  # the first warms up
                        arms[arm].append(cost)
    row = {"load": chosen.load, "rows": chosen.rows, "turns": chosen.turns}
    for arm, costs in arms.items():
        row[f"{arm} samples/s"] = chosen.rows / median([cost.wall_s for cost in costs])
    for arm in ("with", "with again"):
        more = [b.cpu_s - a.cpu_s for a, b in zip(arms["without"], arms[arm], strict=True)]
        row[f"{arm} / without"] = ratio(arms["without"], arms[arm])
        row[f"{arm} CPU ms a row"] = median(more) / chosen.rows * 1e3
    report("(j) the job with and without the witness", [row], chosen.out)


if __name__ == "__main__":
    main()
