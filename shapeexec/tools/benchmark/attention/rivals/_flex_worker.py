"""FlexAttention in a process of its own: compiles and times what its input asks for, line by line.

It is run by its path, so that it imports torch and NumPy but neither JAX nor this library. Each
line of the input is a request, and each line of the output its answer, both JSON; `flex_attention`
sends them.
"""

# The rivals are not installed here, so their types are unknown.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports] - the worker has a Python of its own
from torch.nn.attention import flex_attention  # pyright: ignore[reportMissingImports] - as above

Tensor = Any
_QUEUE = 0.03  # seconds


class Worker:
    """The operands of one shape, and the functions compiled for it."""

    def __init__(self) -> None:
        self.arrays: dict[str, tuple[Tensor, ...]] = {}
        self.calls: dict[str, Callable[[], tuple[Tensor, ...]]] = {}
        self.compiled = torch.compile(flex_attention.flex_attention, dynamic=False)

    def compile(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile by running once; leave slices of the results beside the operands."""
        start = time.perf_counter()
        call = self._call(request)
        results = call()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        self.calls[request["cell"]] = call
        count = [request["group"], request["group"], 1, 1]
        kept = [x[-1, -n:].transpose(0, 1).float() for x, n in zip(results, count, strict=False)]
        np.savez(request["results"], *(x.detach().cpu().numpy() for x in kept))
        return {"seconds": seconds}

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Time the compiled function."""
        call = self.calls.pop(request["cell"])
        return dict(zip(("wall", "device"), _clock(call), strict=True))

    def forget(self, request: dict[str, Any]) -> dict[str, Any]:
        """Give memory back."""
        self.arrays.clear()
        self.calls.clear()
        torch.cuda.empty_cache()
        return {}

    def _call(self, request: dict[str, Any]) -> Callable[[], tuple[Tensor, ...]]:
        if request["shape"] not in self.arrays:
            self.arrays = {request["shape"]: _read(request["operands"], request["dtype"])}
        q, k, v, d_out = self.arrays[request["shape"]]
        allowed, modify = _mask(request), _modifier(request)
        length = q.shape[2]
        blocks = allowed and flex_attention.create_block_mask(
            allowed, None, None, length, length, device="cuda", BLOCK_SIZE=128
        )
        options = {
            "score_mod": modify,
            "block_mask": blocks,
            "enable_gqa": q.shape[1] != k.shape[1],
        }
        if request["passes"] == "forward":

            def forward() -> tuple[Tensor, ...]:
                with torch.no_grad():
                    return (self.compiled(q, k, v, **options),)

            return forward
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]

        def both() -> tuple[Tensor, ...]:
            out = self.compiled(*leaves, **options)
            return out, *torch.autograd.grad(out, leaves, d_out)

        return both


def _read(directory: str, dtype: str) -> tuple[Tensor, ...]:
    """q, k, v and the cotangent, [B, heads, T, D], from arrays [B, T, heads, D] of raw bits."""
    arrays = (np.load(Path(directory) / f"{i}.npy") for i in range(4))
    kind = getattr(torch, dtype)
    return tuple(torch.from_numpy(x).cuda().view(kind).transpose(1, 2).contiguous() for x in arrays)


def _mask(request: dict[str, Any]) -> Callable[..., Tensor] | None:
    """The mask function as users of FlexAttention write it: one closure for each kind of mask.

    Windows and documents are taken as causal; the comparison with the formula checks that.
    """
    window = request["window"]
    if request["tiles"] is not None:
        tiles = torch.tensor(request["tiles"], dtype=torch.bool, device="cuda")
        return lambda b, h, q, k: tiles[q // 128, k // 128]
    if request["elements"] is not None:
        pairs = torch.from_numpy(np.load(request["elements"])).cuda()
        return lambda b, h, q, k: pairs[q, k]
    if request["documents"]:
        lengths = torch.tensor(request["documents"], device="cuda")
        ids = torch.repeat_interleave(torch.arange(len(lengths), device="cuda"), lengths)
        return lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)
    if window is not None:
        return lambda b, h, q, k: (q >= k) & (q - k < window)
    if request["is_causal"]:
        return lambda b, h, q, k: q >= k
    return None


def _modifier(request: dict[str, Any]) -> Callable[..., Tensor] | None:
    if request["slopes"] is None:
        return None
    slopes = torch.tensor(request["slopes"], dtype=torch.float32, device="cuda")
    return lambda score, b, h, q, k: score - slopes[h] * (q - k).abs()


def _clock(call: Callable[[], Any]) -> tuple[float, float | None]:
    """Milliseconds of a call: eager, from the host; and in a CUDA graph of several, by events."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    length = int(min(200, max(1, _QUEUE / (time.perf_counter() - start))))
    walls = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(length):
            call()
        torch.cuda.synchronize()
        walls.append(1e3 * (time.perf_counter() - start) / length)
    wall = statistics.median(walls)
    try:
        return wall, _graph(call, int(min(20, max(1, 8 / wall))))
    except RuntimeError as error:  # not every program can be captured
        print(f"no CUDA graph: {error}", file=sys.stderr)
        torch.cuda.synchronize()
        return wall, None


def _graph(call: Callable[[], Any], length: int) -> float:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(length):
            call()
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(10):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / length)
    return statistics.median(times)


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with answers
    for name, most in (("recompile_limit", 512), ("accumulated_recompile_limit", 4096)):
        setattr(torch._dynamo.config, name, most)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request["do"])(request)
        except Exception as error:  # the answer says why one call failed
            lines = str(error).strip().splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {lines[0][:200]}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
