"""From the arguments of a call to a bound call: leaves, dims, dtypes, sizes and shardings.

A call is bound once; planning, padding, compiling and explaining take the bound call. Nothing here
depends on the graphs in the cache.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shapeexec import _compat
from shapeexec._errors import ConfigError, ConstraintError, SpecError, sizes_text
from shapeexec.execution._handle import Padded
from shapeexec.execution._inference import Inference
from shapeexec.execution._key import Base
from shapeexec.execution._options import check_known, parameters_of, typed
from shapeexec.execution._placement import Placement, Shape, at_capacity, placement_of
from shapeexec.execution._settings import Settings
from shapeexec.execution._split import Call, Place
from shapeexec.shape import _dim, _trees
from shapeexec.shape._binding import BoundSpec
from shapeexec.shape._foreign import refused_dtype
from shapeexec.shape._shape import is_array
from shapeexec.shape._spec import compile_spec
from shapeexec.shape._trace import Leaf


@dataclasses.dataclass(frozen=True, eq=False)
class BoundCall:
    """A call whose arguments are bound to their specs.

    Attributes:
        call: The call: its arrays and constants.
        tree: The structure of (positional, keyword) arrays, as a graph takes them.
        base: The part of the key that calls with a common trace share.
        dims: Per leaf its dims, symbolic where its spec has symbols.
        dtypes: Per leaf its dtype and weak type.
        sizes: The size of each symbol.
        fn: The plain function, of flat arrays.
        placement: The shardings of the leaves.
    """

    call: Call
    tree: Any  # a treedef
    base: Base
    dims: tuple[tuple[Any, ...], ...]
    dtypes: tuple[tuple[Any, bool], ...]
    sizes: Mapping[str, int]
    fn: Callable[..., Any]
    placement: Placement

    def to_trace(self, exact: Mapping[str, int]) -> list[Leaf]:
        """The leaves to trace, with some symbols replaced by their sizes."""
        dims = [tuple(_dim.substitute(dim, exact) for dim in leaf) for leaf in self.dims]
        return [Leaf(d, *dtype) for d, dtype in zip(dims, self.dtypes, strict=True)]

    def structs(self, capacities: Iterable[Shape]) -> tuple[Any, Any]:
        """The positional and the keyword arguments as a graph takes them, without their data.

        Args:
            capacities: Per leaf its capacities.
        """
        placement = self.placement or (None,) * len(self.dims)
        leaves = [
            jax.ShapeDtypeStruct(
                capacity,
                dtype,
                weak_type=is_weak,
                sharding=None if sharding is None else at_capacity(sharding, capacity),
            )
            for capacity, (dtype, is_weak), sharding in zip(
                capacities, self.dtypes, placement, strict=True
            )
        ]
        return _trees.unflatten(self.tree, leaves)

    @property
    def arguments(self) -> list[tuple[Place, Any]]:
        """Each argument by position or keyword, and its structure, in the order of their leaves."""
        args, kwargs = self.tree.children()
        places: list[Place] = [*range(len(self.call.arrays)), *sorted(self.call.named)]
        return list(zip(places, [*args.children(), *kwargs.children()], strict=True))

    def with_static_cut(self) -> "BoundCall":
        """The call with handles replaced by cut arrays if their specs have no symbol."""
        leaves = _trees.leaves(self.call.operands())
        if not any(isinstance(leaf, Padded) for leaf in leaves):
            return self
        ragged = self.ragged_dims
        own = [
            leaf.cut() if isinstance(leaf, Padded) and number not in ragged else leaf
            for number, leaf in enumerate(leaves)
        ]
        args, kwargs = _trees.unflatten(self.tree, own)
        return dataclasses.replace(self, call=self.call.replaced(args, kwargs))

    @property
    def ragged_dims(self) -> dict[int, tuple[Any, ...]]:
        """The dims of each ragged leaf, by the number of the leaf."""
        return {i: d for i, d in enumerate(self.dims) if any(_dim.symbols_of(dim) for dim in d)}


class Binder:
    """Binds calls to the specs of an Exec, which are compiled once per structure of arguments."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._compiled: dict[Hashable, BoundSpec] = {}  # without a lock: a lost entry is made again
        self.inference = Inference(settings) if settings.in_shapes is None else None

    def clear(self) -> None:
        """Forget the compiled specs."""
        self._compiled.clear()

    def bind(self, call: Call, *, is_seen: bool = False) -> BoundCall:
        """Bind a call, whose arguments may be arrays or `jax.ShapeDtypeStruct`.

        Args:
            call: The call.
            is_seen: Whether later calls infer their specs from this one too.

        Raises:
            ConfigError: A static argument cannot be hashed, or another is not an array.
            SpecError: The arguments contradict the specs.
            ConstraintError: The sizes break a constraint.
        """
        _check_constants(call)
        arrays, named = call.trees()
        leaves, treedef = _trees.flatten((tuple(arrays), named))
        self._check_specs(call)
        if self.inference is None:
            bound = self._spec(treedef, arrays, kwargs=named)
        else:
            _check_known([leaf.shape for leaf in leaves if is_array(leaf)])
            bound = self.inference.newest(treedef, leaves, is_seen=is_seen)
        return self._bound(call, leaves, treedef=treedef, bound=bound)

    def earlier(self, call: Call) -> Iterator[BoundCall]:
        """The call bound to the specs that were inferred before, the oldest first.

        Raises:
            ShapeExecError: Whatever `bind` raises.
        """
        if self.inference is None:
            return
        arrays, named = call.trees()
        leaves, treedef = _trees.flatten((tuple(arrays), named))
        for bound in self.inference.earlier(treedef, leaves):
            yield self._bound(call, leaves, treedef=treedef, bound=bound)

    def _bound(
        self, call: Call, leaves: Sequence[Any], *, treedef: Any, bound: BoundSpec
    ) -> BoundCall:
        shapes = bound.shapes(leaves)
        _check_known(shapes)
        sizes = dict(sorted(bound.sizes(shapes).items()))
        self._check_constraints(sizes)
        dims = tuple(() if d is None else d for d in bound.dims(shapes))
        dtypes = tuple(_dtype(leaf, index, treedef=treedef) for index, leaf in enumerate(leaves))
        texts = tuple(tuple(map(_dim.dim_text, leaf_dims)) for leaf_dims in dims)
        return BoundCall(
            call=call,
            tree=_trees.structure(call.operands()),
            base=Base(treedef, texts, dtypes, call.static, _compat.config_fingerprint()),
            dims=dims,
            dtypes=dtypes,
            sizes=sizes,
            fn=_compat.told_as(self._settings.fn, call.pure()),
            placement=placement_of(leaves),
        )

    def _spec(self, treedef: Any, args: Sequence[Any], *, kwargs: Mapping[str, Any]) -> BoundSpec:
        key = (treedef, tuple(kwargs))
        bound = self._compiled.get(key)
        if bound is None:
            bound = compile_spec(
                _given_specs(self._settings, len(args), named=kwargs),
                args,
                kwarg_shapes=self._settings.kwarg_shapes,
                kwargs=kwargs,
            )
            self._compiled[key] = bound
        return bound

    def _check_specs(self, call: Call) -> None:
        in_shapes, named = self._settings.in_shapes or (), self._settings.kwarg_shapes or {}
        for place, part in call.parts.items():
            if isinstance(place, int):
                path, spec = f"args[{place}]", in_shapes[place] if place < len(in_shapes) else None
            else:
                path, spec = f"kwargs[{place!r}]", named.get(place)
            if spec is not None and part.is_constant:
                raise SpecError(
                    f'{path} has the spec "{spec}" but is not an array.',
                    path=path,
                    got=type(part.leaves[0].value).__name__,
                    fix="pass an array, or make its spec None",
                )

    def _check_constraints(self, sizes: dict[str, int]) -> None:
        for constraint in self._settings.constraints:
            if constraint.symbols <= sizes.keys() and not constraint.holds(sizes):
                broken = sizes_text({s: sizes[s] for s in sorted(constraint.symbols)})
                raise ConstraintError(
                    f"this call breaks the constraint `{constraint}`: {broken}.",
                    constraint=str(constraint),
                    sizes=sizes,
                    fix="call the plain function at these sizes, or loosen constraints=...",
                )


