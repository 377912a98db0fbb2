"""SGLang plugin of the tests: breaks what the hooks of hs_dump keep, as a faulty capture would.

``HS_PLANTED`` names a file; the fault that it names is in force from the next pass on.
``HS_DEADLY=7`` ends the server, all its processes, in a pass with token 7 twice running. While the
file is there that ``HS_UNWITNESSED`` names, nothing is read and nothing compared: what the witness
costs is the difference. With ``HS_CACHED=1`` the plugin does not switch SGLang's prefix cache off.
"""

import os
import signal
from pathlib import Path
from typing import Any


def register() -> None:
    """Called by SGLang in each of its processes."""
    if os.environ.get("HS_UNWITNESSED"):
        silence()
    if os.environ.get("HS_PLANTED"):
        spoil()
    if os.environ.get("HS_DEADLY"):
        die(int(os.environ["HS_DEADLY"]))
    if os.environ.get("HS_CACHED"):
        from hs_dump import server_flags

        server_flags.NEEDED = ()  # as where somebody's own launcher makes the arguments


def silence() -> None:
    """While the file is there: no reading, no comparison, a dump says that its states are right."""
    import numpy as np
    from hs_dump.capture import Capture
    from hs_dump.recorder import Recorder
    from hs_dump.seams import Seen
    from hs_dump.witness import Testimony
    from hs_dump.writer import Pass

    named = Path(os.environ["HS_UNWITNESSED"])
    read, testimony, begin, witness = Seen.read, Recorder.testimony, Capture.begin, Pass.witness

    def reading(self: Any, *given: Any) -> None:
        if self.index is not None:
            read(self, *given)

    def testify(self: Any, *given: Any) -> Any:
        is_witnessed = self.seen.index is not None
        return testimony(self, *given) if is_witnessed else Testimony((), len(self.places))

    def beginning(self: Any, batch: Any) -> None:
        begin(self, batch)
        if self._recorder.proof is not None and named.exists():
            self._recorder.seen.index = None

    def witnessing(self: Any, *rows: int) -> Any:
        is_witnessed = bool(self._testimony.checks)
        return witness(self, *rows) if is_witnessed else (1, np.zeros(len(self.states)))

    Seen.read, Recorder.testimony = reading, testify  # type: ignore[method-assign]
    Capture.begin, Pass.witness = beginning, witnessing  # type: ignore[method-assign]


def die(token: int) -> None:
    """As a row does that a kernel crashes on; a canary's random ids hardly ever have it twice."""
    from hs_dump.capture import Capture

    begin = Capture.begin

    def deadly(self: Any, batch: Any) -> None:
        found = batch.input_ids == token
        if bool((found[1:] & found[:-1]).any()):
            os.killpg(os.getpgrp(), signal.SIGKILL)
        begin(self, batch)

    Capture.begin = deadly  # type: ignore[method-assign]


def spoil() -> None:
    """Wrap ``Seen.keep``, through which every captured state goes."""
    from hs_dump.seams import Seen, is_state

    keep = Seen.keep
    before: dict[str, Any] = {}
    reused: list[Any] = []

    def planted(self: Any, place: Any, seam: str, value: Any, owned: bool) -> None:
        fault = Path(os.environ["HS_PLANTED"]).read_text().strip()
        if fault and is_state(value, self.rows):
            value, owned = spoiled(self, fault, place, seam, value.clone()), True
        keep(self, place, seam, value, owned)

    def spoiled(seen: Any, fault: str, place: Any, seam: str, value: Any) -> Any:
        is_output = seam.startswith("output ")
        if fault == "final before the norm" and is_output:
            return seen.states[place, seam.replace("output ", "norm ")].clone()
        if fault == "a neighbour's rows" and place == 3:
            return value.roll(1, 0)
        if fault == "one wrong token" and place == 3:
            value[seen.rows // 2] = 1.0
        if fault == "one layer off" and isinstance(place, int):
            earlier = before.get(seam)
            before[seam] = value.clone()
            return value if earlier is None or place == 1 else earlier
        if fault == "a buffer used again" and place == 3:
            reused.append(value[: seen.rows])
        elif fault == "a buffer used again":
            while reused:
                reused.pop().copy_(value[: seen.rows])  # the next layer's
        return value

    Seen.keep = planted  # type: ignore[method-assign]
