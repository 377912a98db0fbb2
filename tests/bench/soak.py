"""Memory of client and server over a long job of short rows on a real server.

python tests/bench/soak.py --rows 20000 --png soak.png
"""

import threading
import time
from typing import Any

import psutil
from common import arguments, report, served

from hslib.server import launch as server
from hslib.server import processes


def main() -> None:
    chosen = arguments(__doc__ or "", rows=20_000, png="")
    with served("short", chosen.rows) as bench:
        seen: list[dict[str, float]] = []
        ended = threading.Event()
        watcher = threading.Thread(target=watch, args=(bench.state, seen, ended))
        watcher.start()
        bench.extract()
        ended.set()
        watcher.join()
    tenth = seen[len(seen) // 10]
    last = seen[-1]
    rows = [{"moment": name, **found} for name, found in (("a tenth", tenth), ("the end", last))]
    if chosen.png:
        draw(seen, chosen.rows, chosen.png)
    report(f"soak: {chosen.rows} rows of 64 tokens", rows, chosen.out)


def watch(state: server.ServerState, seen: list[dict[str, float]], ended: threading.Event) -> None:
    """Resident memory, at once and then once a second."""
    started, pause_s = time.monotonic(), 0.0
    while not ended.wait(pause_s):
        pause_s = 1.0
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
