"""(c) The job against one-at-a-time clear-and-scan (the case study's cure), same server, rows.

python tests/bench/one_at_a_time.py --rows 600
"""

from common import arguments, median, ratio, report, served


def main() -> None:
    chosen = arguments(__doc__ or "", load="short", rows=600, turns=3)
    with served(chosen.load, chosen.rows, dump_all=True) as bench:
        bench.extract()  # warm-up
        many, single = [], []
        for _ in range(chosen.turns):
            many.append(bench.extract())
            single.append(bench.extract(scan_scope="directory"))
    row = {
        "load": chosen.load,
        "rows": chosen.rows,
        "job samples/s": chosen.rows / median([cost.wall_s for cost in many]),
        "one at a time samples/s": chosen.rows / median([cost.wall_s for cost in single]),
        "job / one at a time": ratio(single, many),
    }
    report("(c) the job against one-at-a-time clear-and-scan", [row], chosen.out)


if __name__ == "__main__":
    main()
