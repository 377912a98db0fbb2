"""(c) The job against one-at-a-time clear-and-scan (the case study's cure), same server, rows.

python tests/bench/one_at_a_time.py --rows 600
"""

import tempfile
from pathlib import Path

from common import (
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


def main() -> None:
    chosen = arguments(__doc__ or "", load="short", rows=600, turns=3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = workload(chosen.load, folder, chosen.rows)
        samples = rows_of(load, folder / "rows.jsonl")
        with serve(load, folder, dump_all=True) as state:
            fleet = open_endpoints(job(load, state, folder))
            extract_all(job(load, state, folder), fleet)  # warm-up
            many, single = [], []
            for _ in range(chosen.turns):
                wanted = job(load, state, folder)
                many.append(measure(lambda w=wanted: extract_all(w, fleet), state).wall_s)
                wanted = job(load, state, folder, scan_scope="directory")
                single.append(measure(lambda w=wanted: extract_all(w, fleet), state).wall_s)
    row = {
        "load": load.name,
        "rows": len(samples),
        "job samples/s": len(samples) / median(many),
        "one at a time samples/s": len(samples) / median(single),
        "job / one at a time": median([b / a for a, b in zip(many, single, strict=True)]),
    }
    report("(c) the job against one-at-a-time clear-and-scan", [row], chosen.out)


if __name__ == "__main__":
    main()
