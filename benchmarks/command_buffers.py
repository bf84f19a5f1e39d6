"""What XLA's command buffers (CUDA graphs) are worth to graphs of many small kernels, on a GPU.

XLA records runs of kernels into a command buffer, which the driver launches at once. Each
contestant of each form and setting runs in a process of its own, for the settings are XLA's flags.
The kernels, and the command buffers that hold them, are counted in the thunks that XLA dumps or,
where it dumps none, in the optimised program. A call is timed until its result is there.
"""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from benchmarks._common import Claim, Report, Table, Timing, run_benchmark, take_turns

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


def measured(form: str, contestant: str, *, layers: int) -> dict[str, Any]:
    """What one process finds: seconds a call, kernels, and command buffers."""
    fn = CONTESTANTS[contestant](FORMS[form][0])
    with tempfile.TemporaryDirectory() as dump:
        flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"
        # XLA reads its flags once, when JAX first needs a device.
        os.environ["XLA_FLAGS"] = _joined(os.environ.get("XLA_FLAGS", ""), flags)
        weights = jax.random.normal(jax.random.key(0), (layers, WIDTH, WIDTH)) / WIDTH**0.5
        x = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))
        rounds = 2 if layers < LAYERS else ROUNDS
        timing = take_turns({"": lambda: fn(weights, x)}, rounds=rounds, repeats=REPEATS)[""]
        text = "\n".join(_programs(Path(dump), FORMS[form][0].__name__))
    return {**dataclasses.asdict(Timing.of(timing)), **_counted(text)}


def _joined(*flags: str) -> str:
    return " ".join(flags).strip()  # XLA takes what does not begin with a dash for a file


def _programs(dump: Path, name: str) -> Iterator[str]:
    """The thunks of the programs of a function or, where there are none, their instructions."""
    for pattern in ("*thunk_sequence*.txt", "*after_optimizations.txt"):
        files = [file for file in sorted(dump.glob(pattern)) if name in file.name]
        yield from (file.read_text() for file in files)
        if files:
            return


def _counted(text: str) -> dict[str, int]:
    """How many kernels a program has, and how many command buffers."""
    thunks = Counter(re.findall(r"\bk[A-Z]\w+", text))
    if thunks:
        kernels = ("kKernel", "kGemm", "kCublasLtMatmul", "kCustomCall", "kCustomKernel", "kCuDnn")
        return {
            "kernels": sum(thunks[kind] for kind in kernels),
            "buffers": thunks["kCommandBuffer"],
        }
    calls = re.findall(r" (fusion|custom-call)\(", text)
    return {"kernels": len(calls), "buffers": len(re.findall(r"to_apply=%?command_buffer", text))}


def in_a_process(form: str, contestant: str, *, flags: str, layers: int) -> dict[str, Any]:
    """What a fresh process with these flags of XLA measures."""
    command = [sys.executable, "-m", "benchmarks.command_buffers", "--one", form, contestant]
    environment = {**os.environ, "XLA_FLAGS": _joined(os.environ.get("XLA_FLAGS", ""), flags)}
    done = subprocess.run(
        [*command, "--layers", str(layers)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[1],
    )
    return json.loads(done.stdout.splitlines()[-1])


def run(options: argparse.Namespace) -> Report:
    """Compare the settings for each form and contestant."""
    layers = 2 if options.tiny else options.layers
    figures: dict[str, Any] = {}
    rows = []
    for form, (_, settings) in FORMS.items():
        for contestant in CONTESTANTS:
            for setting in settings[:1] if options.tiny else settings:
                flags = SETTINGS[setting]
                found = in_a_process(form, contestant, flags=flags, layers=layers)
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
    given = sys.argv[1:] if arguments is None else arguments
    if "--one" in given:
        parser = argparse.ArgumentParser()
        add_options(parser)
        options = parser.parse_args(given)
        print(json.dumps(measured(*options.one, layers=options.layers)))
        return None
    return run_benchmark(
        "command_buffers", __doc__, run=run, arguments=arguments, add_options=add_options
    )


if __name__ == "__main__":
    main()
