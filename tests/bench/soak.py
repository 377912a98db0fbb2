"""Memory of client and server over a long job of short rows on a real server.

python tests/bench/soak.py --rows 20000 --png soak.png
"""

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from common import arguments, job, open_endpoints, report, rows_of, serve, workload

from hslib import extract
from hslib.server import launch as server
from hslib.server import processes


def main() -> None:
    chosen = arguments(__doc__ or "", rows=20_000, png="")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = workload("short", folder, chosen.rows)
        rows_of(load, folder / "rows.jsonl")
        with serve(load, folder) as state:
            parameters = job(load, state, folder)
            fleet = open_endpoints(parameters)
            planned = extract.prepare(parameters, fleet)
            seen: list[dict[str, float]] = []
            ended = threading.Event()
            watcher = threading.Thread(target=watch, args=(state, seen, ended))
            watcher.start()
            extract.run(planned, fleet).require_whole()
            ended.set()
            watcher.join()
    tenth = seen[len(seen) // 10]
    last = seen[-1]
    rows = [{"moment": name, **found} for name, found in (("a tenth", tenth), ("the end", last))]
    if chosen.png:
        draw(seen, chosen.rows, chosen.png)
    report(f"soak: {chosen.rows} rows of 64 tokens", rows, chosen.out)


def watch(state: server.ServerState, seen: list[dict[str, float]], ended: threading.Event) -> None:
    """Resident memory once a second."""
    started = time.monotonic()
    while not ended.wait(1.0):
        served = sum(process.memory_info().rss for process in processes.members(state))
        own = psutil.Process().memory_info().rss
        now = time.monotonic() - started
        seen.append({"s": now, "client MB": own / 1e6, "server MB": served / 1e6})


def draw(seen: list[dict[str, float]], rows: int, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.5), layout="constrained")
    axes: Any = figure.subplots()
    seconds = [one["s"] for one in seen]
    for name, color in (("client MB", "#0072B2"), ("server MB", "#D55E00")):
        axes.plot(seconds, [one[name] for one in seen], color=color, label=name.split()[0])
    axes.set_ylim(0)
    axes.set_xlabel("seconds of the job")
    axes.set_ylabel("resident memory, MB")
    axes.set_title(f"soak: {rows:,} rows of 64 tokens on a real server")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
