"""What XLA's command buffers (CUDA graphs) are worth to graphs of many small kernels, on a GPU.

XLA records runs of kernels into a command buffer, which the driver launches at once. Each
contestant of each form and setting runs in a process of its own, for the settings are XLA's flags.
The kernels, and the command buffers that hold them, are counted in the thunks that XLA dumps or,
where it dumps none, in the optimised program; the figures hold the count of each kind. A call is
timed until its result is there.
"""

import argparse
import dataclasses
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from benchmarks._common import (
    Claim,
    Report,
    Table,
    Timing,
    in_a_process,
    run_contestants,
    take_turns,
    with_flags,
)

LAYERS, WIDTH, BATCH, LENGTH = 50, 128, 4, 64
ROUNDS, REPEATS = 30, 20
MOST = 1.2
KINDS = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION"
SETTINGS: Mapping[str, str] = {
    "XLA's default": "",
    "none": "--xla_gpu_enable_command_buffer=",
    "from 1 kernel on": f"--xla_gpu_enable_command_buffer={KINDS} --xla_gpu_graph_min_graph_size=1",
    "loops too": f"--xla_gpu_enable_command_buffer={KINDS},WHILE,CONDITIONAL",
}
"""XLA's flags of each setting."""


def _layer(x: jax.Array, weights: jax.Array) -> jax.Array:
    """A product and a norm along the ragged axis: two small kernels, which cannot be one."""
    y = x @ weights
    return y * jax.lax.rsqrt(jnp.square(y).mean(axis=1, keepdims=True) + 1)


def chain(weights: jax.Array, x: jax.Array) -> jax.Array:
    """50 layers of f32[b, s, 128], written out: f32[b]."""
    for i in range(weights.shape[0]):
        x = _layer(x, weights[i])
    return x.sum((1, 2))


def loop(weights: jax.Array, x: jax.Array) -> jax.Array:
    """The same layers as a `scan`."""
    return jax.lax.scan(lambda x, w: (_layer(x, w), None), x, weights)[0].sum((1, 2))


def with_callback(weights: jax.Array, x: jax.Array) -> jax.Array:
    """The same layers with a call of Python in the middle."""
    half = weights.shape[0] // 2
    for i in range(half):
        x = _layer(x, weights[i])
    total = x.sum((1, 2))
    x = x + jax.pure_callback(np.tanh, total, total)[:, None, None]
    for i in range(half, weights.shape[0]):
        x = _layer(x, weights[i])
    return x.sum((1, 2))


FORMS: Mapping[str, tuple[Callable[..., jax.Array], Sequence[str]]] = {
    "100 kernels": (chain, ("XLA's default", "none", "from 1 kernel on")),
    "a loop": (loop, ("XLA's default", "none", "loops too")),
    "a callback": (with_callback, ("XLA's default", "none")),
}
"""Per form its function, and the settings that may matter to it."""
CONTESTANTS: Mapping[str, Callable[..., Any]] = {
    "jax.jit": jax.jit,
    "sx.Exec": lambda fn: sx.Exec(fn, (None, "b, s, 128"), returns="padded"),
}


def one(options: argparse.Namespace) -> dict[str, Any]:
    """What one process finds: seconds a call, and what its program consists of."""
    form, contestant = options.one
    fn = CONTESTANTS[contestant](FORMS[form][0])
    with tempfile.TemporaryDirectory() as dump:
        # XLA reads its flags once, when JAX first needs a device.
        os.environ["XLA_FLAGS"] = with_flags(f"--xla_dump_to={dump} --xla_dump_hlo_as_text")
        weights = jax.random.normal(jax.random.key(0), (options.layers, WIDTH, WIDTH)) / WIDTH**0.5
        x = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))
        rounds = 2 if options.layers < LAYERS else ROUNDS
        timing = take_turns({"": lambda: fn(weights, x)}, rounds=rounds, repeats=REPEATS)[""]
        kinds = kinds_in(Path(dump), FORMS[form][0].__name__)
    return {**dataclasses.asdict(Timing.of(timing)), **counted(kinds), "kinds": kinds}


