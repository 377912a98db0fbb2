"""Which side of the last norm is the final state on? What the model's output head makes of it.

Needs no layer of the model: the head's predictions are compared with the real next tokens, and
with a running server's log probabilities where there is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hslib.errors import ProbeError
from hslib.store import StoredSample

if TYPE_CHECKING:
    import torch

    from hslib.model import FinalNorm

_BETTER = 0.05  # nats per token by which one reading must beat the other
_SERVER_SAME = 0.05  # nats; two runs of one model in bf16 differ by about 0.01

_ALIKE = "The head alone cannot tell whether the final state is before or after the norm."


@dataclass(frozen=True)
class HeadReading:
    """What the model's head makes of one stored state."""

    state: str
    accuracy: float  # share of tokens whose real next token it ranks first
    mean_logprob: float  # of the real next token; nats
    server_error: float | None = None  # mean |logprob - the server's|, nats


def read_through_head(
    samples: Sequence[StoredSample],
    head: "torch.Tensor",
    norm: "FinalNorm",
    server_logprobs: Sequence[Sequence[float]] | None = None,
) -> list[HeadReading]:
    """Read every stored layer through the head; the final state on both sides of the norm.

    Args:
        head: float32 [vocab, H].
        server_logprobs: per sample, the server's log probability of each token but the first,
            given those before it.
    """
    labels = [f"{boundary}" for boundary in samples[0].boundaries]
    layers = [(label, number, True) for number, label in enumerate(labels)]
    layers += [("final, as after the norm", -1, False), ("final, as before the norm", -1, True)]
    found = []
    for label, number, normed in layers:
        rights, logprobs = [], []
        for sample in samples:
            state = sample.hidden_states[:-1, number].float()
            scores = ((norm.normed(state) if normed else state) @ head.T).log_softmax(-1)
            following = sample.input_ids[1:]
            rights.append((scores.argmax(-1) == following).numpy())
            logprobs.append(scores.gather(1, following[:, None])[:, 0].numpy())
        error = None
        if server_logprobs is not None:
            theirs = np.concatenate([np.asarray(row, np.float32) for row in server_logprobs])
            error = float(np.abs(np.concatenate(logprobs) - theirs).mean())
        accuracy = float(np.concatenate(rights).mean())
        found.append(HeadReading(label, accuracy, float(np.concatenate(logprobs).mean()), error))
    return found


@dataclass(frozen=True)
class HeadFinding:
    """What the head says of the final state."""

    side: Literal["post", "pre", "either", "none"]
    proven: bool  # by a server's log probabilities; else only likely
    sentence: str

    def require(self, claimed: str) -> None:
        """Raises :class:`ProbeError` when the final state contradicts the manifest.

        That both sides fit alike is no contradiction.
        """
        if self.side not in (claimed, "either"):
            raise ProbeError(
                self.sentence,
                check="final_norm",
                expected=claimed,
                got=self.side,
                fix="do not train on it: name the checkpoint that was served, or extract again",
            )


NO_FINAL = HeadFinding("either", False, "The final state is not stored.")


def judge_head(readings: Sequence[HeadReading], vocab_size: int) -> HeadFinding:
    """On which side of the norm the final state is. Pure.

    With a server's log probabilities: the reading that gives the same ones. Without: the reading
    that predicts the real next tokens better, provided that it beats chance.
    """
    post, pre = readings[-2], readings[-1]
    if post.server_error is not None and pre.server_error is not None:
        best = min(post.server_error, pre.server_error)
        if best > _SERVER_SAME:
            return HeadFinding(
                "none",
                True,
                f"The head does not turn the final states into the server's log probabilities "
                f"(off by {best:.2f} nats): another checkpoint, or other rows' states.",
            )
        if max(post.server_error, pre.server_error) < 1.5 * best:
            return HeadFinding("either", True, _ALIKE)
        side: Literal["post", "pre"] = "post" if post.server_error == best else "pre"
        return HeadFinding(
            side,
            True,
            f"The final state is {'after' if side == 'post' else 'before'} the norm: through the "
            "head it gives the server's own log probabilities.",
        )
    better, worse = sorted((post, pre), key=lambda r: r.mean_logprob, reverse=True)
    if better.mean_logprob < -np.log(vocab_size) or better.accuracy < 2 / vocab_size:
        return HeadFinding(
            "none",
            False,
            "Through the head the final states predict the next tokens no better than chance: "
            "another checkpoint, other rows' states, or a model that can't predict these rows.",
        )
    if better.mean_logprob - worse.mean_logprob < _BETTER:
        return HeadFinding("either", False, _ALIKE)
    side = "post" if better is post else "pre"
    return HeadFinding(
        side,
        False,
        f"The final state is likely {'after' if side == 'post' else 'before'} the norm: read so, "
        "it predicts the next tokens best. Only a reference or a server's log "
        "probabilities prove it.",
    )
