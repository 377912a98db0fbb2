"""(d) From dump to durable store (validate, hash, write, fsync, commit) against ``cp`` + sync.

    python tests/bench/store_copy.py --samples 32 --tokens 512

Dumps lie in tmpfs, the store on disk; ``cp`` copies the same files there and syncs them too,
by as many processes as there are threads.
"""

import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import arguments, measure, median, ratio, report
from make import stores
from make.dumps import write_dump
from make.rows import random_sample

from hslib.dataset import Sample
from hslib.server.dumps import DumpDir
from hslib.server.plugin_info import Expected
from hslib.server.validate import validate
from hslib.store import Manifest, StoreWriter

HIDDEN, BOUNDARIES = 7168, (3, 31, 59)


def main() -> None:
    chosen = arguments(__doc__ or "", samples=32, tokens=512, threads=4, turns=5)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as dumps_name,
        tempfile.TemporaryDirectory() as disk_name,
    ):
        dumps, disk = DumpDir(dumps_name), Path(disk_name)
        samples = [make_dump(dumps, i, chosen.tokens) for i in range(chosen.samples)]
        size = sum(p.stat().st_size for p in Path(dumps_name).rglob("*.safetensors"))
        ours, theirs = [], []
        for turn in range(chosen.turns):
            ours.append(
                measure(lambda t=turn: store_all(dumps, samples, disk / f"s{t}", chosen.threads))
            )
            theirs.append(
                measure(lambda t=turn: copy_all(dumps, samples, disk / f"c{t}", chosen.threads))
            )
            subprocess.run(["rm", "-rf", disk / f"s{turn}", disk / f"c{turn}"], check=True)
    row = {
        "samples": len(samples),
        "tokens": chosen.tokens,
        "GB": size / 1e9,
        "store GB/s": size / 1e9 / median([c.wall_s for c in ours]),
        "cp GB/s": size / 1e9 / median([c.wall_s for c in theirs]),
        "store / cp": ratio(theirs, ours),
        "store CPU s/GB": median([c.cpu_s for c in ours]) / (size / 1e9),
        "cp CPU s/GB": median([c.cpu_s for c in theirs]) / (size / 1e9),
    }
    report("(d) dump to store against cp", [row], chosen.out)


def make_dump(dumps: DumpDir, index: int, tokens: int) -> Sample:
    sample = random_sample(index, tokens, vocab_size=1000)
    write_dump(dumps.root, f"d{index}", sample, Expected(BOUNDARIES, HIDDEN))
    return sample


def store_all(dumps: DumpDir, samples: list[Sample], path: Path, threads: int) -> None:
    expected = Expected(BOUNDARIES, HIDDEN)
    with (
        StoreWriter(path, manifest()) as writer,
        ThreadPoolExecutor(threads) as pool,
    ):

        def store(sample: Sample) -> None:
            dump = dumps.load(f"d{sample.index}")
            writer.put(sample, *dump.captured(), validate(dump, sample, expected), 1, 0.0)

        list(pool.map(store, samples))


def copy_all(dumps: DumpDir, samples: list[Sample], path: Path, threads: int) -> None:
    path.mkdir()

    def copy(sample: Sample) -> None:
        target = path / f"{sample.index}.safetensors"
        source = dumps.root / f"d{sample.index}/hidden_states.safetensors"
        subprocess.run(["cp", source, target], check=True)
        subprocess.run(["sync", target], check=True)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(copy, samples))


def manifest() -> Manifest:
    return stores.manifest(
        boundaries=BOUNDARIES, hidden_size=HIDDEN, num_layers=61, vocab_size=1000
    )


if __name__ == "__main__":
    main()
