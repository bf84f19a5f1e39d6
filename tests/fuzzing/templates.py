"""What random programs are made of: expressions with holes.

    {x}  a float array          {y}  one of the shape of {x}     {z}  any other float array
    {i}  an integer array       {p}  one of the shape of {x}
    {m}  a boolean array of the shape of {x}
    {a}  an axis of {x}         {c}  another axis of {x}
    {n}  an integer from 0 to 3           {k}  an integer from 1 to 3

A hole has one value in one expression. What does not fit, since broadcasting fails for example,
is thrown away, so that an expression need not say what it demands of its operands. What decides by
a number compares with 0.37 and the like: a number that is 0 but for rounding decides by chance.
What factorizations and transforms make of infinities and NaN is under "Limits" in README, and so
they get none here; nor do sums get numbers that overflow in one order and not in another.
"""

from tests.fuzzing import sizes

POINTWISE = """
jnp.sin({x})
jnp.tanh({x}) * {k}
jnp.exp(-jnp.abs({x}))
jnp.log1p({x} ** 2)
jnp.sqrt(jnp.abs({x}) + 0.1)
jax.nn.relu({x})
jax.nn.gelu({x})
jax.nn.sigmoid({x})
1 / (1 + {x} ** 2)
{x} + {y}
{x} - {y}
{x} * {y}
{x} / (1 + jnp.abs({y}))
{x} + {z}
{x} * {z}
jnp.maximum({x}, {z})
jnp.minimum({x}, {y})
jnp.where({m}, {x}, {y})
jnp.where({m}, {x}, -jnp.inf).max({a})
jnp.clip({x}, -1, 1)
jnp.round({x} * {k})
jnp.floor({x})
jnp.sign({x})
{x} > {y}
{x} >= {z}
jnp.isfinite(jnp.log({x} - 0.37))
~({x} > 0)
{m} & ({x} > 0)
{x}.astype(jnp.int32)
{i} % 5
{i} * {k} - {n}
{i}.astype(jnp.float32)
jnp.nan_to_num(jnp.log({x}), posinf=9.0, neginf=-9.0)
({x} + 1j * {y}).real
jnp.abs({x} + 1j * {y})
jax.lax.stop_gradient({x}) * {y}
jax.lax.reduce_precision({x}, 8, 7)
"""

REDUCTIONS = """
{x}.sum({a})
{x}.mean({a}, keepdims=True)
{x}.max({a})
{x}.min({a}, keepdims=True)
jnp.tanh({x}).prod({a})
{x}.std({a})
{x}.var({a}, keepdims=True)
{x} - {x}.mean({a}, keepdims=True)
jax.nn.softmax({x}, {a})
jax.nn.log_softmax({x}, {a})
jax.nn.logsumexp({x}, {a})
jax.nn.standardize({x}, {a})
jnp.linalg.norm({x}, axis={a})
jnp.nan_to_num({x}).argmax({a})
jnp.nan_to_num({x}).argmin({a})
({x} > 0).any({a})
({x} > 0).all({a})
jnp.count_nonzero({x} > 0, axis={a})
jnp.median({x}, {a})
jnp.quantile({x}, 0.3, {a})
jnp.ptp({x}, {a})
jnp.average({x}, {a}, jnp.abs({y}) + 1)
{x}.sum()
{x}.mean()
jnp.nanmean(jnp.where({m}, {x}, jnp.nan), {a})
jnp.where({m}, {x}, 0).sum({a}) / jnp.maximum({m}.sum({a}), 1)
jnp.mean({x}, where={m})
{i}.max({a})
{i}.sum({a})
"""