def _given_specs(settings: Settings, count: int, *, named: Mapping[str, Any]) -> Any:
    """The specs by position, without the specs of omitted arguments that have defaults."""
    specs = settings.in_shapes
    if specs is None or count >= len(specs):
        return specs
    rest = parameters_of(settings.fn)[count : len(specs)]
    may_miss = len(rest) == len(specs) - count and all(
        parameter.default is not parameter.empty and parameter.name not in named
        for parameter in rest
    )
    return specs[:count] if may_miss else specs


def _check_known(shapes: Sequence[Any]) -> None:
    check_known(
        shapes,
        where="in a function that is traced for all sizes",
        why="the bucket of an axis depends on its size",
        fix="ask outside of that function, with arrays or jax.ShapeDtypeStruct",
    )


def _check_constants(call: Call) -> None:
    for place, value in call.constants.items():
        try:
            hash(typed(value))  # as signatures do
        except TypeError as error:
            path = place if isinstance(place, str) else f"args[{place}]"
            raise ConfigError(
                f"the static argument {path} cannot be hashed: {type(value).__name__}.",
                option=path,
                fix="pass a hashable value (a tuple for a list), or do not make it static",
            ) from error


def _dtype(leaf: Any, index: int, *, treedef: Any) -> tuple[Any, bool]:
    if isinstance(leaf, jax.ShapeDtypeStruct | Padded):
        return leaf.dtype, bool(leaf.weak_type)
    try:
        aval = jax.typeof(leaf)
    except (TypeError, ValueError) as error:  # ValueError: it has `__jax_array__`
        indices = _trees.unflatten(treedef, range(treedef.num_leaves))
        (first, *rest), _ = _trees.leaves_with_path(indices)[index]
        path = ("kwargs" if first.idx else "args") + _trees.keystr(tuple(rest))
        if isinstance(leaf, np.ndarray | np.generic):
            raise refused_dtype(path, leaf) from error
        fix = "pass numbers, or a tuple, which is a constant of the graph"
        if hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__"):  # another library's
            fix = "pass np.asarray of it; a tf.data.Dataset has `as_numpy_iterator()`"
        raise ConfigError(
            f"{path} is a {type(leaf).__name__} that JAX has no dtype for.",
            option=path,
            got=f"{leaf!r:.80}",
            fix=fix,
        ) from error
    return aval.dtype, bool(getattr(aval, "weak_type", False))
