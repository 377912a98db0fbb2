"""The parameters of notebook 00: conversations to rows."""

from pathlib import Path
from typing import Any, Literal, Self

import pydantic
from pydantic import Field

from hslib import demo
from hslib.model import local_folder
from hslib.parameters.base import KeyParameters, TrackedParameters, named_urls
from hslib.rows import Recipe


class RowsParameters(KeyParameters, TrackedParameters):
    """Notebook 00. ``chats_path`` empty = the demo's conversations, ``model_path`` empty = its
    model, ``out_path`` empty = ``rows.jsonl`` in the run.

    The others are those of :class:`hslib.rows.Recipe`. ``workers``: processes, 0 = one per core, at
    most eight. ``max_rejected_share``: a larger share of rejected rows is no success.

    ``regenerate``: the served model answers every user turn anew; ``server_url`` empty = the run's
    server, else one is started and stopped. ``max_answer_tokens``: an answer that comes to it is
    cut, and with ``cut_answers`` its turn dropped, or kept: its row's ``stop_reasons`` say
    ``length``. ``samples``: how often each conversation is answered. ``concurrency``: conversations
    in flight.
    """

    chats_path: str = ""
    model_path: str = ""
    out_path: str = ""
    train_on: Literal["all", "last"] = "all"
    thinking: Literal["keep", "drop"] = "keep"
    unstable: Literal["per_turn", "reject"] = "per_turn"
    special_in_text: Literal["reject", "allow"] = "reject"
    max_tokens: int = Field(0, ge=0)
    system_prompt: str = ""
    chat_template: str = ""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    end_tokens: list[str] = Field(default_factory=list)
    date: str = ""
    trust_remote_code: bool = False
    workers: int = Field(0, ge=0)
    max_rejected_share: float = Field(0.1, ge=0, le=1)
    regenerate: bool = False
    server_url: str | list[str] = ""
    temperature: float = Field(0.0, ge=0)
    max_answer_tokens: int = Field(1024, ge=1)
    samples: int = Field(1, ge=1)
    cut_answers: Literal["drop", "keep"] = "drop"
    concurrency: int = Field(16, ge=1, le=1024)

    @pydantic.model_validator(mode="after")
    def _fit_together(self) -> Self:
        if not self.regenerate:
            given = [n for n in ("server_url", "temperature") if getattr(self, n)]
            given += ["samples"] * (self.samples > 1)
            if given:
                raise ValueError(f"{', '.join(map(repr, given))}: only with 'regenerate'")
            return self
        if self.samples > 1 and not self.temperature:
            raise ValueError("at temperature 0 all 'samples' are the same: set 'temperature'")
        if self.unstable == "reject":
            raise ValueError(
                "unstable = 'reject' needs answers that are already there: not with 'regenerate'"
            )
        if self.thinking == "drop":
            raise ValueError(
                "thinking = 'drop' needs answers that are already there: not with 'regenerate'; to "
                "have the model answer without thinking, set chat_template_kwargs"
            )
        return self

    @property
    def source(self) -> str:
        return self.chats_path or str(demo.dataset_path())

    @property
    def server_urls(self) -> list[str]:
        """The servers that are named; none when the run's own is meant."""
        return named_urls(self.server_url)

    @property
    def out_file(self) -> Path:
        return Path(self.out_path).absolute() if self.out_path else self.run_path / "rows.jsonl"

    @property
    def recipe(self) -> Recipe:
        """What the rows' making depends on."""
        model = local_folder(self.model_path, "tokenizer") if self.model_path else None
        return Recipe(
            model=model or demo.model_path(),
            template=self.chat_template_kwargs,
            end_tokens=tuple(self.end_tokens),
            **{
                name: getattr(self, name)
                for name in (
                    *("train_on", "thinking", "unstable", "special_in_text", "max_tokens"),
                    *("system_prompt", "chat_template", "date", "trust_remote_code"),
                )
            },
        )
