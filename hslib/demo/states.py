"""The demo's states, extracted when a notebook wants them and nobody has run notebook 03 yet."""

from collections.abc import Callable

from hslib import extract
from hslib.job.progress import ProgressState
from hslib.parameters import ExtractionParameters, StoreParameters
from hslib.server import endpoints as serving
from hslib.store.reader import Store


def require_store(
    parameters: StoreParameters, show: Callable[[str], None] = lambda _line: None
) -> Store:
    """The store that is meant; the demo's is made first where it is not there.

    Raises:
        StoreError: another run's store is not there.
        HslibError: the demo could not be extracted.
    """
    if parameters.is_demo and not (parameters.run_path / "store/manifest.json").exists():
        _extract(parameters, show)
    store = Store(parameters.store_path)
    show(f"ready: {len(store)} samples are in the store")
    return store


def _extract(parameters: StoreParameters, show: Callable[[str], None]) -> None:
    """What notebook 03 does with its defaults."""

    def tell(state: ProgressState) -> None:
        show(f"extracting the demo: {state.ok} of {state.asked}")

    extraction = ExtractionParameters(run_dir=parameters.run_dir)
    fleet = serving.open_fleet(extraction, lambda line: show(f"starting the demo's server: {line}"))
    try:
        extract.run(extract.prepare(extraction, fleet), fleet, tell).require_whole()
    finally:
        fleet.close()
