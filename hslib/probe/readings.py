"""Which layer is each stored state really, and on which side of the last norm is the final one?

Two kinds of evidence. Against a reference (:mod:`hslib.probe.reference`): the relative error of
every stored layer to every boundary; a stored layer *is* the boundary it is near to. Without one:
what the model's head makes of the stored states, compared with the tokens that really came next
and with the log probabilities of a running server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hslib.errors import ProbeError
from hslib.probe.reference import FINAL, Reference, column_name
from hslib.store import StoredSample

if TYPE_CHECKING:
    import torch

    from hslib.model import FinalNorm

# Two bf16 implementations of one model differ by 0.3 to 2 % at a boundary, neighbouring
# boundaries by far more, unrelated states by about 140 %.
SAME = 0.1  # largest relative error of the same state
_APART = 2.0  # the next boundary must be so many times farther away

Verdict = Literal["as claimed", "another layer", "none of them", "can't be told", "not covered"]


@dataclass(frozen=True)
class Finding:
    """What one stored layer turned out to be; errors are relative, medians over tokens."""

    claimed: str
    verdict: Verdict
    nearest: str
    error: float  # to the nearest
    runner_up: str
    runner_up_error: float
    odd_rows: tuple[int, ...] = ()  # samples that are not what the others of this layer are

    def sentence(self) -> str:
        near = f"nearest is {self.nearest} ({self.error:.1%} off)"
        says = {
            "as claimed": f"{self.claimed}: as claimed ({self.error:.1%} off)",
            "another layer": f"stored as {self.claimed}, but it IS {self.nearest}",
            "none of them": f"stored as {self.claimed}, but it is NO reference state: {near}",
            "can't be told": f"{self.claimed}: {self.nearest} and {self.runner_up} look alike",
            "not covered": f"{self.claimed}: beyond the layers that were loaded",
        }[self.verdict]
        return says + (f"; samples {list(self.odd_rows)} differ" if self.odd_rows else "")


@dataclass(frozen=True, eq=False)
class ProbeReport:
    """Every stored layer against every reference boundary."""

    claims: tuple[str, ...]
    columns: tuple[str, ...]
    errors: np.ndarray  # float64 [claims, columns], medians over rows of medians over tokens
    findings: tuple[Finding, ...]
    num_rows: int

    @property
    def is_as_claimed(self) -> bool:
        """No layer contradicts the manifest; what was not covered does not."""
        good = {"as claimed", "not covered"}
        return all(f.verdict in good and not f.odd_rows for f in self.findings)

    def sentence(self) -> str:
        """The verdict in words."""
        proven = sum(f.verdict == "as claimed" for f in self.findings)
        if self.is_as_claimed:
            text = f"{proven} of {len(self.findings)} stored layers are what the manifest says"
            left = [f.claimed for f in self.findings if f.verdict == "not covered"]
            return text + (f"; not covered: {', '.join(left)}." if left else ".")
        wrong = [f for f in self.findings if f.verdict != "as claimed" or f.odd_rows]
        return "The store contradicts its manifest: " + "; ".join(f.sentence() for f in wrong) + "."

    def require_as_claimed(self) -> None:
        """Raises :class:`ProbeError` when a stored layer is not what the manifest says."""
        if not self.is_as_claimed:
            raise ProbeError(
                self.sentence(),
                verdicts={f.claimed: f.verdict for f in self.findings},
                fix="do not train on it. Another layer: the server captured others, see "
                "plugin.json and the layers table. None: name the checkpoint that was served. "
                "Odd rows: their states are another sample's, see Store.repair",
            )


def relative_errors(stored: "torch.Tensor", reference: "torch.Tensor") -> np.ndarray:
    """Median over tokens of ``|s - r| / |r|`` for each stored layer and reference state.

    The median, since a mixture of experts may decide a routing tie of a single token otherwise.

    Args:
        stored: [T, S, H]. reference: [C, T, H].

    Returns:
        float64 [S, C].
    """
    wide = stored.float()
    rows = []
    for layer in range(wide.shape[1]):
        apart = (reference - wide[:, layer]).norm(dim=-1) / reference.norm(dim=-1)  # [C, T]
        rows.append(apart.nan_to_num(float("inf")).median(dim=-1).values.double().numpy())
    return np.stack(rows)


def compare(samples: Sequence[StoredSample], reference: Reference) -> ProbeReport:
    """Probe samples of one store against a reference, row by row."""
    by_row = [
        relative_errors(sample.hidden_states, reference.states(sample.input_ids))
        for sample in samples
    ]
    stores_final = samples[0].hidden_states.shape[1] > len(samples[0].boundaries)
    boundaries: tuple[int | str, ...] = (*samples[0].boundaries, *([FINAL] * stores_final))
    return judge(
        np.stack(by_row),
        [column_name(b, reference.num_layers) for b in boundaries],
        [column_name(c, reference.num_layers) for c in reference.columns],
        [sample.entry.index for sample in samples],
    )


def judge(
    errors: np.ndarray, claims: Sequence[str], columns: Sequence[str], indices: Sequence[int]
) -> ProbeReport:
    """Verdicts from relative errors [rows, claims, columns]. Pure."""
    pooled = np.median(errors, axis=0)
    findings = tuple(
        _finding(claim, columns, pooled[number], errors[:, number], indices)
        for number, claim in enumerate(claims)
    )
    return ProbeReport(tuple(claims), tuple(columns), pooled, findings, len(indices))


def _finding(
    claim: str, columns: Sequence[str], errors: np.ndarray, by_row: np.ndarray, rows: Sequence[int]
) -> Finding:
    order = np.argsort(errors, kind="stable")
    best, second = int(order[0]), int(order[1])
    verdict: Verdict = "as claimed"
    if errors[best] > SAME:
        verdict = "none of them" if claim in columns else "not covered"
    elif columns[best] != claim:
        verdict = "another layer"
    elif errors[second] < _APART * errors[best]:
        verdict = "can't be told"
    odd: tuple[int, ...] = ()
    if errors[best] <= SAME:
        odd = tuple(row for row, own in zip(rows, by_row[:, best], strict=True) if own > SAME)
    return Finding(
        claimed=claim,
        verdict=verdict,
        nearest=columns[best],
        error=float(errors[best]),
        runner_up=columns[second],
        runner_up_error=float(errors[second]),
        odd_rows=odd,
    )


@dataclass(frozen=True)
class HeadReading:
    """What the model's head makes of one stored layer, read as before or after the norm."""

    state: str
    accuracy: float  # share of tokens that it ranks first and that really came next
    mean_logprob: float  # of the token that really came next; nats
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
        server_logprobs: for each sample, the server's own log probability of each token but the
            first, given those before it.
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


