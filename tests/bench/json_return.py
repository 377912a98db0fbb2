"""(b) Full extraction against SGLang's own JSON return of the aux states, same server and rows.

    python tests/bench/json_return.py --load wide512 --rows 8

SGLang returns ``tensor.tolist()`` of the aux states (without the final state) in the answer.
"""

from common import arguments, measure, median, report, rows_for, serve

from hslib.server import launch as server


def main() -> None:
    chosen = arguments(__doc__ or "", load="wide512", rows=60, json_rows=4, turns=3)
    with rows_for(chosen.load, chosen.rows) as found:
        load, samples, _ = found
        # SGLang's own return has the aux states beside the final one, as this kit's dumps have
        own = [
            *("--enable-return-hidden-states", "--enable-return-aux-hidden-states"),
            *("--speculative-algorithm", "EAGLE3", "--return-aux-hidden-state-layer-ids"),
            *(str(int(layer) - 1) for layer in load.layers.split(",")),
        ]
        part = samples[: chosen.json_rows]
        with serve(*found, extra_args=own) as bench:

            def ask_all() -> None:
                for sample in part:
                    ask(bench.state, sample.input_ids.tolist())

            bench.extract()  # warm-up
            ours, theirs = [], []
            for _ in range(chosen.turns):
                ours.append(len(samples) / bench.extract().wall_s)
                theirs.append(len(part) / measure(ask_all, bench.state).wall_s)
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
