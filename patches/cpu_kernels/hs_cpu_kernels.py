"""SGLang plugin for hosts without CUDA: DeepSeek's attention uses absorbed MLA.

``torch_native`` has no handler of its own, and the default one, MHA, reads the latent keys
with the wrong width there (SGLang 0.5.23,
``models/deepseek_common/attention_backend_handler.py``).
"""

import importlib.util
import sys
from typing import Any

_TARGET = (
    "sglang.srt.models.deepseek_common.attention_backend_handler"
    ".AttentionBackendRegistry.get_handler"
)


def register() -> None:
    """Called by SGLang in each process; does nothing where the real kernels are loaded."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return  # a process without a model: resolving the target would import all of them
    spec = importlib.util.find_spec("sgl_kernel")
    if spec is None or not spec.origin or "cpu_kernels" not in spec.origin:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _absorbed_mla, HookType.REPLACE)


def _absorbed_mla(_registry: Any, _backend_name: str) -> Any:
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
        AttnForwardMethod,
    )

    return lambda _attention, _forward_batch: AttnForwardMethod.MLA
