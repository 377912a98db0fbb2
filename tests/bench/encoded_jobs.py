"""(o) The whole job with each encoding against the same job with ``plain``, on one server.

python tests/bench/encoded_jobs.py --load wide512 --rows 48
"""

from common import Cost, arguments, median, ratio, report, served

from hslib.store import CODECS


def main() -> None:
    chosen = arguments(__doc__ or "", load="wide512", rows=48, turns=4)
    with served(chosen.load, chosen.rows) as bench:
        bench.extract()  # warm-up
        costs: dict[str, list[Cost]] = {encoding: [] for encoding in CODECS}
        for _ in range(chosen.turns):
            for encoding in CODECS:
                costs[encoding].append(bench.extract(encoding=encoding))
        gigabytes = bench.size_bytes / 1e9
    rows = [
        {
            "encoding": encoding,
            "samples/s": chosen.rows / median([cost.wall_s for cost in found]),
            "job / plain job": ratio(costs["plain"], found),
            "CPU s/GB more": median(
                [c.cpu_s - p.cpu_s for c, p in zip(found, costs["plain"], strict=True)]
            )
            / gigabytes,
        }
        for encoding, found in costs.items()
    ]
    report(f"(o) jobs by encoding, {chosen.load}", rows, chosen.out)


if __name__ == "__main__":
    main()