ALONG_AN_AXIS = """
jnp.cumsum({x}, {a})
jnp.cumprod(jnp.tanh({x}), {a})
jax.lax.cummax({x}, {a})
jax.lax.cumsum({x}, {a}, reverse=True)
jax.lax.cumlogsumexp({x}, {a}, reverse=True)
jax.lax.cummin({x}, {a}, reverse=True)
jnp.sort({x}, {a})
jnp.argsort({x}, {a})
-jnp.sort(-{x}, {a})
jax.lax.sort(({x}, {y}), dimension={a}, num_keys=1)[1]
jnp.flip({x}, {a})
jnp.roll({x}, {k}, {a})
jnp.diff({x}, axis={a}).sum({a})
jnp.diff({x}, axis={a})
jnp.take_along_axis({x}, jnp.argsort({y}, {a}), {a})
jax.lax.top_k({x}, {k})[0]
jnp.pad({x}, 1)
jnp.pad({x}, 1).cumsum({a})
jax.lax.pad({x}, 0.5, [({n} - 2, {k}, 1)] * {x}.ndim)
jnp.concatenate([{x}, {y}], {a})
jnp.concatenate([{x}, {x} * {k}, {y}], {a})
jnp.concatenate([{x}, {z}], {a})
jnp.stack([{x}, {y}], {a})
jnp.stack([{x}, {y}], -1)
jnp.repeat({x}, 2, {a})
jnp.tile({x}, 2)
jnp.split(jnp.concatenate([{x}, {y}], {a}), 2, {a})[1]
jnp.moveaxis({x}, {a}, {c})
jnp.swapaxes({x}, {a}, {c})
jnp.expand_dims({x}, {a})
{x}.reshape(-1)
{x}.ravel().cumsum()
{x}.reshape(-1)[::-1].reshape({x}.shape)
{x}.reshape({x}.shape[0], -1)
{x}.reshape(-1, {x}.shape[-1])
{x}.T
jnp.tril({x})
jnp.triu({x}, {k})
jnp.broadcast_to({x}, (2, *{x}.shape))
jnp.broadcast_to({x}[None], ({x}.shape[-1], *{x}.shape))
jnp.gradient({x}, axis={a})
jax.lax.associative_scan(jnp.maximum, {x}, axis={a})
jax.lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (jnp.tanh({x}), {y}))[1]
jax.lax.associative_scan(jnp.add, {x}, reverse=True, axis={a})
jax.random.permutation(jax.random.key({k}), {x}, {a})
jnp.convolve({x}.mean(-1).ravel(), {z}.ravel()[: {k}], "same")
jnp.convolve({x}.ravel()[:5], {z}.mean(0).ravel())
jnp.correlate({x}.ravel()[:9], {z}.mean(-1).ravel(), "full")
jnp.interp({x}, jnp.sort(jnp.nan_to_num({z}).max(-1).ravel()), {z}.mean(-1).ravel())
jnp.squeeze({x})
jax.lax.reduce_window({x}, 0.0, jax.lax.add, {x}.shape, (1,) * {x}.ndim, "SAME")
jax.lax.reduce_window({x}, -jnp.inf, jax.lax.max, {x}.shape, (1,) * {x}.ndim, "SAME")
"""

CONTRACTIONS = """
{x} @ {z}
{x} @ {y}.T
{x}.T @ {y}
jnp.tensordot({x}, {y}, {x}.ndim)
jnp.einsum("...i,...i->...", {x}, {y})
jnp.einsum("ij,kj->ik", {x}, {z})
jnp.einsum("i...,i...->...", {x}, {y})
jnp.einsum("bij,bkj->bik", {x}, {z})
jax.nn.softmax({x} @ jnp.swapaxes({x}, -1, -2)) @ {x}
jnp.outer({x}.mean(-1).ravel(), {y}.max(-1).ravel())
jnp.vdot({x}, {y})
"""

