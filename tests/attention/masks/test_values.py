"""Masks as values: equality, leaves, what jit sees of them, and what they refuse."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec import BlockMask, ConfigError, dot_product_attention
from shapeexec.attention._grid import tile_grid
from shapeexec.attention._positions import block
from shapeexec.attention.masks import (
    ALiBi,
    Causal,
    Dense,
    Dilated,
    Documents,
    Global,
    Lengths,
    MaskFunction,
    PrefixLM,
    RelativeBias,
    SlidingWindow,
)
from tests.attention.masks.cases import CASES, call
from tests.tolerance import assert_close


def causal(b, h, q, k):
    return k <= q


class Unhashable:
    """As a module with arrays: its type says that it can be hashed."""

    def __call__(self, b, h, q, k):
        return k <= q

    def __hash__(self):
        return hash({})


EQUAL = [
    lambda: Causal(2) & SlidingWindow(3),
    lambda: Global(np.array([1, 2], np.int32)) | ~Causal(align="end"),
    lambda: Dense(np.eye(3, dtype=bool)),
    lambda: Documents(jnp.arange(4)),
    lambda: MaskFunction(causal),
    lambda: ALiBi.for_heads(4),
]


@pytest.mark.parametrize("make", EQUAL)
def test_masks_made_alike_are_equal_and_share_a_graph(make):
    traces = []

    @jax.jit
    def use(mask):
        traces.append(mask)
        return jax.tree.leaves(mask)

    assert make() == make()
    assert hash(make()) == hash(make())
    use(make())
    use(make())
    assert len(traces) == 1


def test_masks_that_differ_are_not_equal():
    eye = np.eye(3, dtype=bool)
    masks = [Causal(), Causal(1), Causal(align="end"), SlidingWindow(1), SlidingWindow(1, 1)]
    masks += [Dense(eye), Dense(~eye), Dense(eye[:2]), Global(1), Global(jnp.int32(1)), PrefixLM(1)]
    for i, one in enumerate(masks):
        for j, other in enumerate(masks):
            assert (one == other) == (i == j)
    assert Causal() != 3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mask_is_a_tree_of_its_arrays(case):
    c = call((5, 6))
    mask, _ = case.make(c, np.random.default_rng(0))
    leaves, structure = jax.tree.flatten(mask)
    assert all(isinstance(leaf, np.ndarray) for leaf in leaves)
    assert all(leaf.shape[0] in (1, c.batch) for leaf in leaves)
    assert jax.tree.unflatten(structure, leaves) == mask
    # JAX puts all sorts of things where leaves are.
    assert jax.tree.structure(jax.tree.map(lambda _: object(), mask)) == structure
    mask.check_axes({"B": 2, "N": 2, "T": 5, "S": 6})


def test_numbers_are_static_unless_they_are_traced():
    assert jax.tree.leaves([Global(3), Causal(np.int64(2)), Lengths(3), Dilated(2)]) == []
    seen = []

    @jax.jit
    def use(n):
        masks = [Global(n), Causal(n), SlidingWindow(n, n), PrefixLM(n), Dilated(n), Lengths(n, n)]
        seen.extend(jax.tree.leaves(masks))
        return n

    use(3)
    assert {(leaf.shape, leaf.dtype.name) for leaf in seen} == {((1,), "int32")}
    assert len(seen) == 8


def test_a_symbolic_dim_is_a_number_of_a_mask():
    def last_half(x):
        (leaf,) = jax.tree.leaves(Global(x.shape[0] // 2))
        return leaf

    exported = jax.export.export(jax.jit(last_half))(
        jax.ShapeDtypeStruct(jax.export.symbolic_shape("s"), np.float32)
    )
    np.testing.assert_array_equal(exported.call(np.zeros(14, np.float32)), [7])


REFUSED = {
    "no bool": (lambda: Dense(np.zeros((3, 3))), r"array is float64\[3, 3\], not bool", "bias"),
    "five axes": (lambda: Dense(np.zeros((1,) * 5, bool)), r"bool\[1, 1, 1, 1, 1\]", "last axes"),
    "a module": (lambda: MaskFunction(Unhashable()), "is not callable and hashable", "lambda b"),
    "no integer": (
        lambda: Global(1.5),
        r"n is float.*\[\], not an int or a vector",
        "pass n as an int",
    ),
    "too many axes": (lambda: Global(np.zeros((2, 2), int)), r"n is int64\[2, 2\]", "an int"),
    "no stride": (lambda: Dilated(0), "step=0 is less than 1", "step=1 or more"),
    "no side": (lambda: Causal(align="left"), "align='left' is not an alignment", "end"),
    "no window": (lambda: SlidingWindow(2, -3), r"SlidingWindow\(2, -3\) allows no key", "left=0"),
    "ids": (
        lambda: Documents(np.zeros(3)),
        r"query_ids is float64\[3\], not integers",
        "an integer",
    ),
    "key ids": (lambda: Documents([1], np.int32(3)), r"key_ids is int32\[\]", r"\[T\] or \[B, T\]"),
    "no function": (
        lambda: MaskFunction(3),
        "function=3 is not callable and hashable",
        "lambda b, h, q, k",
    ),
    "slopes": (lambda: ALiBi(np.arange(3)), r"slopes is int64\[3\], not floats", "for_heads"),
    "table": (
        lambda: RelativeBias(np.zeros(3)),
        r"table is float64\[3\], not floats",
        r"float\[N, left",
    ),
    "even table": (
        lambda: RelativeBias(np.zeros((2, 4))),
        "left=None does not fit a table of 4 distances",
        "odd number",
    ),
    "heads": (lambda: ALiBi.for_heads(0), "heads=0 is less than 1", "heads=1"),
    "buckets": (
        lambda: RelativeBias.t5(np.zeros((2, 4)), bidirectional=True),
        "a table of 2 buckets does not fit max_distance=128",
        "a table of [24] buckets or more, and max_distance=",
    ),
    "truth": (lambda: Causal() and Dense(3), r"Causal\(\) has no truth value", "join masks by &"),
    "left": (lambda: RelativeBias(np.zeros((2, 4)), left=4), "left=4", "from 0 to"),
}


@pytest.mark.parametrize(("make", "what", "fix"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_with_the_way_out(make, what, fix):
    with pytest.raises(ConfigError, match=f"(?s){what}.*Fix:.*{fix}"):
        make()


UNFIT = {
    "B": (Global(np.array([1, 2, 3])), "Global.n", "axis B is 3, not 2"),
    "N": (Dense(np.ones((3, 8, 9), bool)), "Dense.array", "axis N is 3, not 4"),
    "T": (Documents(np.zeros(7, int), np.zeros(9, int)), "Documents.query_ids", "T is 7, not 8"),
    "S": (Causal() & ~Dense(np.ones((8, 7), bool)), "Dense.array", "axis S is 7, not 9"),
    "one id": (Documents([1], np.zeros(9, int)), "Documents.query_ids", "axis T is 1, not 8"),
    "slopes": (ALiBi.for_heads(5), "ALiBi.slopes", "axis N is 5, not 4"),
}


@pytest.mark.parametrize(("mask", "name", "axis"), UNFIT.values(), ids=UNFIT)
def test_an_array_that_does_not_fit_the_call_is_named(mask, name, axis):
    with pytest.raises(ConfigError, match=f"{name} has shape .*{axis}"):
        mask.check_axes({"B": 2, "N": 4, "T": 8, "S": 9})


def test_what_broadcasts_fits():
    ones = Dense(np.ones((1, 1), bool)) & Global(np.array([3])) & Documents(np.zeros(8, int))
    ones.check_axes({"B": 2, "N": 4, "T": 8, "S": 8})


def test_a_function_that_gives_no_bool_is_named():
    def distance(b, h, q, k):
        return q - k

    with pytest.raises(
        ConfigError, match=r"(?s)distance returns int32, not bool.*Fix:.*comparison"
    ):
        MaskFunction(distance).allows(_positions())


def test_a_function_that_closes_over_a_traced_array_is_refused():
    @jax.jit
    def use(array):
        mask = MaskFunction(lambda b, h, q, k: (q < 3) & array[0])
        return mask.bounds(tile_grid((8, 8), (4, 4))).some

    with pytest.raises(ConfigError, match=r"(?s)closes over a traced array.*Fix:.*`mask=array`"):
        use(np.array([True]))


TABLE = np.arange(20) % 3


@pytest.mark.parametrize(
    "function", [lambda b, h, q, k: TABLE[q] == TABLE[k], lambda b, h, q, k: np.abs(q - k) < 3]
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.vmap])
def test_a_function_that_makes_numpy_arrays_is_told_so(function, wrap):
    x = np.ones((1, 20, 2, 8), np.float32)

    def use(x):
        return dot_product_attention(x, x, x, mask=MaskFunction(function))

    with pytest.raises(
        ConfigError, match=r"(?s)converts its positions to NumPy arrays.*Fix:.*jnp.asarray"
    ):
        wrap(use)(x[None] if wrap is jax.vmap else x)


def test_a_function_may_close_over_an_array_of_jax():
    table = jnp.asarray(TABLE)
    x = np.random.default_rng(0).normal(size=(1, 20, 2, 8)).astype(np.float32)
    out = dot_product_attention(x, x, x, mask=MaskFunction(lambda b, h, q, k: table[q] == table[k]))
    want = dot_product_attention(x, x, x, mask=Documents(TABLE))
    assert_close(out, want, scale=0)


ARRAYS = [np.True_, True, np.zeros(6, bool), [[True] * 6] * 5, np.eye(5, 6, dtype=bool)]
ARRAYS += [jnp.ones((3, 1, 6), bool), np.ones((2, 1, 5, 1), bool)]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(np.shape(array)))
def test_an_array_is_joined_in_every_shape_that_an_argument_may_have(array):
    x = np.random.default_rng(0).normal(size=(2, 6, 3, 8)).astype(np.float32)

    def attend(mask, **options):
        return dot_product_attention(x[:, :5], x, x, mask=mask, **options)

    want = attend(array, is_causal=True)
    np.testing.assert_array_equal(attend(Causal() & array), want)
    np.testing.assert_array_equal(attend(array & Causal()), want)
    np.testing.assert_array_equal(attend(~(~Causal() | ~np.asarray(array))), want)


def test_a_function_is_asked_at_trace_time_only():
    def known(size):
        mask = MaskFunction(lambda b, h, q, k: jnp.abs(q - k) < 3)
        bounds = mask.bounds(tile_grid((8, 8), (4, 4), query_lengths=size, known=False))
        assert isinstance(bounds.some, np.ndarray)
        return size

    jax.jit(known)(8)


def _positions():
    return block((0, 0), (4, 4), lengths=(8, 8), batch=0, head=0)


@pytest.mark.parametrize(
    "given",
    [None, "00011", b"1", [[1], [2, 3]], object()],
    ids=["None", "text", "bytes", "ragged", "object"],
)
@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (Documents, "an integer for each position"),
        (ALiBi, "a float for each query head"),
        (RelativeBias, "a bias for each distance"),
        (lambda given: BlockMask(given, (128, 128), (256, 256)), "1 for a partial"),
        (
            lambda given: BlockMask.from_topk(given, 1, tile=(128, 128), length=(256, 256)),
            "for each pair of tiles",
        ),
    ],
    ids=["Documents", "ALiBi", "RelativeBias", "BlockMask", "from_topk"],
)
def test_what_is_no_array_is_refused_with_what_to_pass(make, fix, given):
    with pytest.raises(ConfigError, match=rf"(?s) is not an array.*Fix: .*{fix}"):
        make(given)
