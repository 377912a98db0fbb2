"""Proof that a server really captures: its plugin's word, its settings, one canary request.

A server whose plugin did not load answers 200 and dumps nothing; nothing short of a dump
that comes back and validates shows that it works.
"""

import time
from dataclasses import dataclass

import numpy as np

from hslib.client import ServerClient, ServerSettings
from hslib.dataset import Sample
from hslib.dump import DumpDir, Expected, PluginInfo, request_id, validate
from hslib.errors import DumpError, RequestError, ServerError

_CANARY_TOKENS = 8
_CANARY_INDEX = 999_999_999
_NO_PLUGIN = (
    "the server runs without the hs_dump plugin: install ./patches/hs_dump into its "
    "interpreter, set SGLANG_HS_DUMP_DIR to this dump directory, and leave SGLANG_PLUGINS unset "
    "or list hs_dump in it"
)


@dataclass(frozen=True)
class Proof:
    """What a proven server is."""

    plugin: PluginInfo
    settings: ServerSettings

    @property
    def expected(self) -> Expected:
        return self.plugin.expected

    def facts(self) -> dict[str, str]:
        """What was proven, for a table; the same on every host."""
        plugin, settings = self.plugin, self.settings
        return {
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
            "canary request": "dumped, witnessed at every token, removed",
        }


def prove(
    client: ServerClient, dumps: DumpDir, *, not_before: float = 0.0, timeout_s: float = 60.0
) -> Proof:
    """Prove one server, or say what keeps it from being proven.

    Args:
        not_before: unix seconds; an older plugin.json is another server's leftover.

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
        send_canary(client, dumps, plugin, timeout_s)
    except ServerError:
        check_plugin(dumps, not_before)  # what the plugin says of its first pass says more
        raise
    return Proof(check_plugin(dumps, not_before, proven=True), settings)


def check_plugin(dumps: DumpDir, not_before: float = 0.0, *, proven: bool = False) -> PluginInfo:
    """The plugin's word for a capture that works.

    Args:
        proven: a pass has been judged, so every stored state must have its proof by now.

    Raises:
        ServerError: no plugin.json, one from before, or one that names problems.
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


def send_canary(client: ServerClient, dumps: DumpDir, plugin: PluginInfo, timeout_s: float) -> None:
    """Send one request of fresh random ids, and validate and remove its dump.

    Raises:
        ServerError: no dump came back, or not this request's.
    """
    ids = np.random.default_rng().integers(
        0, plugin.vocab_size, size=_CANARY_TOKENS, dtype=np.int32
    )
    sample = Sample(_CANARY_INDEX, "canary", ids, np.ones(_CANARY_TOKENS, np.uint8))
    rid = request_id(sample, attempt=0)
    started = time.monotonic()
    try:
        client.prefill([sample.input_ids], [rid])
        dumps.wait(rid, timeout_s)
        plugin = dumps.plugin() or plugin  # the first pass decided on each state's witness
        validate(dumps.load(rid), sample, plugin.expected)
    except (DumpError, RequestError) as error:
        raise ServerError(
            f"the canary request was not dumped right: {error.message}",
            waited_s=round(time.monotonic() - started, 1),
            dump_dir=str(dumps.root),
            fix="is this the server that dumps into this directory? see its log",
            **error.fields,
        ) from error
    finally:
        dumps.remove(rid)