INDEXING = """
{x}[1:]
{x}[:-1]
{x}[..., ::2]
{x}[::-1]
{x}[..., -1]
{x}[0]
{x}[{i}]
{x}[{i} % {k}]
{x}[-{i}]
jnp.take({x}, {i}, axis={a}, mode="clip")
jnp.take({x}, {i}, axis={a}, mode="fill")
jnp.take({x}, {i} - 2, axis={a})
{x}.at[0].set(1.5)
{x}.at[..., -1].add({k})
{x}.at[{i}].add(1.0)
{x}.at[{i}].max(0.5)
{x}.at[{i}].set(0.25)
{x}.at[1:].multiply(2)
{x}.at[..., :-1].add({x}[..., 1:])
jnp.zeros({x}.shape[{a}]).at[{i}].add(1)
jax.ops.segment_sum({x}, {p}.ravel()[: {x}.shape[0]] % 4, 4)
jax.ops.segment_max({x}, jnp.arange({x}.shape[0]) // 2, {x}.shape[0])
jax.lax.dynamic_slice_in_dim({x}, {n}, 2, {a})
jax.lax.dynamic_slice_in_dim({x}, {i}.max(), 1, {a})
jax.lax.dynamic_update_slice_in_dim({x}, {x} * 2, {n}, {a})
jax.lax.dynamic_index_in_dim({x}, {i}.ravel()[0], {a})
jax.nn.one_hot({i}, 4)
jnp.bincount({i}.ravel(), length=4)
jnp.searchsorted(jnp.sort({x}.ravel()), 0.1)
jnp.searchsorted(jnp.sort({x}.ravel()), {z}, "right")
jnp.searchsorted(jnp.sort({z}.max(-1).ravel()), {x}, method="sort")
jnp.digitize({x}, jnp.sort({z}.max(-1).ravel()))
jnp.where({x} > 0, size=4, fill_value=0)[0]
"""

WINDOWS = """
jax.lax.reduce_window({x}, -jnp.inf, jax.lax.max, (3, 1), (1, 1), "SAME")
jax.lax.reduce_window({x}, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID")
jax.lax.reduce_window({x}, 0.0, jax.lax.add, (1, 2, 2), (1, 1, 1), "SAME")
jax.lax.reduce_window({x}, 0.0, jax.lax.add, (2, 2), (2, 2), "SAME")
jnp.convolve({x}.sum(tuple(range(1, {x}.ndim))), jnp.ones(3), mode="same")
jax.lax.conv_general_dilated({x}.reshape(1, 1, -1), jnp.ones((2, 1, 3)), (1,), "SAME")[0]
jax.lax.conv_general_dilated({x}.reshape(1, 1, -1), jnp.ones((2, 1, 3)), (2,), [(1, 1)])[0]
jax.lax.conv_general_dilated({x}[None, None], jnp.ones((1, 1, 3, 2)) / 3, (1, 1), "SAME")[0, 0]
jax.lax.conv_general_dilated({x}, jnp.ones((2, {x}.shape[1], 2)), (1,), "SAME")
"""

SIZES = """
{x} * {x}.shape[{a}]
{x} / jnp.sqrt({x}.shape[{a}])
{x} + jnp.arange({x}.shape[-1])
{x} * jnp.linspace(0, 1, {x}.shape[-1])
jnp.eye({x}.shape[{a}])
jnp.ones(({x}.shape[{a}], {x}.shape[{c}])) * {k}
{x}[..., : {x}.shape[-1] // 2]
{x}[: max({x}.shape[0] - {n}, 1)]
{x}.sum() if {x}.shape[{a}] % 2 == 0 else {x}.mean()
{x}.max({a}) if {x}.shape[{a}] > 4 else {x}.min({a})
jnp.full({x}.shape, {x}.shape[0] // {k})
jnp.arange({x}.shape[{a}])
jnp.arange({x}.shape[{a}] * 2)[::2]
jax.lax.broadcasted_iota(jnp.int32, {x}.shape, {a})
jnp.tril(jnp.ones(({x}.shape[{a}],) * 2))
"""

