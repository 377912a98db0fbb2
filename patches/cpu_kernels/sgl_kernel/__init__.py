"""Stand-in for ``sgl_kernel`` on hosts without CUDA: importable, and honest when called.

PyPI's ``sgl_kernel`` is a CUDA build whose import fails without ``libcuda.so.1``. On CPUs
SGLang's layers fall back to torch, so most names need to exist but not to work. Put this
folder before site-packages on a *server's* PYTHONPATH, never on your own.
"""

from typing import Any


class MissingKernel:
    """A kernel that exists by name only; calling it says which one is missing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(
            f"{self._name} was called, but this host runs SGLang with stand-in kernels (no CUDA): "
            "this model or setting needs a GPU"
        )

    def __repr__(self) -> str:
        return f"<missing kernel {self._name}>"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return MissingKernel(f"{__name__}.{name}")


from .ops import install  # noqa: E402 - it needs MissingKernel

install()
