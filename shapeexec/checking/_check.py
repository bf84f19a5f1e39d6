"""Checks that a symbolic trace is, at given sizes, the program that plain JAX traces there.

Source: translation validation, Pnueli, Siegel, Singerman, TACAS 1998: each translation is proven,
and not the translator.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from shapeexec import _compat
from shapeexec.checking._equalities import EQUALITIES
from shapeexec.checking._instantiate import instantiate
from shapeexec.checking._number import Numbered, number_program
from shapeexec.checking._params import params_text
from shapeexec.checking._prove import Pair, prove
from shapeexec.checking._values import Node, Table
from shapeexec.shape import _trees
from shapeexec.shape._dim import evaluate
from shapeexec.shape._trace import Leaf, Trace


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference between a symbolic trace and the plain program.

    Attributes:
        text: The difference, in one line.
        line: The user's line of the first operation that differs, `code  (file.py:12)`: in the
            plain program, or else in the symbolic trace; None: unknown.
        symbolic_line: The line of that operation in the symbolic trace; None: unknown.
    """

    text: str
    line: str | None = None
    symbolic_line: str | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of comparing two programs.

    Attributes:
        difference: The first difference; None: they are the same program.
        unequal: The number of places that differ by structure and equalities.
        evaluated: The number of these that evaluation on random data proved equal.
    """

    difference: Difference | None
    unequal: int = 0
    evaluated: int = 0


def check(
    trace: Trace, fn: Callable[..., Any], *, leaves: Sequence[Leaf], sizes: Mapping[str, int]
) -> Difference | None:
    """Find the first difference between a symbolic trace and plain JAX's trace at these sizes.

    Args:
        trace: The result of `shapeexec.shape.trace` for `fn` and `leaves`; it admits `sizes`.
        fn: Called with one tracer per leaf.
        leaves: The arguments' dims and dtypes.
        sizes: The size by symbol of the call.

    Returns:
        The difference; None: both are the same program.

    Raises:
        Exception: Whatever tracing `fn` at these sizes with plain JAX raises.
    """
    return examine(trace, fn, leaves=leaves, sizes=sizes).difference


def examine(
    trace: Trace,
    fn: Callable[..., Any],
    *,
    leaves: Sequence[Leaf],
    sizes: Mapping[str, int],
    watch: AbstractContextManager[Any] | None = None,
) -> Outcome:
    """The difference that `check` finds, with counts; `watch` is entered while `fn` is traced."""
    structs = [leaf.at(sizes) for leaf in leaves]
    every = {**sizes, **trace.substitution.sizes(sizes)}
    replay = _compat.replay_stand_ins(trace.calls, functools.partial(evaluate, env=every))
    with replay, watch or contextlib.nullcontext():
        traced = jax.jit(functools.partial(fn)).trace(*structs)  # must find no earlier trace
        plain = _compat.without_hi_primitives(traced.jaxpr)
    tree = _trees.structure(traced.out_info)
    if tree != trace.out_tree:
        return Outcome(Difference(_of_trees(trace.out_tree, tree)), 1)
    try:
        symbolic = instantiate(trace.jaxpr, every)
    except ArithmeticError as error:  # in a host number, where the plain function raises nothing
        text = f"the symbolic trace raises {type(error).__name__}: {error}"
        return Outcome(Difference(text, _compat.error_line(error)), 1)
    return compare(symbolic, plain)


def _of_trees(symbolic: Any, plain: Any) -> str:
    texts = f"the result is {symbolic} instead of {plain}"
    if " at 0x" in texts:  # the addresses of our own objects
        kinds = "a field, an attribute, a string"
        return f"what the result holds beside arrays ({kinds}) depends on a size"
    return texts


def difference(symbolic: Any, plain: Any) -> Difference | None:
    """Find the first difference between two closed jaxprs without symbols; None: there is none.

    Args:
        symbolic: From `instantiate`.
        plain: A closed jaxpr as JAX traced it.
    """
    return compare(symbolic, plain).difference


def compare(symbolic: Any, plain: Any, *, equalities: Mapping[str, Any] = EQUALITIES) -> Outcome:
    """The difference that `difference` finds, with counts.

    Args:
        symbolic: From `instantiate`.
        plain: A closed jaxpr as JAX traced it.
        equalities: The normal forms by operation.
    """
    if _unlike_types(symbolic, plain) is not None:
        # With its calls opened as well: the type of a call's result may have another memory space.
        unlike = _unlike_types(symbolic, instantiate(plain, {}))
        if unlike is not None:
            return Outcome(unlike, 1)
    table = Table()
    ours, theirs = (number_program(table, x, equalities=equalities) for x in (symbolic, plain))
    if len(ours.effects) != len(theirs.effects):
        return Outcome(_unlike_effects(table, symbolic=ours, plain=theirs), 1)
    proof = prove(table, symbolic=ours, plain=theirs)
    if proof.parted is None:
        return Outcome(None, proof.unequal, proof.evaluated)
    found = _difference(table, proof.parted, symbolic=ours, plain=theirs)
    return Outcome(found, proof.unequal, proof.evaluated)


def _unlike_types(symbolic: Any, plain: Any) -> Difference | None:
    """A difference in number, shapes, dtypes or weak types of arguments and results."""
    for what in ("in_avals", "out_avals"):
        word = "argument" if what == "in_avals" else "result"
        ours, theirs = getattr(symbolic, what), getattr(plain, what)
        if len(ours) != len(theirs):
            return Difference(f"{len(ours)} {word}s instead of {len(theirs)}")
        for i, (got, want) in enumerate(zip(ours, theirs, strict=True)):
            if _type_text(got) == _type_text(want):
                continue
            text = f"{word} {i} is {_type_text(got)} instead of {_type_text(want)}"
            if word == "argument":
                return Difference(text)
            return Difference(text, _line_of_result(plain, i), _line_of_result(symbolic, i))
    return None


def _type_text(aval: Any) -> str:
    weak = ", weakly typed" if getattr(aval, "weak_type", False) else ""
    return _compat.describe_aval(aval) + weak


def _line_of_result(closed: Any, result: int) -> str | None:
    var = closed.jaxpr.outvars[result]
    makers = (eqn for eqn in closed.jaxpr.eqns if any(out is var for out in eqn.outvars))
    eqn = next(makers, None)
    return None if eqn is None else _compat.eqn_line(eqn)


def _unlike_effects(table: Table, *, symbolic: Numbered, plain: Numbered) -> Difference:
    counts = f"{len(symbolic.effects)} effects instead of {len(plain.effects)}"
    pairs = zip(symbolic.effects, plain.effects, strict=False)
    same = sum(1 for _ in pairs if _[0] == _[1])
    line = _line(plain, plain.effects[same : same + 1])
    return Difference(counts, line, _line(symbolic, symbolic.effects[same : same + 1]))


def _difference(
    table: Table, parted: Sequence[Pair], *, symbolic: Numbered, plain: Numbered
) -> Difference:
    left, right = (table[value] for value in parted[0])
    if left.kind != right.kind or left.op != right.op:
        text = f"{_described(left)} instead of {_described(right)}"
    elif left.op == "constant":
        text = f"the constant {_shown(left)} instead of {_shown(right)}"
    else:
        text = f"{_described(left)} instead of {_described(right)}, with other parameters"
        params = params_text(left.params, right.params)
        text = f"{_described(left)} with {params}" if params else text
    at = [
        _line(program, [pair[i] for pair in parted if table[pair[i]].op != "constant"])
        for i, program in enumerate((symbolic, plain))
    ]
    return Difference(text, at[1] or at[0], at[0])


def _line(program: Numbered, values: Sequence[int]) -> str | None:
    """The user's line of the first of these values that has one."""
    eqns = (eqn for value in values for eqn in program.origins.get(value, ()))
    lines = map(_compat.eqn_line, eqns)
    return next((line for line in lines if line is not None), None)


_OWN_WORDS = {
    "pick": "a slice",
    "place": "padding",
    "shaped": "a reshape",
    "view": "a slice or a transpose",
    "captured": "a value from outside a loop",
    "argument": "a loop's argument",
}


def _described(node: Node) -> str:
    if node.op == "constant":
        return f"the constant {_shown(node)} {node.kind}"
    if node.op == "input":
        return f"argument {node.params}, {node.kind},"
    word = _OWN_WORDS.get(node.op, f"`{node.op}`")
    return f"{word} {node.kind}".rstrip()


def _shown(node: Node) -> str:
    if node.constant is None or node.constant.size != 1:
        return ""
    return str(node.constant.flat[0])