_THUNK = re.compile(r"^ *\d+: (\w+)", re.MULTILINE)
_INSTRUCTION = re.compile(r"^ *(?:ROOT )?%?[\w.-]+ = .*? ([\w-]+)\(", re.MULTILINE)
DUMPS = {
    "thunk_sequence_after_thunk_passes": _THUNK,  # dumped where a pass has changed something
    "thunk_sequence": _THUNK,
    "after_optimizations": _INSTRUCTION,  # a CPU's thunks are not dumped
}
"""How the files of a program end, the closest to what runs first, and what finds the kinds there.

Source: XLA's `gpu_executable.cc`, and `Thunk::KindToString` for the kinds.
"""
KERNELS = frozenset(
    "kernel gemm cublasltmatmul cudnn convolution customcall customkernel cubsort norm fft fusion"
    " triangularsolve cholesky".split()
)
"""Kinds of thunks and instructions that run kernels, as `_plain` writes them."""


def kinds_in(dump: Path, name: str) -> Counter[str]:
    """How many thunks, or instructions, of each kind the program of a function has.

    Args:
        dump: Where XLA has dumped. A graph of an `Exec` is named after its function and sizes.
        name: That of the function.
    """
    for ending, kind in DUMPS.items():
        files = sorted(dump.glob(f"module_*.jit_*{name}*.*{ending}.txt"))
        if files:  # the number of the last one is the highest
            return Counter(kind.findall(files[-1].read_text()))
    return Counter()


def counted(kinds: Mapping[str, int]) -> dict[str, int]:
    """How many kernels a program has, those in command buffers too, and how many of the latter."""
    plain = Counter[str]()
    for kind, count in kinds.items():
        plain[_plain(kind)] += count
    return {
        "kernels": sum(plain[kind] for kind in KERNELS),
        "buffers": plain["commandbuffer"],
    }


def _plain(kind: str) -> str:
    """`kCustomCall` of a thunk and `custom-call` of an instruction alike: `customcall`."""
    return re.sub(r"^k(?=[A-Z])|[-_]", "", kind).lower()


def run(options: argparse.Namespace) -> Report:
    """Compare the settings for each form and contestant."""
    layers = 2 if options.tiny else options.layers
    figures: dict[str, Any] = {}
    rows = []
    for form, (_, settings) in FORMS.items():
        for contestant in CONTESTANTS:
            for setting in settings[:1] if options.tiny else settings:
                found = in_a_process(
                    "command_buffers",
                    *("--one", form, contestant, "--layers", str(layers)),
                    flags=SETTINGS[setting],
                )
                case = f"{form}, {contestant}, {setting}"
                figures[case] = found
                timing = Timing(*(found[field.name] for field in dataclasses.fields(Timing)))
                counts = (str(found["kernels"]), str(found["buffers"]))
                rows.append((case, str(timing), *counts))
                print("; ".join(rows[-1]), flush=True)
    # Here first does this process open a device, which its children must find free.
    title = f"A call on {jax.default_backend()}: median (quartiles)"
    columns = ("", "a call", "kernels", "command buffers")
    return Report([Table(title, columns, rows)], figures, [_claim(figures)])


def _claim(figures: Mapping[str, Any]) -> Claim:
    ours, exact = (figures[f"100 kernels, {who}, XLA's default"] for who in ("sx.Exec", "jax.jit"))
    ratio = ours["median"] / exact["median"]
    text = f"an Exec of 100 small kernels: at most {MOST} of jax.jit's time"
    return Claim(text, ratio, ratio <= MOST)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of this benchmark."""
    parser.add_argument("--layers", type=int, default=LAYERS, help="two kernels each")
    parser.add_argument("--one", nargs=2, metavar=("FORM", "WHO"), help="print this one as JSON")


def main(arguments: Sequence[str] | None = None) -> Report | None:
    """Run as a program."""
    return run_contestants(
        "command_buffers", __doc__, one=one, run=run, arguments=arguments, add_options=add_options
    )


if __name__ == "__main__":
    main()
