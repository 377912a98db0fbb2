"""(j) What the witness costs: the job with and without it, on one server, in turns.

    python tests/bench/witness_cost.py --load short --rows 1000
    python tests/bench/witness_cost.py --load wide512 --rows 60

A plugin of the tests beside the kit's reads and compares nothing while a file is there. Both arms
are measured twice in each turn, so that each one's own spread is seen beside the ratio.
"""

import os
from pathlib import Path

from common import Cost, arguments, median, ratio, report, rows_for, serve

PLANTED = Path(__file__).parents[1] / "real" / "planted"
ARMS = ("without", "with", "with again", "without again")


def main() -> None:
    chosen = arguments(__doc__ or "", load="short", rows=1000, turns=5)
    costs: dict[str, list[Cost]] = {arm: [] for arm in ARMS}
    with rows_for(chosen.load, chosen.rows) as (load, samples, folder):
        silent = folder / "silent"
        os.environ |= {"PYTHONPATH": str(PLANTED), "HS_UNWITNESSED": str(silent)}
        with serve(load, samples, folder) as bench:
            for turn in range(chosen.turns + 1):
                for arm in ARMS:
                    silent.unlink(missing_ok=True)
                    if arm.startswith("without"):
                        silent.touch()
                    cost = bench.extract()
                    if turn:  # the first warms up
                        costs[arm].append(cost)
    row: dict[str, object] = {"load": chosen.load, "rows": chosen.rows, "turns": chosen.turns}
    for arm in ARMS:
        row[f"{arm}, samples/s"] = chosen.rows / median([cost.wall_s for cost in costs[arm]])
    for arm in ARMS[1:]:
        more = [b.cpu_s - a.cpu_s for a, b in zip(costs["without"], costs[arm], strict=True)]
        row[f"{arm} / without"] = ratio(costs["without"], costs[arm])
        row[f"{arm}, CPU ms a row more"] = median(more) / chosen.rows * 1e3
    both = {kind: costs[kind] + costs[f"{kind} again"] for kind in ("with", "without")}
    seconds = {kind: sum(cost.wall_s for cost in found) for kind, found in both.items()}
    row["all with / all without"] = seconds["without"] / seconds["with"]
    report("(j) the job with and without the witness", [row], chosen.out)


if __name__ == "__main__":
    main()
