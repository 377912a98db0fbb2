"""SGLang plugin of the tests: breaks what the hooks of hs_dump keep, as a faulty capture would.

``HS_PLANTED`` names a file; the fault that it names is in force from the next pass on.
"""

import os
from pathlib import Path
from typing import Any


def register() -> None:
    """Wrap ``Seen.keep``, through which every captured state goes."""
    from hs_dump.seams import Seen, is_state

    keep = Seen.keep
    before: dict[str, Any] = {}

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
            before["reused"] = value
        elif fault == "a buffer used again" and before.get("reused") is not None:
            before.pop("reused").copy_(value[: seen.rows])  # the next layer's
        return value

    Seen.keep = planted  # type: ignore[method-assign]
