"""The server's own arguments: the plugin adds what capture needs, and sets the API key.

Capture hooks the model's Python code, which a replayed CUDA graph skips; and every token must pass
the model, which a prefix cache prevents. SGLang 0.5.23 takes the API key only as ``--api-key``,
where every user of the host can read it, and prints it with its arguments. So the key comes from
``SGLANG_HS_API_KEY``.
"""

import os
from typing import Any

NEEDED = ("--disable-prefill-cuda-graph", "--disable-radix-cache")


def install(registry: Any, hook_type: Any) -> None:
    """Register the hooks; those of the key when the environment holds one."""
    prepare = "sglang.srt.server_args.prepare_server_args"
    registry.register(prepare, _add_needed, hook_type.BEFORE)
    if not os.environ.get("SGLANG_HS_API_KEY"):
        return
    registry.register(prepare, _set, hook_type.AFTER)
    registry.register(
        "sglang.srt.entrypoints.engine._server_args_for_logging", _hide, hook_type.AFTER
    )


def _add_needed(argv: list[str]) -> tuple[tuple[list[str]], dict[str, Any]]:
    return ([*argv, *(flag for flag in NEEDED if flag not in argv)],), {}


def _set(server_args: Any, *_args: Any, **_kwargs: Any) -> None:
    server_args.api_key = os.environ["SGLANG_HS_API_KEY"]


def _hide(arguments: dict[str, Any], *_args: Any, **_kwargs: Any) -> dict[str, Any]:
    return {k: "***" if k.endswith("api_key") and v else v for k, v in arguments.items()}
