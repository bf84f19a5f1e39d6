"""Starts a kernel: a function of its inputs, results and scratch.

`_any_batch` keeps its text, which may serve arrays that are longer, or shorter, along their first
axes.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax import Array

from shapeexec import _compat
from shapeexec.attention.backends._base import Ref
from shapeexec.attention.backends.mosaic_gpu import _any_batch
from shapeexec.attention.backends.mosaic_gpu._pallas import plgpu
from shapeexec.attention.backends.mosaic_gpu._scratch import to_pallas
from shapeexec.attention.backends.mosaic_gpu._tiles import WARPGROUPS


@dataclasses.dataclass(frozen=True)
class OpenEnded:
    """Which first axes of a call's arrays may have any size, of which the kernel's text has none.

    Attributes:
        inputs: Those of the inputs; None: none of them. If any of them may, those of results may,
            too; and those of arrays of several axes that the kernel changes always may.
        key: All that the kernel's body depends on, but for shapes, dtypes and scratch.
    """

    inputs: dict[str, Any] | None
    key: Hashable


def start(
    body: Callable[..., None],
    *,
    inputs: dict[str, Any],
    outputs: dict[str, jax.ShapeDtypeStruct],
    scratch: dict[str, Any],
    programs: int,
    interpret: Any,
    open_ended: OpenEnded,
    updated: dict[str, Array] | None = None,
    warpgroups: int = WARPGROUPS,
) -> list[Array]:
    """Run body(**inputs, **updated, **outputs, **scratch) in `programs` programs.

    Args:
        body: The kernel.
        inputs: Pytrees of arrays.
        outputs: Shapes and dtypes of the results.
        scratch: Shared memory and barriers.
        programs: The number of programs.
        interpret: Parameters of the interpreter; None: on the device.
        open_ended: What may have any size; else the kernel serves the shapes of this call only.
        updated: Arrays that the kernel changes.
        warpgroups: The number of warpgroups that compute; one more moves memory.

    Returns:
        The results, and the arrays of `updated`, by name, after the kernel.
    """
    updated = updated or {}
    flat, structure = jax.tree.flatten({**inputs, **updated})
    none = jax.tree.map(_no, inputs)
    changed = jax.tree.leaves({**none, **dict.fromkeys(updated, True)})
    made = outputs or [name for name, x in updated.items() if x.ndim > 1]
    sizes = (scratch, programs, warpgroups, interpret)
    kernel = _Kernel(body, structure, changed, tuple(outputs), tuple(made), *sizes)
    results = list(outputs.values())
    if interpret is not None:
        return kernel.run(results, *flat)
    of_inputs = none if open_ended.inputs is None else open_ended.inputs
    of_updated = {name: x.ndim > 1 for name, x in updated.items()}
    return _any_batch.call(
        kernel.run,
        results,
        flat,
        changed=changed,
        open_ended=jax.tree.leaves({**of_inputs, **of_updated}),
        key=(open_ended.key, structure, tuple(outputs), repr(scratch), programs, warpgroups),
    )


def start_grid(
    body: Callable[..., None],
    *,
    operands: Sequence[Array],
    results: Sequence[jax.ShapeDtypeStruct],
    grid: dict[str, int],
    key: Hashable,
    scratch: Sequence[Any] = (),
) -> list[Array]:
    """Run body(*operands, *results, *scratch) in a warpgroup for each place of a grid.

    Args:
        body: The kernel, which serves only the shapes of this call; it is named as the function.
        operands: Arrays.
        results: Shapes and dtypes.
        grid: The sizes of the grid by the names of its axes.
        key: All that the body depends on, but for shapes, dtypes, grid and scratch.
        scratch: Shared memory.
    """

    @functools.wraps(body)
    def named(*refs: Ref) -> None:
        _begin(body.__name__)
        body(*refs)

    def run(results: Sequence[jax.ShapeDtypeStruct], *arrays: Array) -> list[Array]:
        kernel = plgpu.kernel(
            named,
            out_type=list(results),
            scratch_types=to_pallas(list(scratch)),
            grid=tuple(grid.values()),
            grid_names=tuple(grid),
            compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        )
        return list(kernel(*arrays))

    no = [False] * len(operands)
    key = body.__qualname__, key, tuple(grid.items()), repr(scratch)
    return _any_batch.call(run, results, operands, changed=no, open_ended=no, key=key)


def _begin(name: str) -> None:
    """See `_compat.begin_mosaic_kernel`; on the device only."""
    plgpu.inline_mgpu()(functools.partial(_compat.begin_mosaic_kernel, name))()


def _no(_: Any) -> bool:
    return False


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """A kernel, to be run on arrays of any shapes.

    Attributes:
        body, scratch, programs, warpgroups, interpret: See `start`.
        structure: That of the operands.
        changed: Whether the kernel changes each operand.
        outputs: The names of the results.
        made: The names of what it makes: the results, or arrays that it changes.
    """

    body: Callable[..., None]
    structure: Any
    changed: list[bool]
    outputs: tuple[str, ...]
    made: tuple[str, ...]
    scratch: dict[str, Any]
    programs: int
    warpgroups: int
    interpret: Any

    def run(self, results: Sequence[jax.ShapeDtypeStruct], *arrays: Array) -> list[Array]:
        """The results, of these shapes and dtypes, and the changed arrays."""
        pairs = zip(arrays, self.changed, strict=True)
        refs = [jax.new_ref(x) if changes else x for x, changes in pairs]
        made = plgpu.kernel(
            self.kernel,
            out_type=list(results),
            scratch_types=to_pallas(list(self.scratch.values())),
            grid=(self.programs,),
            grid_names=("program",),
            num_threads=self.warpgroups + 1,
            thread_name="warpgroup",
            # By lane Mosaic need not infer layouts, which took half the time of lowering.
            compiler_params=plgpu.CompilerParams(
                approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane
            ),
            **({} if self.interpret is None else {"interpret": self.interpret}),
        )(*refs)
        pairs = zip(refs, self.changed, strict=True)
        return [*made, *(ref[...] for ref, changes in pairs if changes)]

    def kernel(self, *refs: Ref) -> None:
        """The kernel, of references in the order in which Pallas passes them."""
        count = self.structure.num_leaves
        named = jax.tree.unflatten(self.structure, refs[:count])
        named |= dict(zip([*self.outputs, *self.scratch], refs[count:], strict=True))
        if self.interpret is None:
            _begin(f"attention_{'_'.join(self.made)}")
        self.body(**named)