CONTROL_FLOW = """
jax.lax.scan(lambda c, r: (c * 0.5 + r, c), jnp.zeros({x}.shape[1:]), {x})[1]
jax.lax.scan(lambda c, r: (jnp.tanh(c + r), r * c), {x}[0], {x}, reverse=True)[0]
jax.lax.scan(lambda c, r: (c + r.sum(), c * r), 0.0, {x})[1]
jax.lax.fori_loop(0, {x}.shape[0], lambda k, c: c * 0.5 + {x}[k], jnp.zeros({x}.shape[1:]))
jax.lax.fori_loop(0, {k}, lambda k, c: jnp.sin(c) + {x}, {x})
jax.lax.cond({x}.sum() > 0.37, lambda v: v.cumsum({a}), lambda v: v * 2, {x})
jax.lax.cond({x}.shape[{a}] > 4, lambda v: v.sum({a}), lambda v: v.mean({a}), {x})
jax.lax.while_loop(lambda c: jnp.abs(c).max() > 0.1, lambda c: c * 0.5, jnp.tanh({x}))
jax.vmap(lambda r: jax.nn.softmax(r).max())({x})
jax.vmap(lambda r: r.cumsum() - r.mean(), in_axes=-1)({x})
jax.vmap(lambda r, q: jnp.where(r > 0, q, r).sum())({x}, {y})
jax.checkpoint(lambda v: jnp.tanh(v).sum({a}))({x})
jax.jit(lambda v: v - v.max({a}, keepdims=True))({x})
jax.grad(lambda v: (v.mean({a}) ** 2).sum())({x})
jax.grad(lambda v: jnp.tanh(jnp.tanh(v).prod({a})).sum())({x})
jax.grad(lambda v: jnp.sin(jax.lax.cumprod(jnp.tanh(v), {a})).sum())({x})
jax.grad(lambda v: jnp.sin(jax.lax.cummax(v, {a}, reverse=True)).sum())({x})
jax.grad(lambda v: jnp.tanh(jax.lax.cumlogsumexp(v, {a})).sum())({x})
jax.grad(lambda v: jax.nn.logsumexp(v * {y}))({x})
jax.jvp(lambda v: jax.nn.softmax(v, {a}), ({x},), ({y},))[1]
jax.lax.map(lambda r: r.sum() + r, {x})
"""

RANDOM = """
jax.random.normal(jax.random.key({n}), {x}.shape) * {x}
jnp.where(jax.random.bernoulli(jax.random.key({k}), 0.7, {x}.shape), {x}, 0)
jax.random.uniform(jax.random.key({n}), ({x}.shape[{a}], 2))
jax.random.categorical(jax.random.key({k}), {x}, {a})
jax.random.permutation(jax.random.key({n}), {x}.shape[{a}])
jax.random.choice(jax.random.key({n}), {x}, (3,), axis={a})
jax.random.choice(jax.random.key({n}), {x}.shape[{a}], ({k},), replace=False)
jax.random.randint(jax.random.key({n}), {x}.shape, 0, 3)
jax.vmap(jax.random.normal)(jax.random.split(jax.random.key({n}), {x}.shape[{a}])) * {k}
"""

LINALG = """
(lambda v: jnp.linalg.cholesky(v @ v.T + 30 * jnp.eye(v.shape[0])))(FINITE)
(lambda v: jnp.linalg.solve(v @ v.T + 30 * jnp.eye(v.shape[0]), v))(FINITE)
(lambda v: jnp.linalg.inv(v.T @ v + 30 * jnp.eye(v.shape[1])))(FINITE)
(lambda v: jnp.linalg.slogdet(v @ v.T + 30 * jnp.eye(v.shape[0]))[1])(FINITE)
jnp.cov(FINITE)
(lambda v: jnp.linalg.eigvalsh(v @ v.T + jnp.diag(30.0 * jnp.arange(v.shape[0]))))(FINITE)
jnp.fft.fft(FINITE, 4, 0).real
""".replace("FINITE", "jnp.nan_to_num({x}, posinf=9.0, neginf=-9.0)")

# How often each family is drawn: what mixes elements along axes most.
WEIGHTS = {
    POINTWISE: 5,
    REDUCTIONS: 5,
    ALONG_AN_AXIS: 6,
    CONTRACTIONS: 3,
    INDEXING: 4,
    WINDOWS: 1,
    SIZES: 2,
    CONTROL_FLOW: 3,
    RANDOM: 1,
    LINALG: 1,
}
FAMILIES = {
    **{tuple(text.strip().splitlines()): weight for text, weight in WEIGHTS.items()},
    sizes.uses(): 3,
    tuple(sizes.QUESTIONS.strip().splitlines()): 1,
    tuple(sizes.STRIDED.strip().splitlines()): 2,
}
