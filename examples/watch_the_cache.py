"""What an Exec has compiled, will compile, and why: plan, warmup, freeze, stats and explain."""

import jax.numpy as jnp
import numpy as np

import shapeexec as sx

SIZES = (3, 17, 100, 64, 65, 31, 100, 8)


def scores(x):
    centred = x - x.mean(axis=0)
    return centred / jnp.sqrt((centred**2).sum(axis=0))


def main():
    run = sx.Exec(scores, ("s, 4",), buckets={"s": sx.Pow2(minimum=16, maximum=128)})
    example = np.zeros((100, 4), np.float32)

    print("plan:    ", run.plan(example))  # traces; compiles and runs nothing
    warmed = run.warmup(example, s=range(1, 129))
    print(f"warm-up:  {warmed} graphs for 128 sizes")
    print("plan:    ", run.plan(example))

    run.freeze()  # from here on, a call that would compile is an error
    rng = np.random.default_rng(0)
    error = 0.0
    for size in SIZES:
        x = rng.normal(size=(size, 4)).astype(np.float32)
        error = max(error, float(jnp.abs(run(x) - scores(x)).max()))
    try:
        run(example.astype(np.float16))
    except sx.FrozenError as refused:
        print(f"float16:  {refused.what}")

    print(f"stats:    {run.stats}")
    print("explain: ", run.explain(example))
    print(f"graphs compiled: {run.cache_size} instead of 128; largest error: {error:.0e}")
    stats = run.stats
    return {"graphs": stats.graphs, "sizes": 128, "error": error, "misses": stats.misses}


if __name__ == "__main__":
    main()
