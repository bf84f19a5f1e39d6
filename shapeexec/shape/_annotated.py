"""Specs that annotations hold: `x: Float[Array, "b s 512"]`, by jaxtyping's syntax.

An array's annotation is recognized by its attribute `dim_str`, so jaxtyping need not be installed.
How specs and arguments meet is not known here.

Source: https://docs.kidger.site/jaxtyping/api/array/
"""

import dataclasses
import inspect
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shapeexec._errors import SpecError
from shapeexec.shape._pattern import parse_spec
from shapeexec.shape._shape import Shape
from shapeexec.shape._unknown import place_of

Annotated = str | Mapping[str, "Annotated"] | None
"""The spec of all arrays of an argument, or the specs of its entries by name; None: no spec."""

_KEEP_SHAPES = ("beartype", "jaxtyping", "typeguard")
"""Packages whose wrappers pass arguments on as they are, unlike the wrapper of `jax.vmap`."""

_DIMENSIONS = "dim_str"  # of jaxtyping's types of arrays
_LEAF_TYPE = "leaftype"  # of jaxtyping's `PyTree`


def annotated(fn: Callable[..., Any]) -> dict[int | str, Annotated]:
    """The specs that a function's annotations hold, by position and by name.

    Raises:
        SpecError: A dimension is not one that a spec can have.
    """
    found: dict[int | str, Annotated] = {}
    for number, parameter in enumerate(_parameters(fn)):
        own = _read(parameter.annotation, where=f"the annotation of `{parameter.name}`")
        if own is None:
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            found[number] = own
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            found[parameter.name] = own
    return found


def text_at(tree: Annotated, path: Sequence[Any]) -> str | None:
    """The spec of an array of an argument, by the entries of its path; None: it has none."""
    for key in path:
        if not isinstance(tree, Mapping):
            break
        tree = tree.get(str(key))
    return tree if isinstance(tree, str) else None


def symbols_of(found: Mapping[int | str, Annotated]) -> frozenset[str]:
    """The symbols that annotations name, and the symbols of sizes without a name."""
    symbols = frozenset[str]()
    for place, tree in found.items():
        if isinstance(tree, Mapping):
            symbols |= symbols_of({f"{place}_{key}": own for key, own in tree.items()})
        elif tree is not None:
            symbols |= parse_spec(tree).named(place_of(place)).symbols
    return symbols


def check_given(
    found: Mapping[int | str, Annotated], given: Mapping[int | str, tuple[str, Any]]
) -> None:
    """Check that specs do not contradict annotations.

    Args:
        found: The result of `annotated`.
        given: By position or name the path of a spec, and the spec in its normal form.

    Raises:
        SpecError: A spec has another number of axes, or another size on one of them.
    """
    for place, (path, spec) in given.items():
        own = found.get(place)
        if not isinstance(own, str) or not isinstance(spec, str | Shape):
            continue
        text = spec if isinstance(spec, str) else ", ".join(map(str, spec.dims))
        if _contradicts(own, text):
            raise SpecError(
                f'{path} is "{text}", but its annotation says "{own}".',
                path=path,
                got=f'"{text}" and "{own}"',
                why="they differ in the number of axes, or in the size of one",
                fix="change one of the two; or leave in_shapes out: the annotation is a spec",
            )


def _contradicts(text: str, other: str) -> bool:
    one, two = parse_spec(text), parse_spec(other)
    if one.has_ellipsis or two.has_ellipsis:
        wider, rank = (one, two.least_rank) if one.has_ellipsis else (two, one.least_rank)
        return not (one.has_ellipsis and two.has_ellipsis) and not wider.accepts_rank(rank)
    sizes = zip(one.before, two.before, strict=False)
    return one.least_rank != two.least_rank or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes
    )


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function with their annotations; empty if it has no signature."""
    while (inner := getattr(fn, "__wrapped__", None)) is not None:
        if not _keeps_shapes(fn):
            return []
        fn = inner
    for is_evaluated in (True, False):
        try:
            signature = inspect.signature(fn, eval_str=is_evaluated)
        except (NameError, AttributeError, SyntaxError):  # annotations for type checkers alone
            continue
        except (TypeError, ValueError):  # a callable without a signature
            return []
        return [*signature.parameters.values()]
    return []


def _keeps_shapes(fn: Any) -> bool:
    """Whether what wraps a function passes arguments on as they are: what has no code does."""
    if not isinstance(fn, types.FunctionType):
        return True
    return str(fn.__globals__.get("__name__")).partition(".")[0] in _KEEP_SHAPES


def _read(annotation: Any, *, where: str, within: tuple[type, ...] = ()) -> Annotated:
    """The specs that one annotation holds; a class inside of itself holds none there."""
    dimensions = getattr(annotation, _DIMENSIONS, None)
    if isinstance(dimensions, str):
        return _spec(dimensions, where=where)
    if hasattr(annotation, _LEAF_TYPE):
        return _read(annotation.leaftype, where=where, within=within)
    origin, entries = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and origin is None:
        inner = (*within, annotation)
        fields = () if annotation in within else _fields(annotation)
        return _each(
            (name, _read(field, where=f"{where}, field `{name}`", within=inner))
            for name, field in fields
        )
    own = [_read(one, where=where, within=within) for one in entries]
    if origin is tuple and ... not in entries:
        return _each((str(number), one) for number, one in enumerate(own))
    found = [one for one in own if one is not None]
    is_alike = origin in _ALIKE and all(one == found[0] for one in found)
    return found[0] if found and is_alike else None


_ALIKE = (
    *(list, dict, tuple, abc.Sequence, abc.Mapping),
    *(typing.Union, types.UnionType, typing.Annotated),
)
"""Generic types, all of whose arguments that name dimensions are of one annotation."""


def _each(entries: Iterable[tuple[str, Annotated]]) -> Annotated:
    """The specs of entries by name; None: no entry has one."""
    found = {name: own for name, own in entries if own is not None}
    return found or None


def _fields(kind: Any) -> list[tuple[str, Any]]:
    """The annotated entries of a dataclass, a typed dict or a named tuple, also by number."""
    is_tuple = hasattr(kind, "_fields")  # of a named tuple
    if not (dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or is_tuple):
        return []
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, AttributeError, SyntaxError, TypeError):  # for type checkers alone
        hints = {}
    entries = [*hints.items()]
    return entries + [(str(number), hint) for number, (_, hint) in enumerate(entries) if is_tuple]


def _spec(dimensions: str, *, where: str) -> str:
    """The text of the spec that jaxtyping's dimensions mean."""
    text = ", ".join(map(_entry, dimensions.split()))
    try:
        parse_spec(text)
    except SpecError as error:
        raise SpecError(
            f'{where} has the dimensions "{dimensions}", which are not a spec.',
            path=where,
            got=error.what,
            why=error.why,
            fix="give in_shapes=..., which overrides annotations",
        ) from None
    return text


def _entry(token: str) -> str:
    """One dimension: `b`, `512`, `b+1`; one that may have two sizes is a size without a name."""
    name = token.lstrip("*#?")
    marks = token[: len(token) - len(name)]
    if token == "..." or "*" in marks:
        return "..."
    name = name.rpartition("=")[2]
    if name.startswith("_") or "{" in name or (marks and name.isdecimal()):
        return "_"
    return "?" if marks else name
