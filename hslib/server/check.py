"""Whether a server really captures: its plugin.json, its settings, one canary request.

A server whose plugin did not load answers 200 and dumps nothing. Only a dump that comes back and
validates shows that it works.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from hslib.dataset import Sample
from hslib.errors import DumpError, RequestError, ServerError
from hslib.model import Canary, canary_ids, model_differences, take_canary
from hslib.server.client import ServerClient, ServerSettings
from hslib.server.dumps import DumpDir, request_id
from hslib.server.plugin_info import Expected, PluginInfo
from hslib.server.validate import validate

_CANARY_TOKENS = 8
_CANARY_INDEX = 999_999_999
_NO_PLUGIN = (
    "the server runs without the hs_dump plugin: install ./patches/hs_dump into its "
    "interpreter, set SGLANG_HS_DUMP_DIR to this dump directory, and leave SGLANG_PLUGINS unset "
    "or list hs_dump in it"
)


@dataclass(frozen=True)
class ServerCheck:
    """What a server that passed the check serves."""

    plugin: PluginInfo
    settings: ServerSettings
    canary: Canary | None = None  # None: not recorded
    mark: tuple[int, int] = (0, 0)  # DumpDir.plugin_mark() when plugin.json was read

    @property
    def expected(self) -> Expected:
        return self.plugin.expected

    def facts(self) -> dict[str, str]:
        """What was checked, for a table; the same on every host."""
        plugin, settings = self.plugin, self.settings
        facts = {
            "SGLang, plugin": f"{plugin.sglang_version}, hs_dump {plugin.plugin_version}",
            "model": f"{plugin.model_class}: {plugin.num_layers} layers, hidden size "
            f"{plugin.hidden_size}, vocabulary {plugin.vocab_size}",
            "boundaries": ", ".join(map(str, plugin.boundaries)) or "none",
            "final": "after the last norm" if plugin.stores_final else "not stored",
            "states": plugin.witness_sentence(),
            "dtype": plugin.dtype,
            "prefix cache": "off" if settings.disable_radix_cache else "ON",
            "speculative decoding": settings.speculative_algorithm or "off",
            "cutting of long rows": "ON" if settings.allow_auto_truncate else "off",
            "chunked prefill": f"{settings.chunked_prefill_size} tokens"
            if (settings.chunked_prefill_size or -1) > 0
            else "off",
            "longest row": f"{settings.max_req_input_len:,} tokens",
            "canary request": "dumped, removed; NOT WITNESSED in every state"
            if plugin.unwitnessed
            else "dumped, witnessed at every token, removed",
        }
        if not plugin.weights_checked:
            facts["missing tensors"] = "NOT CHECKED: this load format bypasses the check"
        if plugin.accepted_missing:
            facts["LACKS, by SGLANG_HS_DUMP_ACCEPT_MISSING"] = "; ".join(plugin.accepted_missing)
        return facts


def check_server(
    client: ServerClient, dumps: DumpDir, *, not_before: float = 0.0, timeout_s: float = 60.0
) -> ServerCheck:
    """Check one server with two canary rows.

    Args:
        not_before: unix seconds; an older plugin.json is an earlier server's.

    Raises:
        ServerError: with the cure.
    """
    plugin = check_plugin(dumps, not_before)
    settings = client.settings()
    problems = settings.problems()
    if problems:
        raise ServerError(
            "the server's settings would make wrong dumps: " + "; ".join(problems),
            fix="restart it so",
        )
    try:
        # each data-parallel replica has a model of its own
        own = range(plugin.replicas) if plugin.replicas > 1 else [None]
        canary, *_ = [send_canary(client, dumps, plugin, timeout_s, replica) for replica in own]
    except ServerError:
        check_plugin(dumps, not_before)  # the plugin's own reason says more
        raise
    mark = dumps.plugin_mark()  # before reading: the first pass has rewritten plugin.json
    return ServerCheck(check_plugin(dumps, not_before, proven=True), settings, canary, mark)


def check_plugin(dumps: DumpDir, not_before: float = 0.0, *, proven: bool = False) -> PluginInfo:
    """``plugin.json`` of a capture that works.

    Args:
        proven: the first pass is over, so plugin.json must have a proof of every state.

    Raises:
        ServerError: no plugin.json, an older one, or one that names problems.
    """
    plugin = dumps.plugin()
    if plugin is None or plugin.written_at < not_before:
        age = "" if plugin is None else " (the one there is from an earlier server)"
        raise ServerError(f"no plugin.json in {dumps.root}{age}", fix=_NO_PLUGIN)
    if plugin.problems:
        raise ServerError(
            "the plugin can't capture on this server: " + "; ".join(plugin.problems),
            fix="correct that and start the server again",
            model_class=plugin.model_class,
        )
    if proven and len(plugin.capture) != len(plugin.boundaries) + plugin.stores_final:
        raise ServerError(
            f"hs_dump {plugin.plugin_version} does not say how each state was proven",
            fix="install this version's plugin: pip install ./patches/hs_dump",
        )
    return plugin


def send_canary(
    client: ServerClient,
    dumps: DumpDir,
    plugin: PluginInfo,
    timeout_s: float,
    replica: int | None = None,
) -> Canary:
    """Send two rows in one request, and validate and remove their dumps.

    One row has random ids, so that no earlier dump can pass for its own. The other has fixed ids:
    its states tell this model from another.

    Raises:
        ServerError: a dump did not come back, or is not its row's.
    """
    random, vocab_size = np.random.default_rng(), plugin.vocab_size
    fresh = random.integers(0, vocab_size, size=_CANARY_TOKENS, dtype=np.int32)
    samples = [
        Sample(_CANARY_INDEX, "canary", ids, np.ones(len(ids), np.uint8))
        for ids in (fresh, canary_ids(vocab_size))
    ]
    # a random attempt: another job may check the same server with the same row just now
    rids = [request_id(sample, int(random.integers(1 << 31))) for sample in samples]
    started = time.monotonic()
    try:
        client.prefill([sample.input_ids for sample in samples], rids, replica)
        for sample, rid in zip(samples, rids, strict=True):
            dumps.wait(rid, timeout_s)
            plugin = dumps.plugin() or plugin  # the first pass chose each state's witness
            validate(dumps.load(rid), sample, plugin.expected)
        return take_canary(dumps.load(rids[-1]).hidden_states)
    except (DumpError, RequestError) as error:
        raise ServerError(
            f"the canary request was not dumped right: {error.message}",
            waited_s=round(time.monotonic() - started, 1),
            dump_dir=str(dumps.root),
            fix="is this the server that dumps into this directory? see its log",
            **error.fields,
        ) from error
    finally:
        dumps.clear(rids)


def differences(one: ServerCheck, other: ServerCheck) -> dict[str, tuple[Any, Any]]:
    """``{field: (one's, other's)}`` of what two servers serve. Pure."""
    first, second = one.plugin.identity(), other.plugin.identity()
    found = {name: (first[name], second[name]) for name in first if first[name] != second[name]}
    weights = (one.plugin.weights, other.plugin.weights)
    # states of other layers say nothing of the model
    same_states = not {"boundaries", "stores_final"} & found.keys()
    canaries = (one.canary, other.canary) if same_states else (None, None)
    return found | model_differences(
        weights, canaries, one.plugin.boundaries, one.plugin.num_layers
    )


def require_same(name: str, check: ServerCheck, other_name: str, other: ServerCheck) -> None:
    """Raises :class:`ServerError` when two servers of one job serve different things."""
    differing = differences(check, other)
    if differing:
        raise ServerError(
            f"{other_name} serves something else than {name}: {', '.join(differing)} differ",
            differing=differing,
            fix="use servers of one model with the same layers",
        )
