"""Specs matched with the structure of a call's arguments: from shapes to sizes and dims.

A call only reads shapes; paths and suggestions are computed when an error is raised. The syntax of
specs is not known here.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Never

import jax

from shapeexec._errors import SpecError
from shapeexec.shape import _trees
from shapeexec.shape._dim import Dim, evaluate
from shapeexec.shape._pattern import PatternDim, Spec
from shapeexec.shape._shape import is_array
from shapeexec.shape._solve import NotLinearError, solve_linear

ArrayShape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class BoundSpec:
    """The specs of all leaves of a call's arguments.

    Leaves come in the order of `jax.tree.leaves((args, kwargs))`. A leaf whose spec is None is
    static; it need not be an array.

    Attributes:
        structure: The tree structure of `(args, kwargs)`.
        specs: One for each leaf; None: static.
        symbols: All symbols of all specs.

    Example:
        >>> bound = sx.shape.compile_spec(("b, s", None), (np.ones((3, 5)), 2))
        >>> [spec is None for spec in bound.specs], sorted(bound.symbols)
        ([False, True], ['b', 's'])
    """

    structure: Any  # jax.tree_util.PyTreeDef, which is not public as a type
    specs: tuple[Spec | None, ...]
    symbols: frozenset[str] = dataclasses.field(init=False)
    # Which sizes each call reads: (leaf, axis, the spec's entry there).
    _bare: tuple[tuple[int, int, str], ...] = dataclasses.field(init=False, repr=False)
    _static: tuple[tuple[int, int, int], ...] = dataclasses.field(init=False, repr=False)
    _expressions: tuple[tuple[int, int, Dim], ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        entries = [
            (leaf, axis, dim)
            for leaf, spec in enumerate(self.specs)
            if spec is not None
            for axis, dim in _axes(spec)
        ]
        dims = [(leaf, axis, dim) for leaf, axis, dim in entries if isinstance(dim, Dim)]
        symbols = frozenset[str]().union(*(dim.symbols for _, _, dim in dims))
        bare = tuple((leaf, axis, dim.text) for leaf, axis, dim in dims if dim.name)
        static = tuple((leaf, axis, dim) for leaf, axis, dim in entries if isinstance(dim, int))
        object.__setattr__(self, "symbols", symbols)
        object.__setattr__(self, "_bare", bare)
        object.__setattr__(self, "_static", static)
        object.__setattr__(self, "_expressions", tuple(dim for dim in dims if not dim[2].name))

    def shapes(self, leaves: Sequence[Any]) -> list[ArrayShape | None]:
        """Return the shapes of the leaves; None for a static leaf that is not an array.

        Args:
            leaves: The leaves of arguments with this structure.

        Returns:
            One shape per leaf.

        Raises:
            SpecError: A leaf with a spec is not an array, or not of the dtype that a `Shape` wants.
        """
        shapes: list[ArrayShape | None] = []
        for index, (leaf, spec) in enumerate(zip(leaves, self.specs, strict=True)):
            if is_array(leaf):
                shapes.append(leaf.shape)
                if spec is not None and spec.dtype is not None:
                    self._check_dtype(index, spec, dtype=leaf.dtype)
            elif spec is None:
                shapes.append(None)
            else:
                raise SpecError(
                    f'{self._path(index)} has the spec "{spec}" but is not an array.',
                    path=self._path(index),
                    got=f"{type(leaf).__name__}: {leaf!r:.60}",
                    fix="pass an array, or make its spec None",
                )
        return shapes

    def check_ranks(self, shapes: Sequence[ArrayShape | None]) -> None:
        """Check that each leaf has as many axes as its spec.

        Args:
            shapes: The result of `shapes`.

        Raises:
            SpecError: A leaf has more or fewer.
        """
        for leaf, (spec, shape) in enumerate(zip(self.specs, shapes, strict=True)):
            if spec is not None and not spec.accepts_rank(len(shape or ())):
                self._refuse_rank(leaf, spec, shape=shape or ())

    def sizes(self, shapes: Sequence[ArrayShape | None]) -> dict[str, int]:
        """Check every axis and return the size of every symbol.

        Args:
            shapes: The result of `shapes`.

        Returns:
            The size by symbol. A size may be 0.

        Raises:
            SpecError: A shape contradicts its spec or another argument's shape, or the shapes do
                not determine the size of a symbol.
        """
        self.check_ranks(shapes)
        known: list[ArrayShape] = [shape or () for shape in shapes]
        sizes: dict[str, int] = {}
        for leaf, axis, symbol in self._bare:
            size = known[leaf][axis]
            if sizes.setdefault(symbol, size) != size:
                self._refuse_sizes(symbol, leaf, axis=axis, shapes=known)
        for leaf, axis, size in self._static:
            if known[leaf][axis] != size:
                self._refuse_static(leaf, axis, size=size, shapes=known)
        if self._expressions:
            self._solve(known, sizes)
            for leaf, axis, dim in self._expressions:
                if _value(dim, sizes) != known[leaf][axis]:
                    self._refuse_expression(leaf, axis, dim=dim, shapes=known, sizes=sizes)
        return sizes

    def dims(self, shapes: Sequence[ArrayShape | None]) -> tuple[tuple[int | Dim, ...] | None, ...]:
        """Return the dims of each leaf: symbolic where its spec says so, else its own sizes.

        Args:
            shapes: The result of `shapes`, which `sizes` accepted.

        Returns:
            One for each leaf; None for a static leaf that is not an array.
        """
        return tuple(
            shape if spec is None or shape is None else spec.resolve(shape)
            for spec, shape in zip(self.specs, shapes, strict=True)
        )

    def _solve(self, shapes: list[ArrayShape], sizes: dict[str, int]) -> None:
        """Add to `sizes` the symbols that expressions with a single unknown symbol determine."""
        pending = True
        while pending:
            pending = False
            for leaf, axis, dim in self._expressions:
                unknown = dim.symbols - sizes.keys()
                if len(unknown) != 1:
                    continue
                (symbol,) = unknown
                try:
                    size = solve_linear(dim, shapes[leaf][axis], symbol=symbol, sizes=sizes)
                except (NotLinearError, ZeroDivisionError):
                    continue  # another axis may determine it
                if size is None:
                    self._refuse_expression(leaf, axis, dim=dim, shapes=shapes, sizes=sizes)
                sizes[symbol] = size
                pending = True
        for leaf, axis, dim in self._expressions:
            if dim.symbols - sizes.keys():
                self._refuse_unsolved(leaf, axis, dim=dim, sizes=sizes)

    def _path(self, leaf: int) -> str:
        indices = _trees.unflatten(self.structure, range(self.structure.num_leaves))
        path, _ = _trees.leaves_with_path(indices)[leaf]
        return f"{('args', 'kwargs')[path[0].idx]}{_trees.keystr(path[1:])}"

    def _axis(self, leaf: int, axis: int, *, shapes: list[ArrayShape]) -> str:
        return f"{self._path(leaf)} axis {axis % len(shapes[leaf])}"

    def _described(self, leaf: int, shapes: list[ArrayShape]) -> str:
        return f'{self._path(leaf)} {_shape_text(shapes[leaf])} with the spec "{self.specs[leaf]}"'

    def _check_dtype(self, leaf: int, spec: Spec, *, dtype: Any) -> None:
        if dtype == spec.dtype or jax.dtypes.canonicalize_dtype(dtype) == spec.dtype:
            return
        raise SpecError(
            f"{self._path(leaf)} is {dtype}, but its spec is a Shape of {spec.dtype}.",
            path=self._path(leaf),
            fix=f'convert the argument, or write "{spec}", which takes any dtype',
        )

    def _refuse_rank(self, leaf: int, spec: Spec, *, shape: ArrayShape) -> Never:
        wanted = f"{'at least ' if spec.has_ellipsis else ''}{spec.least_rank}"
        entries = str(spec).split(", ")[: len(shape)]
        pad = ["_"] * (len(shape) - len(entries))
        raise SpecError(
            f'{self._path(leaf)} has rank {len(shape)}, but its spec "{spec}" wants {wanted}.',
            path=self._path(leaf),
            got=_shape_text(shape),
            fix=f"pass an array of rank {wanted}, or write a spec such as "
            f'"{", ".join(entries + pad)}"',
        )

    def _refuse_static(self, leaf: int, axis: int, *, size: int, shapes: list[ArrayShape]) -> Never:
        actual = shapes[leaf][axis]
        raise SpecError(
            f"{self._axis(leaf, axis, shapes=shapes)} has size {actual}, but its spec says {size}.",
            path=self._path(leaf),
            got=self._described(leaf, shapes),
            fix=f"pass size {size}, or write `_` (static, any size) or a symbol in its place",
        )

    def _refuse_sizes(
        self, symbol: str, leaf: int, *, axis: int, shapes: list[ArrayShape]
    ) -> Never:
        first, first_axis = next((a, b) for a, b, name in self._bare if name == symbol)
        here, there = (
            self._axis(first, first_axis, shapes=shapes),
            self._axis(leaf, axis, shapes=shapes),
        )
        raise SpecError(
            f"`{symbol}` is {shapes[first][first_axis]} on {here}, "
            f"but {shapes[leaf][axis]} on {there}.",
            path=self._path(leaf),
            got="; ".join(self._described(index, shapes) for index in sorted({first, leaf})),
            fix=f"pass sizes that agree, or {self._renamed(symbol, shapes)}",
        )

    def _renamed(self, symbol: str, shapes: list[ArrayShape]) -> str:
        """Suggest specs that accept the shapes: one symbol for each size that `symbol` has."""
        generic = f"give each size a symbol of its own in place of `{symbol}`"
        sizes_of: dict[int, set[int]] = {}
        for leaf, axis, name in self._bare:
            if name == symbol:
                sizes_of.setdefault(leaf, set()).add(shapes[leaf][axis])
        if any(len(sizes) > 1 for sizes in sizes_of.values()):
            return generic
        names = _fresh_names(symbol, self.symbols)
        name_of: dict[int, str] = {}
        texts = [None if spec is None else f'"{spec}"' for spec in self.specs]
        for leaf, (size,) in sizes_of.items():
            name = name_of[size] if size in name_of else next(names)
            name_of[size] = name
            texts[leaf] = re.sub(rf"\b{symbol}\b", name, f'"{self.specs[leaf]}"')
        specs = _specs_by_argument(self.structure, texts)
        return f"give each size its own symbol: in_shapes={specs}" if specs else generic

    def _refuse_expression(
        self, leaf: int, axis: int, *, dim: Dim, shapes: list[ArrayShape], sizes: dict[str, int]
    ) -> Never:
        actual = shapes[leaf][axis]
        unknown = dim.symbols - sizes.keys()
        known = ", ".join(f"{symbol}={sizes[symbol]}" for symbol in sorted(dim.symbols - unknown))
        if unknown:
            (symbol,) = unknown
            what = f"no {symbol} gives {dim} = {actual}"
        else:
            what = f"`{dim}` is {_value(dim, sizes)}, but the axis has size {actual}"
        got = [self._described(leaf, shapes)]
        for symbol in sorted(dim.symbols - unknown):
            origin = [a for a, _, name in self._bare if name == symbol]
            origin += [a for a, _, other in self._expressions if symbol in other.symbols]
            got += [f"{symbol}={sizes[symbol]} from {self._described(origin[0], shapes)}"]
        raise SpecError(
            f"{self._axis(leaf, axis, shapes=shapes)}: {f'at {known}, ' if known else ''}{what}.",
            path=self._path(leaf),
            got="; ".join(got),
            fix=f"pass a size that fits, or give the axis a symbol of its own instead of `{dim}`",
        )

    def _refuse_unsolved(self, leaf: int, axis: int, *, dim: Dim, sizes: dict[str, int]) -> Never:
        unknown = sorted(dim.symbols - sizes.keys())
        raise SpecError(
            f"the size of `{unknown[0]}` does not follow from `{dim}` "
            f"on {self._path(leaf)} axis {axis}.",
            path=self._path(leaf),
            got=f'{self._path(leaf)} with the spec "{self.specs[leaf]}"',
            why="only an expression that is linear in its one unknown symbol can be solved",
            fix=f"let an axis be `{unknown[0]}` itself in some spec, or give this axis a "
            f"symbol of its own instead of `{dim}`",
        )


def _axes(spec: Spec) -> list[tuple[int, PatternDim]]:
    """Return each axis outside of `...` with its entry; axes after it count from the end."""
    after = [(index - len(spec.after), dim) for index, dim in enumerate(spec.after)]
    return [*enumerate(spec.before), *after]


def _value(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    try:
        return evaluate(dim, sizes)
    except ZeroDivisionError:  # a size may be 0
        return None


def _specs_by_argument(structure: Any, texts: list[str | None]) -> str | None:
    """Return `in_shapes` as text, if each positional argument needs only one text or None."""
    positional, keywords = structure.children()
    specs: list[str] = []
    start = 0
    for argument in positional.children():
        own = texts[start : start + argument.num_leaves]
        start += argument.num_leaves
        if any(own) and not _trees.is_leaf_structure(argument):
            return None
        specs.append(next(filter(None, own), "None"))
    return None if any(texts[-keywords.num_leaves or len(texts) :]) else tuple_text(specs)


def _fresh_names(symbol: str, taken: frozenset[str]) -> Iterator[str]:
    """Yield `symbol`, then unused names: the letters that follow it, then numbered ones."""
    yield symbol
    letters = map(chr, range(ord(symbol) + 1, ord("z") + 1)) if len(symbol) == 1 else ()
    yield from (letter for letter in letters if letter not in taken)
    for number in itertools.count(2):
        if f"{symbol}{number}" not in taken:
            yield f"{symbol}{number}"


def _shape_text(shape: ArrayShape) -> str:
    return f"[{','.join(map(str, shape))}]"


def tuple_text(items: list[str]) -> str:
    """Return the source of a tuple whose items are source already."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
