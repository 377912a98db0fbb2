"""(b) Full extraction against SGLang's own JSON return of the aux states, same server and rows.

    python tests/bench/json_return.py --load wide512 --rows 8

SGLang returns ``tensor.tolist()`` of the aux states (without the final state) in the answer.
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

from hslib.server import launch as server


def main() -> None:
    chosen = arguments(__doc__ or "", load="wide512", rows=60, json_rows=4, turns=3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = workload(chosen.load, folder, chosen.rows)
        samples = rows_of(load, folder / "rows.jsonl")
        # SGLang's own return has the aux states beside the final one, as this kit's dumps have
        own = [
            *("--enable-return-hidden-states", "--enable-return-aux-hidden-states"),
            *("--speculative-algorithm", "EAGLE3", "--return-aux-hidden-state-layer-ids"),
            *(str(int(layer) - 1) for layer in load.layers.split(",")),
        ]
        with serve(load, folder, extra_args=own) as state:
            fleet = open_endpoints(job(load, state, folder))
            extract_all(job(load, state, folder), fleet)  # warm-up
            ours, theirs = [], []
            for _ in range(chosen.turns):
                wanted = job(load, state, folder)
                cost = measure(lambda w=wanted: extract_all(w, fleet), state)
                ours.append(len(samples) / cost.wall_s)
                part = samples[: chosen.json_rows]
                cost = measure(lambda p=part: [ask(state, s.input_ids.tolist()) for s in p], state)
                theirs.append(len(part) / cost.wall_s)
    row = {
        "load": load.name,
        "ours samples/s": median(ours),
        "JSON samples/s": median(theirs),
        "ours / JSON": median([a / b for a, b in zip(ours, theirs, strict=True)]),
    }
    report("(b) full extraction against JSON return", [row], chosen.out)


def ask(state: server.ServerState, ids: list[int]) -> None:
    """One request with the states in its answer, parsed."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_hidden_states": True,
    }
    with server.client_of(state) as client:
        answer = client._http.post("/generate", json=body).json()
    assert answer["meta_info"]["hidden_states"], "this server returned no states"


if __name__ == "__main__":
    main()
