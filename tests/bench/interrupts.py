"""Interrupts at random instants: papermill, a terminal, SIGTERM, a Slurm step, kill -9.

After each: no process, nothing in /dev/shm, no row lost or done twice, and a status that says how
to go on; at the end a run that resumes. The servers are hand-made; ``--real 1`` adds one interrupt
of each way with a real one.
"""

import signal
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import arguments, report
from fakes import server_process
from make import models as tiny_models
from real.interrupted import FAKE, Interrupted, instants, way_of

SLOW = {server_process.ANSWER_S: "0.05"}  # four at once: 80 rows/s at most


def measure(way: str, job: Interrupted, times: int, start_s: float) -> dict[str, object]:
    """Interrupt a job again and again, and finish it; fails at the first thing left behind."""
    said = [
        job.interrupt(way, after_s, of_extraction)
        for after_s, of_extraction in instants(times, seed=len(way), start_s=start_s)
    ]
    begun = [words for words in said if words]
    assert all(words.startswith(("interrupted", "finished")) for words in begun), begun
    job.finish()
    return {
        "way": way,
        "interrupts": times,
        "and status says so": sum(words.startswith("interrupted") for words in begun),
        "rows": job.num_rows,
        "all over after s": statistics.median(job.over_s),
        "at most": max(job.over_s),
    }


def main() -> None:
    wanted = arguments(__doc__ or "", times=20, real=0, ways=",".join(way_of))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs of a background job heed it
    rows = []
    with tempfile.TemporaryDirectory() as name:
        model = tiny_models.build("llama", Path(name, "model"))
        for way in wanted.ways.split(","):
            folder = Path(name, way)
            folder.mkdir()
            fake = {"HS_STARTUP": FAKE, **SLOW, **server_process.for_kernels(folder)}
            fakes = Interrupted(folder, model, fake, num_rows=100 * wanted.times)
            rows.append(measure(way, fakes, wanted.times, start_s=6.0))
            if wanted.real:
                folder = Path(name, f"{way}-real")
                folder.mkdir()
                real = Interrupted(folder, model, {"HS_STARTUP": ""}, num_rows=5000)
                found = measure(way, real, wanted.real, start_s=30.0)
                rows.append({**found, "way": f"{way}, real server"})
    report("Interrupts, and nothing left behind", rows, wanted.out)


if __name__ == "__main__":
    main()
