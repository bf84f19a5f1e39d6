"""A call that was planned before: it only has to be padded, run and cut.

No leaf of a static argument is looked at.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shapeexec import _compat
from shapeexec.execution import _handle, _monitor, _transfer
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._compile import Graph
from shapeexec.execution._memory import raise_if_out_of_memory
from shapeexec.execution._modes import Mode
from shapeexec.execution._placement import Shape
from shapeexec.execution._plan import Plan
from shapeexec.execution._result import Result
from shapeexec.execution._settings import Returns
from shapeexec.execution._split import Call, Place
from shapeexec.execution._stats import Elements
from shapeexec.execution._traffic import Padding
from shapeexec.masking._extents import holds_dim
from shapeexec.shape import _trees

Pad = Callable[[Any], Any]
Targets = tuple[tuple[Shape, Mode], ...]
Take = Callable[[Any, Shape], Any]

_TAKE: Mapping[Returns, Take] = {
    "device": _transfer.cut,
    "padded": _handle.padded_result,
    "host": _handle.host_result,
}


@dataclasses.dataclass(frozen=True)
class Ready:
    """A plan with its graph, in the form that runs fastest.

    Attributes:
        key: The graph's key. The graph itself is the cache's to keep.
        sizes: i32[words], see `Numbers`; a NumPy array, or on an accelerator.
        pads: Per padded argument its position or keyword, and the function that pads it.
        cuts: Per leaf of the result its true shape; None if the leaf is returned as it is.
        padding: (symbol, size, bucket) of each symbol.
        requests: `padding` as a 1-tuple; maps have one entry per example.
        exact: Symbols that run exactly because a primitive has no rule.
        elements: How many elements of arguments are data, and how many run.
        donated: Positions of padded arguments whose memory may be reused.
        donate: Positions of all donated arguments, padded or not.
        take: Cuts or wraps a leaf of the result, from (leaf, true shape).
    """

    key: Hashable
    sizes: np.ndarray | jax.Array
    pads: tuple[tuple[Place, Pad], ...]
    cuts: tuple[Shape | None, ...]
    padding: Padding
    requests: tuple[Padding, ...]
    exact: tuple[str, ...]
    elements: Elements
    donated: tuple[int, ...] = ()
    donate: tuple[int, ...] = ()
    take: Take = _transfer.cut

    def pad(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], Mapping[str, Any]]:
        """The arguments at capacity."""
        args = list(args)
        for place, pad in self.pads:
            if isinstance(place, int):
                args[place] = pad(args[place])
            else:
                kwargs = {**kwargs, place: pad(kwargs[place])}
        return args, kwargs

    def run(self, graph: Graph, call: Call, *, span: _monitor.Span, retrace: bool) -> Any:
        """Pad the arguments, run the graph, and cut the result.

        Args:
            graph: The graph at `key`.
            call: The call.
            span: Counts compilations.
            retrace: Whether JAX may trace the graph once more.

        Raises:
            SignatureChanged: JAX would have to trace the graph, and `retrace` is False.
            ConfigError: A donated array is given twice.
            OutOfMemoryError: The graph, its arguments or its results do not fit into memory.
        """
        given = call.arrays
        args, kwargs = self.pad(given, call.named)
        if self.donated or (self.donate and retrace):
            _transfer.check_given_once(args, kwargs, donated=self.donate)
        span.copied()
        run = graph.retraced if retrace else graph
        try:
            result = run(self.sizes, args, kwargs=kwargs)
        except (ValueError, _compat.JaxRuntimeError) as error:  # ValueError: JAX's fast path
            if self.donate:  # XLA's own error does not name the argument
                _transfer.check_given_once(args, kwargs, donated=self.donate)
            sizes = {symbol: size for symbol, size, _ in self.padding}
            raise_if_out_of_memory(error, graph.row, sizes=sizes)
            raise
        for place in self.donated:
            _transfer.delete_donated(_handle.stored(given[place]), args[place])
        span.ran()
        result = self._cut(result)
        span.copied()
        return result

    def _cut(self, result: Any) -> Any:
        if len(self.cuts) == 1 and isinstance(result, jax.Array):
            (shape,) = self.cuts
            return result if shape is None else self.take(result, shape)
        if all(shape is None for shape in self.cuts):
            return result
        leaves, tree = _trees.flatten(result)
        # The state of modules stays on the device, and at its true shape, for the next call.
        own = len(_trees.leaves(result.arrays[0])) if isinstance(result, Result) else len(leaves)
        if self.take is _handle.host_result:
            _handle.begin_copies(leaves[:own])
        takes = itertools.chain(itertools.repeat(self.take, own), itertools.repeat(_transfer.cut))
        cut = [
            leaf if shape is None else take(leaf, shape)
            for leaf, shape, take in zip(leaves, self.cuts, takes, strict=False)
        ]
        return _trees.unflatten(tree, cut)


def _pad_of(tree: Any, targets: Targets, *, is_donated: bool) -> Pad:
    """The function that pads one argument.

    Args:
        tree: The structure of the argument.
        targets: The capacity of each leaf, and the mode in which it is padded.
        is_donated: Whether the memory of the argument may be reused.
    """

    def pad_leaves(argument: Any) -> Any:
        leaves = [
            _handle.pad(leaf, capacity, mode=mode, is_donated=is_donated)
            for leaf, (capacity, mode) in zip(tree.flatten_up_to(argument), targets, strict=True)
        ]
        return _trees.unflatten(tree, leaves)

    if not _trees.is_leaf_structure(tree):
        return pad_leaves
    ((capacity, mode),) = targets
    general = functools.partial(_handle.pad, capacity=capacity, mode=mode, is_donated=is_donated)
    return _transfer.pad_of_zeros(capacity, otherwise=general) if mode == "zeros" else general


def _pads(plan: Plan, call: BoundCall) -> Iterator[tuple[Place, Pad]]:
    """See `Ready.pads`."""
    start = 0
    avals = plan.recipe.trace.jaxpr.in_avals
    modes: Sequence[Mode] = [f.mode for f in plan.fillings] or ["zeros"] * len(avals)
    targets = tuple(zip(plan.in_capacities, modes, strict=True))
    leaves = _trees.leaves(call.call.operands())
    for place, tree in call.arguments:
        stop = start + tree.num_leaves
        is_ragged = any(holds_dim(tuple(aval.shape)) for aval in avals[start:stop])
        own = zip(leaves[start:stop], plan.in_capacities[start:stop], strict=True)
        # With masking=False the trace has no symbolic dims, but arguments still have capacities.
        is_padded = any(isinstance(x, _handle.Padded) or np.shape(x) != most for x, most in own)
        if is_ragged or is_padded:
            is_donated = place in plan.recipe.donate
            yield place, _pad_of(tree, targets[start:stop], is_donated=is_donated)
        start = stop


def _cuts(plan: Plan, returns: Returns) -> Iterator[Shape | None]:
    """See `Ready.cuts`."""
    out_avals = plan.recipe.trace.jaxpr.out_avals
    for shape, capacity, aval in zip(plan.out_shapes, plan.out_capacities, out_avals, strict=True):
        is_taken = {
            "device": shape != capacity,
            "padded": shape != capacity or holds_dim(tuple(aval.shape)),
            "host": True,
        }
        yield shape if is_taken[returns] else None


def make_ready(plan: Plan, call: BoundCall, *, returns: Returns = "device") -> Ready:
    """The plan of a call, ready to run in its graph.

    Args:
        plan: The plan.
        call: The call.
        returns: See `Settings`.
    """
    pads = tuple(_pads(plan, call))
    take = _TAKE[returns]
    if take is _handle.padded_result and not plan.recipe.zero_results:
        take = _handle.unfilled_result
    return Ready(
        key=plan.key,
        sizes=_transfer.resident(plan.size_vector, call.placement),
        pads=pads,
        cuts=tuple(_cuts(plan, returns)),
        padding=plan.padding,
        requests=plan.requests,
        exact=plan.exact,
        elements=plan.elements,
        donated=tuple(place for place, _ in pads if place in plan.recipe.donate),
        donate=plan.recipe.donate,
        take=take,
    )
