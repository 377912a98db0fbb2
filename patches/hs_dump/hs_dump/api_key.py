"""Keep the server's API key out of its command line and its log.

SGLang 0.5.23 takes the key as ``--api-key`` only, which any user of the host can read in
the process list, and prints it with its other arguments. Here it comes from
``SGLANG_HS_API_KEY``.
"""

import os
from typing import Any


def install(registry: Any, hook_type: Any) -> None:
    """Register the two hooks, when the environment holds a key."""
    if not os.environ.get("SGLANG_HS_API_KEY"):
        return
    registry.register("sglang.srt.server_args.prepare_server_args", _set, hook_type.AFTER)
    registry.register(
        "sglang.srt.entrypoints.engine._server_args_for_logging", _hide, hook_type.AFTER
    )


def _set(server_args: Any, *_args: Any, **_kwargs: Any) -> None:
    server_args.api_key = os.environ["SGLANG_HS_API_KEY"]


def _hide(arguments: dict[str, Any], *_args: Any, **_kwargs: Any) -> dict[str, Any]:
    return {k: "***" if k.endswith("api_key") and v else v for k, v in arguments.items()}
