"""One process of `restart`: it imports nothing before it measures that."""

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES = ((3, 100), (4, 70))
"""The sizes of a call, in one bucket."""
HITS = {"small": 200, "gradient": 5}
LAYERS = {"small": 1, "gradient": 4}


def process(way: str, name: str, directory: str, sizes: str) -> dict[str, Any]:
    """What one process measures: seconds, and compilations of graphs."""
    start = time.perf_counter()
    import jax  # noqa: PLC0415 - importing is measured

    import shapeexec as sx  # noqa: PLC0415 - it is measured
    from demo import model  # noqa: PLC0415 - it imports JAX

    imported = time.perf_counter() - start

    fn, params, tokens = _call(name, sizes, jax=jax, model=model)
    start = time.perf_counter()
    if way == "first":
        ex = sx.Exec(fn, (None, "b, s"))
    else:
        warnings.simplefilter("ignore")  # of an option that differs
        options = {"check": "off"} if way == "no proof" else {}
        ex = sx.load(directory, fn, trusted=True, **options)
    loaded = time.perf_counter() - start
    start = time.perf_counter()
    jax.block_until_ready(ex(params, tokens))
    answer = time.perf_counter() - start
    seconds, stats = ex.graphs[0].seconds, ex.stats
    start = time.perf_counter()
    for _ in range(HITS[name]):
        jax.block_until_ready(ex(params, tokens))
    hit = (time.perf_counter() - start) / HITS[name]
    if way == "first":
        ex.save(directory)
    return {
        "import": imported,
        "load": loaded,
        "answer": answer,
        "trace": seconds.trace,
        "rest": answer - seconds.total,
        "graph": seconds.total - seconds.trace,
        "hit": hit,
        "compiles": stats.compiles,
        "bytes": sum(path.stat().st_size for path in Path(directory).iterdir()),
    }


def _call(name: str, sizes: str, *, jax: Any, model: Any) -> tuple[Callable[..., Any], Any, Any]:
    """The function of a name, its parameters and its tokens."""
    import numpy as np  # noqa: PLC0415 - JAX, whose import is measured, imports it

    def small(params: Any, tokens: Any) -> Any:
        return jax.nn.softmax(params["bytes"][tokens] @ params["logits"], axis=1).std(axis=1)

    def loss(params: Any, tokens: Any) -> Any:
        return model.score(params, tokens)["bits"].mean()

    fn = {"small": small, "gradient": jax.value_and_grad(loss)}[name]
    params = jax.block_until_ready(model.init(jax.random.key(0), layers=LAYERS[name]))
    tokens = np.random.default_rng(0).integers(0, 256, SIZES[int(sizes)]).astype(np.int32)
    return fn, params, tokens


if __name__ == "__main__":
    print(json.dumps(process(*sys.argv[1:])))
