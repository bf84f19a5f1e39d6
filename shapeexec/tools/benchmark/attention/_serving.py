"""Studies of inference: few queries against a cache, and short sequences, beside `jax.nn`.

Our results are compared with the formula before they are timed; `_chained` times the programs.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import contextlib
import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import shapeexec as sx
from shapeexec.tools.benchmark.attention._chained import Chains
from shapeexec.tools.benchmark.attention._clock import clock
from shapeexec.tools.benchmark.attention._contestant import (
    RefusalError,
    compiled,
    in_one_line,
)
from shapeexec.tools.benchmark.attention._finding import Finding
from shapeexec.tools.benchmark.attention._problems import PASSES, Pass
from shapeexec.tools.benchmark.attention._reference import LIMITS, WrongResultError
from shapeexec.tools.benchmark.attention.rivals import flash_attention_3

Array = Any
_COPIED = 2**27  # numbers of the copy that measures the bandwidth
_OF_JAX = ("cudnn", "xla")
_OURS = "ours"
_OF_FLASH = {"flash_attention_3": False, "flash_attention_3, keys split": True}  # splits
_PAGES = (64, 128)  # rows of a page
_Mask = Literal["full", "causal", "end", "tree", "documents"]


@dataclasses.dataclass(frozen=True)
class _Call:
    """One call.

    Attributes:
        batch, queries, keys, heads, key_heads, head_size: B, T, S, N, K and H.
        mask: `end` is causal, the last query at the last key; `tree` is an array over the last
            keys, as speculative decoding has it. Rivals get no mask for `end`: they have none.
        is_ragged: Whether examples have random lengths.
        dtype: The dtype of q, k and v.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    head_size: int
    mask: _Mask = "full"
    is_ragged: bool = False
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """Sizes as on the command line, T and S apart."""
        sizes = (self.batch, self.queries, self.keys, self.heads, self.key_heads, self.head_size)
        return f"{'x'.join(map(str, sizes))} {self.mask}{', ragged' if self.is_ragged else ''}"

    @property
    def lengths(self) -> np.ndarray:
        """Valid lengths, i32[B]."""
        if not self.is_ragged:
            return np.full(self.batch, self.keys, np.int32)
        random = np.random.default_rng(0)
        return random.integers(1, self.keys + 1, self.batch).astype(np.int32)

    def arguments(self) -> tuple[Array, ...]:
        """q, k, v, the valid lengths or None, and the array of the mask or None."""
        random, (own, others) = np.random.default_rng(0), (self.heads, self.key_heads)
        shapes = ((self.queries, own), (self.keys, others), (self.keys, others))
        keys = jax.random.split(jax.random.key(0), 3)
        q, k, v = (
            jax.random.normal(key, (self.batch, *shape, self.head_size), self.dtype)
            for key, shape in zip(keys, shapes, strict=True)
        )
        array = None
        if self.mask == "tree":
            array = np.ones((1, 1, self.queries, self.keys), bool)
            array[..., -self.queries :] = np.tri(self.queries, dtype=bool)
        elif self.mask == "documents":
            array = np.sort(random.integers(0, 4, (self.batch, self.keys)), axis=1)
            array = array.astype(np.int32)
        given = (self.lengths if self.is_ragged else None, array)
        return q, k, v, *(None if x is None else jnp.asarray(x) for x in given)

    def in_pages(self, arguments: tuple[Array, ...], rows: int) -> tuple[Array, ...]:
        """The arguments with k and v as shuffled pages of `rows` rows, and the page numbers."""
        q, k, v, *rest = arguments
        numbers = np.random.default_rng(0).permutation(self.batch * self.keys // rows)
        numbers = jnp.asarray(numbers, jnp.int32)
        pages = (x.reshape(-1, rows, *x.shape[2:]) for x in (k, v))
        k, v = (jnp.zeros_like(x).at[numbers].set(x) for x in pages)
        return q, k, v, *rest, numbers.reshape(self.batch, -1)

    def ours(  # noqa: PLR0917 - operands of attention
        self, q: Array, k: Array, v: Array, lengths: Array, array: Array, pages: Array = None
    ) -> Array:
        """Our function."""
        masks = {"causal": sx.Causal(), "end": sx.Causal(align="end"), "tree": array}
        mask = sx.Documents(array) if self.mask == "documents" else masks.get(self.mask)
        own = lengths if self.queries == self.keys else None
        return sx.dot_product_attention(
            q, k, v, mask=mask, query_seq_lengths=own, key_value_seq_lengths=lengths, pages=pages
        )

    def theirs(self, rival: Any) -> Callable[..., Array]:
        """The function of `jax.nn` with this implementation."""

        def attend(q: Array, k: Array, v: Array, lengths: Array, array: Array) -> Array:  # noqa: PLR0917 - operands of attention
            mask, own = array, None
            if self.mask == "documents":
                mask = (array[:, :, None] == array[:, None])[:, None]
            if lengths is not None:
                alike = self.queries == self.keys
                own = lengths if alike else jnp.full(self.batch, self.queries, jnp.int32)
            return jax.nn.dot_product_attention(
                q,
                k,
                v,
                mask=mask,
                is_causal=self.mask == "causal",
                query_seq_lengths=own,
                key_value_seq_lengths=lengths,
                implementation=rival,
            )

        return attend

    def flash(self, *, splits: bool) -> Callable[..., Array]:
        """The function of FlashAttention 3; its causal masks align the last query and key.

        Raises:
            RefusalError: It is not installed, or does not support this call.
        """
        if reason := flash_attention_3.rival.missing():
            raise RefusalError(reason)
        attend = importlib.import_module(flash_attention_3.MODULE).flash_mha
        if splits and "num_splits" not in inspect.signature(attend).parameters:
            raise RefusalError("its package has no split keys")
        if self.is_ragged or self.mask in ("tree", "documents"):
            raise RefusalError("it takes no such mask, nor lengths of keys in one array")
        options = {"num_splits": 0} if splits else {}  # 0: as many as it finds best
        is_causal = self.mask != "full"

        def of_arrays(q: Array, k: Array, v: Array, *_: Array) -> Array:  # noqa: PLR0917 - the operands of attention
            return attend(q, k, v, is_causal=is_causal, **options)

        return of_arrays

    def check(self, arguments: tuple[Array, ...], got: np.ndarray) -> None:
        """Compare a result for the last example, f32, with the formula.

        Raises:
            WrongResultError: They differ by more than rounding.
        """
        q, k, v, _, array = arguments
        k, v = (
            jnp.repeat(x[-1].astype(np.float32), self.heads // self.key_heads, 1) for x in (k, v)
        )
        size = int(self.lengths[-1])
        queries = size if self.queries == self.keys else self.queries
        query, key = np.arange(self.queries)[:, None], np.arange(self.keys)
        allowed = (key < size) & (query < queries)
        if self.mask in ("causal", "end"):
            allowed &= key - query <= (size - queries if self.mask == "end" else 0)
        elif self.mask == "tree":
            allowed &= np.asarray(array)[0, 0]
        elif self.mask == "documents":
            ids = np.asarray(array)[-1]
            allowed &= ids[:, None] == ids
        options: Any = {"precision": "highest"}
        scores = jnp.einsum("tnh,snh->nts", q[-1].astype(np.float32), k, **options)
        scores = jnp.where(allowed, scores * self.head_size**-0.5, -1e30)
        weights = jnp.where(allowed, jax.nn.softmax(scores), 0)
        want = np.asarray(jnp.einsum("nts,snh->tnh", weights, v, **options))
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        if not error <= LIMITS[self.dtype]:  # NaN is no less wrong
            raise WrongResultError(f"{self.name} is off by {error:.1%} of its norm")

    @property
    def cache_bytes(self) -> int:
        """The bytes of the valid keys and values."""
        element = self.key_heads * self.head_size * jnp.dtype(self.dtype).itemsize
        return 2 * int(self.lengths.sum()) * element


_DECODE = (
    *(_Call(8, 1, 8192, 32, 8, 128, is_ragged=ragged) for ragged in (False, True)),
    *(_Call(1, 1, 65536, 32, 8, 128, is_ragged=ragged) for ragged in (False, True)),
    *(_Call(64, 1, 4096, 32, 8, 128, is_ragged=ragged) for ragged in (False, True)),
    *(_Call(64, 1, 1024, 32, 8, 128, is_ragged=ragged) for ragged in (False, True)),
    *(_Call(8, 4, 8192, 32, 8, 128, "end", ragged) for ragged in (False, True)),
    *(_Call(8, 16, 8192, 32, 8, 128, "end", ragged) for ragged in (False, True)),
    _Call(8, 4, 8192, 32, 8, 128, "tree"),
)
_MASKS: tuple[tuple[_Mask, bool], ...] = (
    ("full", False),
    ("causal", False),
    ("documents", False),
    ("full", True),
)
_SHORT = tuple(
    _Call(batch, length, length, 16, 16, size, mask, is_ragged)
    for batch, length, size in ((16, 512, 128), (64, 128, 64), (32, 256, 64), (8, 1024, 128))
    for mask, is_ragged in _MASKS
)
_ON_A_CPU = (
    (
        _Call(1, 1, 2048, 4, 2, 64, is_ragged=True, dtype="float32"),
        _Call(4, 1, 4096, 4, 4, 64, dtype="float32"),
        _Call(4, 1, 4096, 8, 2, 64, is_ragged=True, dtype="float32"),
        _Call(4, 4, 4096, 8, 2, 64, "end", is_ragged=True),
    ),
    (
        _Call(2, 128, 128, 4, 4, 64, "causal", dtype="float32"),
        *(_Call(1, 256, 256, 4, 4, 64, dtype=dtype) for dtype in ("float32", "bfloat16")),
        *(_Call(1, 1024, 1024, 4, 4, 64, dtype=dtype) for dtype in ("float32", "bfloat16")),
    ),
)


def decode(*_: Sequence[Any]) -> Iterator[Finding]:
    """Few queries against a cache: beside rivals and one read of the cache; then with pages."""
    calls = _DECODE if jax.default_backend() == "gpu" else _ON_A_CPU[0]
    chains = Chains()
    for call in calls:
        _begin(chains, call, passes=("forward",))
        for rows in _PAGES:
            shapes = jax.eval_shape(
                lambda call=call, rows=rows: call.in_pages(call.arguments(), rows)
            )
            chains.begin_with_result((call, rows), call.ours, shapes=shapes, passes=("forward",))
        for name, splits in _OF_FLASH.items():
            with contextlib.suppress(RefusalError):
                attend, shapes = call.flash(splits=splits), _shapes(call)
                chains.begin_with_result((call, name), attend, shapes=shapes, passes=("forward",))
    chains.wait()
    bandwidth = _bandwidth()
    yield from _absent()
    for call in calls:
        arguments = call.arguments()
        call.check(arguments, chains.result((call, _OURS), arguments))
        mine = chains.microseconds((call, _OURS), arguments)
        yield from _against_rivals("decode", call, chains=chains, arguments=arguments, mine=mine)
        yield from _against_flash(call, chains=chains, arguments=arguments, mine=mine)
        once = 1e6 * call.cache_bytes / bandwidth
        meaning = "of reading the cache as fast as a copy does"
        yield Finding("decode", call.name, "us", mine, once, meaning)
        for rows in _PAGES:
            paged = call.in_pages(arguments, rows)
            call.check(arguments, chains.result((call, rows), paged))
            time = chains.microseconds((call, rows), paged)
            case = f"{call.name}, pages of {rows}"
            yield Finding("decode", case, "us", time, mine, "of the cache in one array")


def short(*_: Sequence[Any]) -> Iterator[Finding]:
    """Short sequences, forward and with backward, beside the best rival."""
    calls = _SHORT if jax.default_backend() == "gpu" else _ON_A_CPU[1]
    chains = Chains()
    for call in calls:
        _begin(chains, call, passes=PASSES)
    chains.wait()
    for call in calls:
        arguments = call.arguments()
        call.check(arguments, chains.result((call, _OURS), arguments))
        for passes in PASSES:
            mine = chains.microseconds((call, _OURS), arguments, passes=passes)
            known: Any = {"arguments": arguments, "mine": mine, "passes": passes}
            yield from _against_rivals("short", call, chains=chains, **known)


def _begin(chains: Chains, call: _Call, *, passes: Sequence[Pass]) -> None:
    """Begin to compile our function and those of `jax.nn`."""
    shapes = _shapes(call)
    chains.begin_with_result((call, _OURS), call.ours, shapes=shapes, passes=passes)
    for rival in _OF_JAX:
        chains.begin((call, rival), call.theirs(rival), shapes=shapes, passes=passes)


def _shapes(call: _Call) -> tuple[Any, ...]:
    return jax.eval_shape(call.arguments)


def _against_rivals(
    study: str,
    call: _Call,
    *,
    chains: Chains,
    arguments: tuple[Array, ...],
    mine: float,
    passes: Pass = "forward",
) -> Iterator[Finding]:
    times: dict[str, float] = {}
    case = call.name if passes == "forward" else f"{call.name}, {passes}"
    for rival in _OF_JAX:
        try:
            times[rival] = chains.microseconds((call, rival), arguments, passes=passes)
        except (ValueError, RuntimeError) as error:  # jax.nn raises these where it refuses a call
            reason = f"jax.nn with {rival}: {in_one_line(error)}"
            yield Finding(study, case, "us", mine, None, reason)
    if times:
        best = min(times, key=lambda rival: times[rival])
        yield Finding(study, case, "us", mine, times[best], f"of jax.nn with {best}")


def _absent() -> Iterator[Finding]:
    """The rivals that can take no call, and why."""
    probe = _DECODE[0]
    for name, splits in _OF_FLASH.items():
        try:
            probe.flash(splits=splits)
        except RefusalError as error:
            yield Finding("decode", name, "us", None, None, str(error))
    why = "its workers take as many queries as keys"
    yield Finding("decode", "flex_attention", "us", None, None, why)


def _against_flash(
    call: _Call, *, chains: Chains, arguments: tuple[Array, ...], mine: float
) -> Iterator[Finding]:
    for name in _OF_FLASH:
        try:
            call.check(arguments, chains.result((call, name), arguments))
            theirs = chains.microseconds((call, name), arguments)
        except KeyError:  # `_absent` reports a missing package; others lack this call's mask
            continue
        except Exception as error:  # as in rows: a failing rival ends nothing
            yield Finding("decode", call.name, "us", mine, None, f"{name}: {in_one_line(error)}")
        else:
            yield Finding("decode", call.name, "us", mine, theirs, f"of {name}")


def _bandwidth() -> float:
    """Bytes read and written a second by a copy."""
    on_gpu = jax.default_backend() == "gpu"
    x = jnp.ones(_COPIED if on_gpu else _COPIED // 8, np.float32)
    program = compiled(_copied, (x,))
    return 2 * x.nbytes / (1e-3 * clock(program.call, (x,)).wall)


def _copied(x: Array) -> Array:
    return x + 1