_BETTER = 0.05  # nats a token by which one reading must beat the other
_SERVER_SAME = 0.05  # nats; two runs of one model in bf16 differ by about 0.01

_ALIKE = "Read as before or as after the norm, the final state fits the head alike."


@dataclass(frozen=True)
class HeadVerdict:
    """What the head says of the final state."""

    side: Literal["post", "pre", "either", "none"]
    proven: bool  # by a server's own log probabilities; else only likely
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


NO_FINAL = HeadVerdict("either", False, "The final state is not stored.")


def judge_head(readings: Sequence[HeadReading], vocab_size: int) -> HeadVerdict:
    """On which side of the norm the final state is. Pure.

    With a server, the reading that gives its log probabilities; without, the one that predicts
    the real next tokens better, if it does so better than chance.
    """
    post, pre = readings[-2], readings[-1]
    if post.server_error is not None and pre.server_error is not None:
        best = min(post.server_error, pre.server_error)
        if best > _SERVER_SAME:
            return HeadVerdict(
                "none",
                True,
                f"The head does not turn the final states into the server's log probabilities "
                f"(off by {best:.2f} nats): another checkpoint, or other rows' states.",
            )
        if max(post.server_error, pre.server_error) < 1.5 * best:
            return HeadVerdict("either", True, _ALIKE)
        side: Literal["post", "pre"] = "post" if post.server_error == best else "pre"
        return HeadVerdict(
            side,
            True,
            f"The final state is {'after' if side == 'post' else 'before'} the norm: through the "
            "head it gives the server's own log probabilities.",
        )
    better, worse = sorted((post, pre), key=lambda r: r.mean_logprob, reverse=True)
    if better.mean_logprob < -np.log(vocab_size) or better.accuracy < 2 / vocab_size:
        return HeadVerdict(
            "none",
            False,
            "Through the head the final states predict the next tokens no better than chance: "
            "another checkpoint, or other rows' states.",
        )
    if better.mean_logprob - worse.mean_logprob < _BETTER:
        return HeadVerdict("either", False, _ALIKE)
    side = "post" if better is post else "pre"
    return HeadVerdict(
        side,
        False,
        f"The final state is likely {'after' if side == 'post' else 'before'} the norm: so it "
        "predicts the next tokens best. Only a reference or a server's log probabilities prove it.",
    )
