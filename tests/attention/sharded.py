"""Attention over a mesh of four devices by plain `jit`: a program of its own, for `test_mesh`.

It counts the collectives of compiled programs, and compares results with those of one device.
"""

import collections
import contextlib
import dataclasses
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec.attention.masks import ScoreModifier
from tests.tolerance import assert_close

MOVES = ("all-gather", "all-to-all", "collective-permute", "reduce-scatter")
B, T, N, H = 4, 8, 4, 8
RANDOM = np.random.default_rng(0)
IDS = np.tile(np.arange(T) // 3, (B, 1)).astype(np.int32)
LENGTHS = np.array([8, 3, 5, 1], np.int32)
DENSE = RANDOM.random((B, 1, T, T)) < 0.6
KINDS = RANDOM.integers(0, 3, (B, N, 2, 2)).astype(np.uint8)
PAGES = RANDOM.integers(0, B, (B, 2)).astype(np.int32)  # of T keys each
BIAS = RANDOM.normal(size=(1, N, T, T)).astype(np.float32)
CUTS = {
    "examples and heads": ("d", "m"),
    "examples": (("d", "m"), None),
    "heads": (None, ("d", "m")),
}


def by_number(b, h, q, k):
    return (k <= q + h) & ((k + b) % 3 != 1)


@dataclasses.dataclass(frozen=True, eq=False)
class ByHead(ScoreModifier):
    """A modifier of a user's that reads the numbers of examples and heads."""

    def modify(self, at, scores):
        return scores * (1 + at.head + 2 * at.batch).astype(scores.dtype)


def attend(q, k, v, **options):
    return sx.dot_product_attention(q, k, v, **options)


# By name: the key heads, and a function of q, k, v and of arrays whose axes have these letters.
CASES = {
    "full": (N, attend, ()),
    "causal": (N, lambda *x: attend(*x, is_causal=True), ()),
    "window": (N, lambda *x: attend(*x, mask=sx.Causal() & sx.SlidingWindow(3)), ()),
    "lengths": (
        2,
        lambda q, k, v, n: attend(q, k, v, query_seq_lengths=n, key_value_seq_lengths=n),
        ((LENGTHS, "B"),),
    ),
    "documents": (
        2,
        lambda q, k, v, ids: attend(q, k, v, mask=sx.Causal() & sx.Documents(ids)),
        ((IDS, "B"),),
    ),
    "array": (N, lambda q, k, v, mask: attend(q, k, v, mask=mask), ((DENSE, "B"),)),
    "tiles": (
        N,
        lambda q, k, v, kinds: attend(q, k, v, mask=sx.BlockMask(kinds, (4, 4), (T, T))),
        ((KINDS, "BN"),),
    ),
    "ALiBi": (N, lambda *x: attend(*x, bias=sx.ALiBi.for_heads(N)), ()),
    "bias": (N, lambda q, k, v, bias: attend(q, k, v, bias=bias), ((BIAS, "-N"),)),
    "function": (N, lambda *x: attend(*x, mask=~sx.MaskFunction(by_number) | sx.Global(1)), ()),
    "modifier": (N, lambda *x: attend(*x, bias=ByHead()), ()),
    "dropout": (
        N,
        lambda *x: attend(*x, is_causal=True, dropout_rate=0.3, dropout_key=jax.random.key(0)),
        (),
    ),
    "one key head": (1, attend, ()),
    "pages": (
        N,
        lambda q, k, v, pages, n: attend(q, k, v, pages=pages, key_value_seq_lengths=n),
        ((PAGES, "B"), (LENGTHS, "B")),
    ),
}
OF_KEYS = {"pages": "--K"}  # how keys are cut, where their first axis is not examples


def value_and_gradient(attend):
    def run(q, k, v, d_out, *arrays):
        is_float = [jnp.issubdtype(x.dtype, np.floating) for x in arrays]

        def of_floats(q, k, v, floats):
            given = iter(floats)
            mixed = (next(given) if one else x for one, x in zip(is_float, arrays, strict=True))
            return attend(q, k, v, *mixed)

        floats = [x for one, x in zip(is_float, arrays, strict=True) if one]
        out, transpose = jax.vjp(of_floats, q, k, v, floats)
        return out, transpose(d_out)

    return run


def operands(key_heads):
    shapes = ((B, T, N, H), (B, T, key_heads, H), (B, T, key_heads, H), (B, T, N, H))
    return [
        np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate(shapes)
    ]


def cut_of(name, mesh, key_heads, of_keys="B-K"):
    """How operands are cut, and how arrays of these letters."""
    examples, heads = CUTS[name]
    size = np.prod([mesh.shape[axis] for axis in np.ravel(heads)]) if heads else 1
    over = {"B": examples, "N": heads, "K": heads if key_heads % size == 0 else None}
    of = ("B-N", of_keys, of_keys, "B-N")
    return lambda *letters: [
        jax.NamedSharding(mesh, jax.P(*map(over.get, one))) for one in (*of, *letters)
    ]


def collectives(compiled):
    found = re.findall(r"= [^=]*? ([a-z-]+?)(?:-start)?\(", compiled.as_text())
    return collections.Counter(name for name in found if name in (*MOVES, "all-reduce"))


def check(names, cut, mesh):
    """Run some cases as one program."""
    given, shardings, runs = [], [], []
    for name in names:
        key_heads, attend, arrays = CASES[name]
        given.append([*operands(key_heads), *(x for x, _ in arrays)])
        places = cut_of(cut, mesh, key_heads, OF_KEYS.get(name, "B-K"))
        shardings.append(places(*(letters for _, letters in arrays)))
        runs.append(value_and_gradient(attend))

    def every(given):
        return [run(*x) for run, x in zip(runs, given, strict=True)]

    want = jax.jit(every)(given)
    is_explicit = mesh.axis_types[0] == jax.sharding.AxisType.Explicit
    with jax.set_mesh(mesh) if is_explicit else contextlib.nullcontext():
        there = jax.device_put(given, shardings)
        if is_explicit or cut != "heads":
            compiled = jax.jit(every).lower(there).compile()
        else:  # the types of operands tell no mesh
            compiled = jax.jit(every, in_shardings=(shardings,)).lower(given).compile()
        got = compiled(there)
    assert_close(got, want)
    found = collectives(compiled)
    moved = {name: count for name, count in found.items() if name in MOVES}
    assert not moved, f"{names} cut by {cut}: {moved}"
    for name, results, places in zip(names, got, shardings, strict=True):
        out, (*of_operands, _) = results
        for x, place in zip((out, *of_operands), (places[0], *places), strict=False):
            assert x.sharding.is_equivalent_to(place, x.ndim), (name, cut, x.sharding, place)
    return found["all-reduce"]


def main(kind, part):
    types = (getattr(jax.sharding.AxisType, kind),) * 2
    mesh = jax.make_mesh((2, 2), ("d", "m"), axis_types=types)
    if part == "quick":
        both = check(("documents", "lengths", "function"), "examples and heads", mesh)
        # Four devices have one query head each, and two of them share a key head.
        shared = check(("lengths",), "heads", mesh)
        paged = check(("pages",), "examples and heads", mesh)
        print("all-reduce", both, shared, paged)
        return
    for cut in CUTS:
        summed = [name.replace(" ", "_") for name in CASES if check((name,), cut, mesh)]
        print(*summed, "|", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
