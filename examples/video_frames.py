"""Clips of a video model: a strategy of one's own, with a bucket for each full second.

A camera gives 30 frames a second and a clip lasts at most 4 seconds, so the buckets are 30, 60, 90
and 120 frames. A longer clip is an error that names the buckets.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx

CLIPS = (28, 30, 45, 61, 75, 90, 91, 113, 120, 59, 7, 102)  # frames


@dataclasses.dataclass(frozen=True)
class FullSeconds(sx.Strategy):
    """Buckets at whole seconds, `frames_per_second` apart; padding is less than a second."""

    frames_per_second: int
    most_seconds: int

    def bucket(self, size):
        ladder = [self.frames_per_second * (i + 1) for i in range(self.most_seconds)]
        return sx.Ladder(ladder).bucket(size)


def describe(clip):
    """How bright a clip is, how much it flickers, and which frame is the brightest."""
    brightness = clip.mean(axis=(1, 2))
    return brightness.mean(), jnp.abs(jnp.diff(brightness)).max(), jnp.argmax(brightness)


def main():
    padded = sx.Exec(describe, ("frames, 16, 16",), buckets={"frames": FullSeconds(30, 4)})
    plain = jax.jit(describe)
    rng = np.random.default_rng(0)
    error = 0.0
    for frames in CLIPS:
        clip = rng.random((frames, 16, 16), np.float32)
        for got, wanted in zip(padded(clip), plain(clip), strict=True):
            error = max(error, float(jnp.abs(got - wanted)))
    try:
        padded(np.zeros((121, 16, 16), np.float32))
    except sx.BucketOverflowError as refused:
        print(f"121 frames: {refused.what}")
    print(f"graphs compiled: {padded.cache_size} instead of {len(set(CLIPS))}")
    print(f"padding: {padded.stats.waste['frames']:.0%}; largest error: {error:.0e}")
    return {"graphs": padded.cache_size, "sizes": len(set(CLIPS)), "error": error}


if __name__ == "__main__":
    main()
