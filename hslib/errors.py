"""One base error that carries fields, and a class for each part of the kit that raises it."""

import functools
from collections.abc import Iterable
from typing import Any


class HslibError(Exception):
    """What went wrong, with the evidence as fields and what to do about it.

    Args:
        message: one sentence.
        fix: what to do next, in the imperative.
        fields: evidence such as ``index``, ``check``, ``expected``, ``got``, ``path``: kept in
            ``self.fields`` and printed after the message.
    """

    def __init__(self, message: str, *, fix: str = "", **fields: Any) -> None:
        self.message, self.fix, self.fields = message, fix, fields
        evidence = ", ".join(f"{name}={value!r}" for name, value in fields.items())
        text = message + (f" [{evidence}]" if evidence else "")
        super().__init__(text + (f"\n  -> {fix}" if fix else ""))

    def _render_traceback_(self) -> list[str]:
        """IPython's display in a notebook: the error alone, a line for each field."""
        fields = [f"  {name} = {value!r}" for name, value in self.fields.items()]
        cure = [f"  -> {self.fix}"] if self.fix else []
        return [f"{type(self).__name__}: {self.message}", *fields, *cure]

    def __reduce__(self) -> Any:
        """Errors go from process to process with their fields."""
        return functools.partial(type(self), self.message, fix=self.fix, **self.fields), ()


class ParameterError(HslibError):
    """A notebook parameter is unknown or has a value that can't be used."""


class DatasetError(HslibError):
    """The dataset as a whole can't be read; single bad rows are rejections, not errors."""


class ServerError(HslibError):
    """The server can't be started, reached or trusted."""


class RequestError(HslibError):
    """One request failed; ``fields['retry']`` says whether another try can help."""


class DumpError(HslibError):
    """What the server wrote for a request is missing or is not that request's states."""


class StoreError(HslibError):
    """The store can't be opened, resumed or written."""


class EncodingError(StoreError):
    """A sample's states would lose more than is allowed in the store's encoding."""


class JobError(HslibError):
    """The job as a whole can't start or did not come out whole."""


class ExportError(HslibError):
    """The store can't become what this trainer reads."""


class ProbeError(HslibError):
    """The stored layers are not what the manifest says they are."""


def raise_all(problems: Iterable[HslibError]) -> None:
    """Raise the one problem, or all in one :class:`JobError`; return when there is none."""
    told = list({str(problem): problem for problem in problems}.values())
    if len(told) == 1:
        raise told[0]
    if told:
        lines = "".join(f"\n- {problem}" for problem in told)
        raise JobError(
            f"{len(told)} things are in the way:{lines}", fix="correct them, and run again"
        )
