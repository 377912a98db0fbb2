"""The hidden Markov chain of lags: likelihoods, transitions, forward and backward passes."""

import math
from functools import cached_property
from itertools import pairwise

import numpy as np

NOISE = 0.05  # share of dumps in a lag that do not agree with their source
_P_GROW = 0.01  # the lag grows by one: a foreign dump was filed
_P_JUMP, _P_LOSE, _P_FIND = 0.002, 0.002, 0.002  # any other change; is lost; is found again
STRETCH = 256  # samples; each stretch has its own candidate lags


class Sequences:
    """Both sequences, ``log_p`` float64 [N] of each ``got`` by chance, and their likelihoods."""

    def __init__(
        self,
        got: np.ndarray,
        expected: np.ndarray,
        log_p: np.ndarray,
        silent: np.ndarray | None = None,
    ) -> None:
        self.got, self.expected, self.log_p = got, expected, log_p
        self.silent = np.zeros(len(got), bool) if silent is None else silent
        known = int(((got > 0) & (expected > 0)).sum()) + 1
        self._by_silence = (known + self.silent.sum()) / max(1, self.silent.sum())
        self._meant: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def meant(self, lag: int) -> tuple[np.ndarray, np.ndarray]:
        """What the source of each position expected under this lag, int64 [N], -1 = not known.

        A silent source got what it expected, so it expected what its own source did, if the lag
        was the same there. Also bool [N]: the source is silent, and that leads nowhere.
        """
        if lag not in self._meant:
            count = len(self.got)
            direct = np.arange(count) - lag
            inside = (direct >= 0) & (direct < count)
            sources, is_silent = direct.clip(0, count - 1), np.zeros(count, bool)
            if lag and self.silent.any():
                is_silent = inside & self.silent[sources]
                order = np.arange(count) if lag > 0 else np.arange(count)[::-1]
                sources = _past_silent(self.silent, order, abs(lag))[sources]
            meant = np.where(inside & (sources >= 0), self.expected[sources], -1)
            self._meant[lag] = meant, is_silent & (meant < 0)
        return self._meant[lag]

    def agreement(self, lag: int) -> tuple[np.ndarray, np.ndarray]:
        """(both known, equal), bool [N] each."""
        meant, _ = self.meant(lag)
        known = (meant >= 0) & (self.got >= 0)
        return known, known & (meant == self.got)

    def ratios(self, lags: np.ndarray, where: slice) -> np.ndarray:
        """Likelihood against chance, [B, len(lags)+1]; the last state is "unrelated"."""
        agrees = (1 - NOISE) * np.exp(np.minimum(-self.log_p[where], 50.0)) + NOISE
        found = np.ones((len(agrees), len(lags) + 1))
        for column, lag in enumerate(lags.tolist()):
            known, equal = self.agreement(lag)
            found[:, column] = np.where(equal[where], agrees, np.where(known[where], NOISE, 1.0))
            if lag == 0:
                found[self.silent[where], column] = self._by_silence
        return found


def _past_silent(silent: np.ndarray, order: np.ndarray, stride: int) -> np.ndarray:
    """int64 [N]: the nearest position in steps of ``stride`` against ``order`` that speaks."""
    count = len(silent)
    padded = np.full(-(-count // stride) * stride, -1)
    at = np.arange(count)
    padded[:count] = np.where(silent[order], -1, at)
    filled = np.maximum.accumulate(padded.reshape(-1, stride), axis=0).ravel()[:count]
    found = np.empty(count, np.int64)
    found[order] = np.where(filled < 0, -1, order[filled.clip(0)])
    return found


def _prior(jump: np.ndarray) -> np.ndarray:
    """1 / 2(|j|+1)(|j|+2): over all whole numbers it sums to less than one."""
    size = np.abs(jump).astype(np.float64)
    return np.asarray(1 / (2 * (size + 1) * (size + 2)))


def _transitions(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(after | before), [len(before)+1, len(after)+1] each: without and with a foreign dump."""
    jumps = after[None, :].astype(np.int64) - before[:, None]
    table = np.empty((len(before) + 1, len(after) + 1))
    table[:-1, :-1] = _P_JUMP * _prior(jumps)
    table[:-1, :-1][jumps == 0] = 1 - _P_GROW - _P_JUMP - _P_LOSE
    table[:-1, -1] = _P_LOSE
    table[-1, :-1] = _P_FIND * _prior(after)
    table[-1, -1] = 1 - _P_FIND
    foreign = np.zeros_like(table)
    foreign[:-1, :-1][jumps == 1] = _P_GROW
    return table, foreign


class Chain:
    """Forward and backward passes over the candidate lags of each stretch.

    ``posterior``: per stretch [B, len(lags)+1]. ``shifted, foreign`` float64 [N]: probabilities.
    ``evidence``: nats against chance.
    """

    def __init__(self, sequences: Sequences, candidates: list[np.ndarray]) -> None:
        self.candidates = candidates
        self.ratios = [
            sequences.ratios(lags, slice(n * STRETCH, (n + 1) * STRETCH))
            for n, lags in enumerate(candidates)
        ]
        within = [_transitions(lags, lags) for lags in candidates]
        entering = [_transitions(*pair) for pair in pairwise(candidates)]
        self._moves = [
            entering[n - 1] if n and not row else within[n]
            for n, ratios in enumerate(self.ratios)
            for row in range(len(ratios))
        ]
        self._rows = [row for ratios in self.ratios for row in ratios]
        self._ahead, self.evidence = self._forward()

    @cached_property
    def posterior(self) -> list[np.ndarray]:
        found, at = [], 0
        for ratios in self.ratios:
            stop = at + len(ratios)
            both = np.array(self._ahead[at:stop]) * np.array(self._behind[0][at:stop])
            found.append(both / both.sum(axis=1, keepdims=True))
            at = stop
        return found

    @property
    def shifted(self) -> np.ndarray:
        return np.concatenate(
            [
                posterior[:, :-1][:, lags != 0].sum(axis=1)
                for lags, posterior in zip(self.candidates, self.posterior, strict=True)
            ]
        )

    @property
    def foreign(self) -> np.ndarray:
        return self._behind[1]

    def _forward(self) -> tuple[list[np.ndarray], float]:
        state = np.append(0.5 * _prior(self.candidates[0]), 0.5) * self._rows[0]
        evidence, found = 0.0, []
        for position, ratios in enumerate(self._rows):
            if position:
                moves, foreign = self._moves[position]
                state = (state @ moves) * ratios + (state @ foreign) * (0.5 + 0.5 * ratios)
            scale = state.sum()
            state = state / scale
            evidence += math.log(scale)
            found.append(state)
        return found, evidence

    @cached_property
    def _behind(self) -> tuple[list[np.ndarray], np.ndarray]:
        """The backward pass, and the probability that a position's dump is foreign."""
        ahead, state = self._ahead, np.ones(len(self._rows[-1]))
        found, foreign = [state], np.zeros(len(ahead))
        for position in range(len(ahead) - 1, 0, -1):
            moves, growth = self._moves[position]
            ratios, before = self._rows[position], ahead[position - 1]
            grown = growth @ (0.5 * state)
            state = moves @ (ratios * state) + growth @ ((0.5 + 0.5 * ratios) * state)
            foreign[position] = (before @ grown) / (before @ state)
            state = state / state.max()
            found.append(state)
        return found[::-1], foreign
