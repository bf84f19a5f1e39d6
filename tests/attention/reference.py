"""Attention and its gradients in NumPy and f64, by the formulas, with all pairs at once."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Reference:
    """What attention is.

    Attributes:
        q, k, v: f64[B, T, N, H], f64[B, S, K, H], f64[B, S, K, V].
        bias: f64, broadcastable to [B, N, T, S].
        allowed: bool, broadcastable to [B, N, T, S].
        scale: What scores are multiplied by.
        factor: What weights are multiplied by before they meet values, as by dropout.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    bias: np.ndarray
    allowed: np.ndarray
    scale: float
    factor: np.ndarray | float = 1.0

    @property
    def weights(self) -> np.ndarray:
        """f64[B, N, T, S]; a row with nothing to attend to has none."""
        scores = self._scores()
        largest = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        total = weights.sum(-1, keepdims=True)
        return weights / np.where(total, total, 1)

    @property
    def out(self) -> np.ndarray:
        """f64[B, T, N, V]."""
        return np.einsum("bnts,bsnv->btnv", self.weights * self.factor, self._per_head(self.v))

    @property
    def logsumexp(self) -> np.ndarray:
        """f64[B, T, N]."""
        scores = self._scores()
        largest = scores.max(-1)
        finite = np.where(np.isfinite(largest), largest, 0)
        with np.errstate(divide="ignore"):
            logsumexp = np.log(np.exp(scores - finite[..., None]).sum(-1)) + finite
        return logsumexp.transpose(0, 2, 1)

    def gradients(self, d_out: np.ndarray) -> tuple[np.ndarray, ...]:
        """Those of q, k, v, and of a bias f64[B, N, T, S], if that of the output is `d_out`."""
        weights = self.weights
        d_weights = np.einsum("btnv,bsnv->bnts", d_out, self._per_head(self.v)) * self.factor
        mean = (weights * d_weights).sum(-1, keepdims=True)
        d_scores = weights * (d_weights - mean)
        d_q = np.einsum("bnts,bsnh->btnh", d_scores, self._per_head(self.k)) * self.scale
        d_k = np.einsum("bnts,btnh->bsnh", d_scores, self.q) * self.scale
        d_v = np.einsum("bnts,btnv->bsnv", weights * self.factor, d_out)
        return d_q, self._per_key_head(d_k), self._per_key_head(d_v), d_scores

    def _scores(self) -> np.ndarray:
        scores = np.einsum("btnh,bsnh->bnts", self.q, self._per_head(self.k)) * self.scale
        return np.where(self.allowed, scores + self.bias, -np.inf)

    def _per_head(self, x: np.ndarray) -> np.ndarray:
        return np.repeat(x, self.q.shape[2] // x.shape[2], axis=2)

    def _per_key_head(self, x: np.ndarray) -> np.ndarray:
        *lead, _, size = x.shape
        return x.reshape(*lead, self.k.shape[2], -1, size).sum(-2)


def summed_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A gradient of what was broadcast from `shape`."""
    axes = tuple(axis for axis, length in enumerate(shape) if length == 1)
    return x.sum(axes, keepdims=True)
