"""Which sums over examples are folded into an operation, and why others are not.

It reads plans of sums; how one is made or run is not known here.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from shapeexec import _compat
from shapeexec.masking.folding._plan import FOLDS, Fold, Folder, reachable
from shapeexec.masking.folding._run import inlined


@dataclasses.dataclass(frozen=True)
class SumNote:
    """How the sum over examples of one leaf of a result is made; `print` it.

    Attributes:
        number: Which leaf it is.
        what: Its dtype and shape, without the examples: `f32[4]`.
        folded: The primitives that sum over examples themselves, so that the array of all examples
            is not made. Empty where the leaf is made per example, and summed.
        why: Why it is not folded; None if it is.
    """

    number: int
    what: str
    folded: tuple[str, ...]
    why: str | None

    def __str__(self) -> str:
        how = f"folded into {', '.join(self.folded)}" if self.folded else f"not folded: {self.why}"
        return f"sum of result {self.number}, {self.what}: {how}"


def notes_of_sums(fn: Callable[..., Any], examples: int, *operands: Any) -> list[SumNote]:
    """How `sum_over_examples` makes each of its sums.

    Args:
        fn: Vmapped over examples; each of its results has them along the first axis.
        examples: How many there are.
        *operands: Of `fn`: arrays, or shapes of arrays.
    """
    closed = inlined(_compat.make_jaxpr(fn)(*operands))
    folder = Folder(closed.jaxpr, examples, inline=inlined)
    planned = folder.plan(closed.jaxpr.outvars)
    alone = Folder(closed.jaxpr, examples, inline=inlined)  # as if nothing else were read
    return [_note(number, fold, folder=folder, alone=alone) for number, fold in enumerate(planned)]


def _note(number: int, fold: Fold, *, folder: Folder, alone: Folder) -> SumNote:
    aval = fold.variable.aval
    what = f"{_compat.describe_aval(aval).partition('[')[0]}[{','.join(map(str, aval.shape[1:]))}]"
    if fold.pays:
        sources = [one for one in reachable([fold]) if one.is_source or one.loop is not None]
        names = [_primitive(one, folder) for one in sources]
        return SumNote(number, what, tuple(dict.fromkeys(names)), None)
    return SumNote(number, what, (), _reason(fold, folder, alone=alone))


def _primitive(fold: Fold, folder: Folder) -> str:
    if fold.loop is not None:
        return fold.loop[0].eqn.primitive.name
    eqn = folder.eqn_of(fold.variable)
    return "a loop" if eqn is None else eqn.primitive.name  # that of a loop's body, or a branch's


def _reason(fold: Fold, folder: Folder, *, alone: Folder) -> str:
    variable = fold.variable
    if folder.is_zero(variable):
        return "it is zero"
    eqn = folder.eqn_of(variable)
    if eqn is None:
        return "each example gives it as it is"
    name = eqn.primitive.name
    if alone.fold(variable, 0).pays:
        return f"the result of `{name}` for each example is read elsewhere, too"
    if name not in FOLDS:
        return f"`{name}` cannot sum over examples"
    return f"`{name}` makes no larger array than its sum reads"
