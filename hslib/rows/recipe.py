"""What a person chooses about rows: what trains, what is left out, how the template is called."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Recipe:
    """How conversations become rows.

    Attributes:
        model: folder of the served model; its tokenizer and template are used.
        train_on: the ``last`` answer of a conversation, or ``all``.
        thinking: ``drop`` removes the answers' reasoning before rendering. With ``keep`` a template
            may still remove that of earlier answers, as the server's does.
        unstable: where earlier turns look otherwise once later ones follow, a row ``per_turn``
            (the conversation up to it, its mask on it alone), or ``reject``.
        special_in_text: a message that spells a special token forges a turn; ``reject`` or
            ``allow``.
        max_tokens: longer rows are rejected, never cut; 0 = no limit.
        system_prompt: put before conversations that have none.
        chat_template: a file instead of the model's own template.
        template: variables of the template; a row's own ``chat_template_kwargs`` win.
        end_tokens: further tokens that end an answer, beside the model's EOS ids; "" among them:
            where the template writes none behind the last answer (GLM's), that is its end.
        date: ISO day for templates that write today's.
    """

    model: Path
    train_on: Literal["all", "last"] = "all"
    thinking: Literal["keep", "drop"] = "keep"
    unstable: Literal["per_turn", "reject"] = "per_turn"
    special_in_text: Literal["reject", "allow"] = "reject"
    max_tokens: int = 0
    system_prompt: str = ""
    chat_template: str = ""
    template: Mapping[str, Any] = field(default_factory=dict)
    end_tokens: tuple[str, ...] = ()
    date: str = ""
    trust_remote_code: bool = False
