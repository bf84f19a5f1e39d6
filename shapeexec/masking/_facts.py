"""Pointwise primitives: one row of facts for each, and what follows for padding.

To add a primitive is to add a row to `FACTS`, and a function where a fact depends on the operands.
The rows decide which masks are spared, which fills pass through a factor, and which operations can
sum over examples.
"""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import numpy as jnp

from shapeexec import _compat
from shapeexec.masking._knowledge import (
    FINITE,
    UNSPECIFIED,
    Known,
    Padding,
    by_dtype,
    constant,
    is_inexact,
    join,
    meet,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call:
    """One use of a pointwise primitive.

    Attributes:
        params: The equation's parameters.
        dtype: The dtype of the result.
        operand_dtype: The dtype of the first operand.
    """

    params: dict[str, Any]
    dtype: Any
    operand_dtype: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a pointwise primitive that hold for all operands.

    Attributes:
        is_opaque: Nothing is known of a result, not even that it is finite: keys, tokens.
        is_identity: The result is the first operand.
        keeps_finite: The result of finite operands is finite, unless they are complex or have 8
            bits.
        on_constants: Computes the result of NumPy scalars, as XLA does at the points that
            `_is_exact` accepts; None: XLA may compute another result.
        special: `special(paddings, call)`: the fact about the result, by a rule for this primitive
            alone; its answer, even None, goes before `on_constants` and `keeps_finite`.
        signs: Per operand its sign, if the result is a sum of the operands; None: it is not.
        scales: The operands of which the result is a multiple, if the other operand is constant.
    """

    is_opaque: bool = False
    is_identity: bool = False
    keeps_finite: bool = False
    on_constants: Callable[..., Any] | None = None
    special: Callable[[Sequence[Padding], Call], Padding | None] | None = None
    signs: tuple[int, ...] | None = None
    scales: tuple[int, ...] = ()


def _converted(paddings: Sequence[Padding], call: Call) -> Padding:
    """A conversion may overflow to infinity, or change a constant.

    NumPy wraps or truncates where XLA saturates, for -1 as a uint8 or infinity as an int32: a
    constant is known to stay one only if it comes back unchanged.
    """
    (padding,), dtype = paddings, call.dtype
    if padding.value is None:
        is_kept = padding.finite and _holds_all(dtype, call.operand_dtype)
        return FINITE if is_kept else UNSPECIFIED
    value = np.asarray(padding.value)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a complex number loses its imaginary part
        try:
            computed = value.astype(dtype)
            returned = computed.astype(value.dtype)
        except TypeError:  # NumPy cannot convert between 8-bit floats; XLA can
            return UNSPECIFIED
    return constant(computed) if returned == value else UNSPECIFIED


def _selected(paddings: Sequence[Padding], call: Call) -> Padding:
    """The case that a constant selects; else the fact that all cases share."""
    del call
    which, *cases = paddings
    return join(cases) if which.value is None else cases[int(which.value)]


def _absorbed(paddings: Sequence[Padding], call: Call) -> Padding | None:
    """Zero times a finite number is zero."""
    zero = np.zeros((), call.dtype)
    is_zero = any(padding.is_constant(zero[()]) for padding in paddings)
    return constant(zero) if is_zero and all(padding.finite for padding in paddings) else None


def _divided(paddings: Sequence[Padding], call: Call) -> Padding | None:
    """Integers divide by rules of their own; the sign of a zero divisor is not known."""
    if any(padding.value is None for padding in paddings):
        return None
    if not is_inexact(call.dtype):
        return FINITE
    return UNSPECIFIED if paddings[1].value == 0 else None


def _raised(paddings: Sequence[Padding], call: Call) -> Padding | None:
    """Positive powers of 0 and 1 are 0 and 1."""
    (padding,) = paddings
    is_kept = call.params["y"] > 0 and padding.value in (0, 1)
    return constant(padding.value) if is_kept else None


def _of_reals(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function for real numbers; NaN for complex ones, whose rounding differs in XLA."""
    return lambda x: np.nan if np.iscomplexobj(x) else function(x)


_OPAQUE = """
    philox2x32 philox4x32 random_clone random_fold_in random_seed random_unwrap random_wrap
    threefry2x32 threefry4x32 tie
"""
_WITHOUT_FACTS = """
    acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clz complex conj cosh
    digamma eq_to erf_inv erfc exp2 from_edtype igamma igamma_grad_a igammac imag
    layout_constraint le_to lgamma log2 lt_to mulhi nextafter one_minus_square polygamma
    polynomial population_count pow real reduce_precision reduced_vary_cast reduced_vary_cast_p
    regularized_incomplete_beta relayout rem reshard rsqrt sharding_constraint shift_left
    shift_right_arithmetic shift_right_logical sinh stage tan to_edtype
    with_memory_space_constraint xla_metadata_value zeta
"""
FACTS: dict[str, Facts] = {
    **dict.fromkeys(_OPAQUE.split(), Facts(is_opaque=True)),
    **dict.fromkeys(_WITHOUT_FACTS.split(), Facts()),
    "abs": Facts(keeps_finite=True, on_constants=np.abs),
    "add": Facts(on_constants=np.add, signs=(1, 1)),
    "add_any": Facts(on_constants=np.add, signs=(1, 1)),
    "and": Facts(keeps_finite=True, on_constants=np.bitwise_and, special=_absorbed),
    "ceil": Facts(keeps_finite=True),
    "convert_element_type": Facts(special=_converted),
    "copy": Facts(is_identity=True),
    "copy_p": Facts(is_identity=True),
    "cos": Facts(keeps_finite=True),
    "div": Facts(on_constants=np.true_divide, special=_divided, scales=(0,)),
    "eq": Facts(on_constants=np.equal),
    "erf": Facts(keeps_finite=True),
    "exp": Facts(on_constants=_of_reals(np.exp)),
    "expm1": Facts(on_constants=_of_reals(np.expm1)),
    "floor": Facts(keeps_finite=True),
    "ge": Facts(on_constants=np.greater_equal),
    "gt": Facts(on_constants=np.greater),
    "integer_pow": Facts(special=_raised),
    "is_finite": Facts(on_constants=np.isfinite),
    "le": Facts(on_constants=np.less_equal),
    "log": Facts(on_constants=_of_reals(np.log)),
    "log1p": Facts(on_constants=_of_reals(np.log1p)),
    "logistic": Facts(keeps_finite=True, on_constants=_of_reals(lambda x: 1 / (1 + np.exp(-x)))),
    "lt": Facts(on_constants=np.less),
    "max": Facts(keeps_finite=True, on_constants=np.maximum),
    "min": Facts(keeps_finite=True, on_constants=np.minimum),
    "mul": Facts(on_constants=np.multiply, special=_absorbed, scales=(0, 1)),
    "name": Facts(is_identity=True),
    "ne": Facts(on_constants=np.not_equal),
    "neg": Facts(keeps_finite=True, on_constants=np.negative, signs=(-1,)),
    "not": Facts(keeps_finite=True, on_constants=np.invert),
    "or": Facts(keeps_finite=True, on_constants=np.bitwise_or),
    "round": Facts(keeps_finite=True),
    "select_n": Facts(special=_selected),
    "sign": Facts(keeps_finite=True, on_constants=_of_reals(np.sign)),
    "sin": Facts(keeps_finite=True, on_constants=_of_reals(np.sin)),
    "sqrt": Facts(on_constants=_of_reals(np.sqrt)),
    "square": Facts(on_constants=np.square),
    "stop_gradient": Facts(is_identity=True),
    "sub": Facts(on_constants=np.subtract, signs=(1, -1)),
    "tanh": Facts(keeps_finite=True, on_constants=_of_reals(np.tanh)),
    "xor": Facts(keeps_finite=True, on_constants=np.bitwise_xor),
}
"""By name each primitive whose result elements read their own position only."""


def names_with(has: Callable[[Facts], Any]) -> list[str]:
    """The primitives of which something is true."""
    return [name for name, facts in FACTS.items() if has(facts)]


def signs_of(eqn: Any) -> tuple[int, ...] | None:
    """Per operand its sign in the sum that an equation computes; None: it computes no sum."""
    facts = FACTS.get(eqn.primitive.name)
    return None if facts is None else facts.signs


def scaled_operands(eqn: Any) -> list[tuple[Any, Any]]:
    """`(operand, factor)`: the operands that an equation's result is a multiple of, by factor.

    The factor of a division is the divisor.
    """
    facts = FACTS.get(eqn.primitive.name, Facts())
    return [(eqn.invars[place], eqn.invars[1 - place]) for place in facts.scales]


def through_pointwise(name: str, operands: Sequence[Known], *, call: Call, rank: int) -> Known:
    """The facts about a pointwise primitive's result.

    Args:
        name: The primitive's name.
        operands: The facts about each operand; an operand of rank 0 is read at every position.
        call: Its parameters and dtypes.
        rank: The result's rank.
    """
    facts, by_type = FACTS[name], by_dtype(call.dtype)
    found: dict[tuple[int, ...], Padding] = {}  # most axes share the facts of the whole

    def result(paddings: Sequence[Padding]) -> Padding:
        key = tuple(map(id, paddings))
        if key not in found:
            found[key] = meet(_through(facts, paddings, call=call), by_type)
        return found[key]

    whole = result([known.whole for known in operands])
    axes = tuple(
        result([known.axes[axis] if known.axes else known.whole for known in operands])
        for axis in range(rank)
    )
    return Known(whole, axes)


def _through(facts: Facts, paddings: Sequence[Padding], *, call: Call) -> Padding:
    if facts.is_identity:
        return paddings[0]
    if any(padding.unless is not None for padding in paddings):
        return UNSPECIFIED
    special = None if facts.special is None else facts.special(paddings, call)
    if special is not None:
        return special
    values = [padding.value for padding in paddings]
    if facts.on_constants is not None and all(value is not None for value in values):
        with np.errstate(all="ignore"):
            computed = np.asarray(facts.on_constants(*values)).astype(call.dtype)
        if _is_exact(computed):
            return constant(computed)
    is_finite = facts.keeps_finite and all(padding.finite for padding in paddings)
    return FINITE if is_finite and _is_wide(call.operand_dtype) else UNSPECIFIED


def _is_wide(dtype: Any) -> bool:
    """Whether a dtype has room for intermediate results.

    The cosine of 200j overflows, and so do the absolute value of a large complex number, the
    ceiling of the greatest float8_e3m4, and the exponential in a logistic function of 8 bits.
    """
    is_complex = bool(jnp.issubdtype(dtype, np.complexfloating))
    return not is_inexact(dtype) or (not is_complex and np.dtype(dtype).itemsize > 1)


def _is_exact(value: np.ndarray) -> bool:
    """Whether no rounding can have happened: values that every back end computes alike."""
    if not is_inexact(value.dtype):
        return True
    number = value.astype(np.complex128)
    return bool(np.isinf(number) or number in (0, 1, -1, 2, -2))


def _holds_all(dtype: Any, operand_dtype: Any) -> bool:
    """Whether no finite number of `operand_dtype` becomes infinite or NaN as a `dtype`.

    Negative ones may: float8_e8m0fnu has no sign.
    """
    if not is_inexact(dtype):
        return True
    if operand_dtype == np.bool_:
        extremes: list[Any] = [0, 1]
    elif is_inexact(operand_dtype):
        greatest = float(_compat.finfo(operand_dtype).max)
        extremes = [greatest, 0, -greatest]
    else:
        extremes = [jnp.iinfo(operand_dtype).max, jnp.iinfo(operand_dtype).min]
    with np.errstate(all="ignore"):
        return all(np.isfinite(np.asarray(x).astype(dtype)) for x in extremes)
