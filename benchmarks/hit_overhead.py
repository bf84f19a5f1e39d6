"""What a cache hit costs beside the least that padding by hand can cost.

The least is: copy the input into a padded NumPy buffer, and call an ahead-of-time compiled
function; NumPy cuts a ragged result, whose cut is put on the device again where the Exec's result
is there, too. Both have one ragged array and 100 parameter arrays; both wait for the result. One
function computes with its size in Python; by hand these numbers are operands. The cost of
these numbers at a new size is listed apart: a hit has them already.

Besides, what a hit costs a model that has work to do: the demo's (on a GPU, a wider one of its
kind), at sizes that are their own buckets, beside `jax.jit` of the same function at that size.
Nothing is padded there, so the difference is all that an `Exec` adds: the cache lookup, the copy
of the input, the masks. Ten calls of one kind follow each other, as in a real program. If the two
kinds took turns call by call, each would find the CPU caches cold, and both would seem slower.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import shapeexec as sx
from benchmarks._common import (
    Claim,
    Ratio,
    Report,
    Table,
    Timing,
    run_benchmark,
    show_progress,
    take_turns,
)
from demo import model

LEAVES, WIDTH, SIZE, BUCKET = 100, 32, 100, 128
MOST = 1.2
OF_DEMO = {"width": 64, "layers": 2}
MODELS = {
    "tiny": (({"width": 16, "layers": 1}, 2, 16),),
    "cpu": ((OF_DEMO, 16, 128), (OF_DEMO, 8, 256)),
    "gpu": (({"width": 512, "layers": 8}, 16, 512), ({"width": 512, "layers": 8}, 64, 512)),
}
"""By platform, or for `--tiny`: a model of the demo's kind, how many passages, and their length in
bytes. One call takes about 5 ms for the first, 15 to 30 for the second."""
IN_A_ROW = 10
MOST_OF_MODEL = 1.01


def ragged(params: dict[str, Array], x: Array) -> Array:
    """Add 100 parameters to f32[n, 32]: next to no work, so that the call is what costs."""
    for bias in params.values():
        x = x + bias
    return x


def scalar(params: dict[str, Array], x: Array) -> Array:
    """The same, summed: f32[]."""
    return ragged(params, x).sum()


def scalar_by_hand(params: dict[str, Array], x: Array, size: Array) -> Array:
    """`scalar` with the mask that padding takes."""
    is_valid = jnp.arange(BUCKET) < size
    return jnp.where(is_valid[:, None], ragged(params, x), 0).sum()


def numbers(n: Any) -> tuple[Any, Any, Any]:
    """What a function may compute of a size in Python."""
    return n * (n - 1) / 2, 0.9**n, round(n / 3, 1)


def with_numbers(params: dict[str, Array], x: Array) -> Array:
    """`scalar` with three numbers that Python computes: f32[]."""
    pairs, decay, third = numbers(x.shape[0])
    return ragged(params, x).sum() / pairs * decay + third


def numbers_by_hand(params: dict[str, Array], x: Array, size: Array, given: Array) -> Array:
    """`with_numbers`, which are given."""
    return scalar_by_hand(params, x, size) / given[0] * given[1] + given[2]


def by_hand(output: str, params: dict[str, Array], *, puts: bool) -> Callable[[Any], Any]:
    """The bare call: a copy into a padded buffer, the compiled function, and a cut by NumPy.

    The cut waits for the result, as each way of cutting does that compiles nothing.

    Args:
        output: A key of `FUNCTIONS`.
        params: The parameters.
        puts: Whether the cut is put on the device.
    """
    fn, operands = {
        "ragged": (ragged, lambda n: ()),
        "scalar": (scalar_by_hand, lambda n: (np.int32(n),)),
        "scalar, 3 numbers of Python": (
            numbers_by_hand,
            lambda n: (np.int32(n), np.asarray(numbers(n), np.float32)),
        ),
    }[output]
    x = jax.ShapeDtypeStruct((BUCKET, WIDTH), np.float32)
    compiled = jax.jit(fn).lower(params, x, *operands(SIZE)).compile()

    def call(x: Any) -> Any:
        padded = np.zeros((BUCKET, WIDTH), np.float32)
        padded[: len(x)] = x
        result = compiled(params, padded, *operands(len(x)))
        if output != "ragged":
            return result
        cut = np.asarray(result)[: len(x)]
        return jax.device_put(cut) if puts else cut

    return call


FUNCTIONS = {"ragged": ragged, "scalar": scalar, "scalar, 3 numbers of Python": with_numbers}
OUTPUTS: dict[str, tuple[str, dict[str, Any], bool]] = {
    **{name: (name, {}, True) for name in FUNCTIONS},
    "ragged NumPy": ("ragged", {"returns": "host"}, False),
    "ragged, by hand NumPy": ("ragged", {}, False),
}
"""By name of a row the function, options of `Exec`, and whether the bare call puts its cut on the
device. In the last row it does less than the Exec, whose result is there."""


def run_calls(options: argparse.Namespace) -> Report:
    """Compare for a ragged and a scalar output, and NumPy and JAX inputs."""
    rounds, repeats = (3, 2) if options.tiny else (200, 50)
    params = {f"bias_{i}": jnp.full((WIDTH,), float(i)) for i in range(LEAVES)}
    jax.block_until_ready(params)
    host = np.ones((SIZE, WIDTH), np.float32)
    inputs = {"NumPy": host, "jax.Array": jax.block_until_ready(jax.device_put(host))}
    figures, rows, claims = {}, [], []
    for output, (function, given, puts) in OUTPUTS.items():
        bare, fn = by_hand(function, params, puts=puts), FUNCTIONS[function]
        ex = sx.Exec(fn, in_shapes=(None, f"n, {WIDTH}"), buckets=sx.Linear(BUCKET), **given)
        exact = jax.jit(fn)
        for kind, x in inputs.items():
            seconds = take_turns(
                {
                    "bare": lambda bare=bare, x=x: bare(x),
                    "exec": lambda ex=ex, x=x: ex(params, x),
                    "jit": lambda exact=exact, x=x: exact(params, x),
                },
                rounds=rounds,
                repeats=repeats,
            )
            timings = {name: Timing.of(values) for name, values in seconds.items()}
            ratio = Ratio.of(seconds["exec"], seconds["bare"])
            case = f"{output} output, {kind} input"
            rows.append((case, *map(str, timings.values()), str(ratio)))
            show_progress(rows[-1])
            figures[case] = {
                "ratio": asdict(ratio),
                "seconds": {name: asdict(timing) for name, timing in timings.items()},
            }
            text = f"at most {MOST} times the bare call, {case}"
            claims.append(Claim(text, ratio.ratio, ratio.ratio <= MOST))
        ex(params, host)
        timing = _time_of_a_new_size(ex.plan(params, host), rounds)
        figures[f"{output} output, NumPy input"]["seconds"]["new size"] = asdict(timing)
        rows.append((f"{output} output, numbers of a new size", "", str(timing), "", ""))
        show_progress(rows[-1])
    columns = ("", "bare call, padded", "sx.Exec", "jax.jit, exact", "sx.Exec / bare")
    title = f"a call with {LEAVES} parameter arrays: median (quartiles)"
    return Report([Table(title, columns, rows)], figures, claims)


def _time_of_a_new_size(plan: Any, rounds: int) -> Timing:
    (seconds,) = take_turns({"": lambda: plan.size_vector}, rounds=rounds, repeats=1).values()
    return Timing.of(seconds)


def run_models(options: argparse.Namespace) -> Report:
    """Compare for models of the demo's kind, where no size is padded."""
    rounds, repeats = (3, 2) if options.tiny else (100, IN_A_ROW)
    sizes = MODELS["tiny" if options.tiny else jax.default_backend()]
    figures, rows, claims = {}, [], []
    for form, batch, length in sizes:
        params = jax.block_until_ready(model.init(jax.random.key(0), **form))
        host = np.random.default_rng(0).integers(0, 256, (batch, length)).astype(np.int32)
        ex = sx.Exec(model.score, in_shapes=(None, "b, s"), buckets=sx.Pow2())
        exact = jax.jit(model.score)
        for kind, tokens in {"NumPy": host, "jax.Array": jax.device_put(host)}.items():
            seconds = take_turns(
                {
                    "jit": lambda f=exact, p=params, t=tokens: f(p, t),
                    "exec": lambda f=ex, p=params, t=tokens: f(p, t),
                    "jit again": lambda f=exact, p=params, t=tokens: f(p, t),
                },
                rounds=rounds,
                repeats=repeats,
            )
            timings = {name: Timing.of(values) for name, values in seconds.items()}
            ratio = Ratio.of(seconds["exec"], seconds["jit"])
            noise = Ratio.of(seconds["jit again"], seconds["jit"])
            case = f"{batch} passages of {length} bytes, {form['layers']} layers of {form['width']}"
            case = f"{case}, {kind} input"
            rows.append(
                (case, str(timings["jit"]), str(timings["exec"]), *map(_text, (ratio, noise)))
            )
            show_progress(rows[-1])
            figures[case] = {
                "ratio": asdict(ratio),
                "noise": asdict(noise),
                "seconds": {name: asdict(timing) for name, timing in timings.items()},
            }
            text = f"at most {MOST_OF_MODEL} times jax.jit at that size, {case}"
            claims.append(Claim(text, ratio.ratio, ratio.ratio <= MOST_OF_MODEL))
        assert ex.stats.efficiency == 1, "a size is its own bucket"
    columns = ("", "jax.jit, exact", "sx.Exec", "sx.Exec / jax.jit", "jax.jit / itself")
    title = "a call at a size that is its own bucket: median (quartiles)"
    return Report([Table(title, columns, rows)], figures, claims)


def _text(ratio: Ratio) -> str:
    return f"{ratio.ratio:.3f} ({ratio.lower:.3f} to {ratio.upper:.3f})"


PARTS = {"calls": run_calls, "models": run_models}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--only`."""
    parser.add_argument("--only", choices=tuple(PARTS), help="measure one of the two tables")


def run(options: argparse.Namespace) -> Report:
    """Both tables, or the one that `--only` names."""
    names = PARTS if options.only is None else (options.only,)
    reports = [PARTS[name](options) for name in names]
    return Report(
        [table for report in reports for table in report.tables],
        {case: figure for report in reports for case, figure in report.figures.items()},
        [claim for report in reports for claim in report.claims],
    )


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark(
        "hit_overhead", __doc__, run=run, arguments=arguments, add_options=add_options
    )


if __name__ == "__main__":
    main()
