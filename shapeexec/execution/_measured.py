"""Padding modes that are measured: `Exec(masking=False, padding="adaptive")`.

A heuristic. The first call that pads an argument runs its graph once per mode, and the mode whose
results are nearest to the unpadded call's is kept for all calls.
"""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shapeexec import _compat
from shapeexec.execution import _handle
from shapeexec.execution._bind import BoundCall
from shapeexec.execution._compile import Graph
from shapeexec.execution._modes import CHOICES, Mode
from shapeexec.execution._monitor import Span
from shapeexec.execution._plan import Plan
from shapeexec.execution._ready import make_ready
from shapeexec.execution._split import Place
from shapeexec.shape import _trees

Slot = tuple[Place, str]

_CANDIDATES: Mapping[str, Sequence[Mode]] = {
    "bool": ("zeros",),
    "int": ("zeros", "edge"),
    "float": CHOICES,
    "complex": CHOICES,
}
"""The modes that are measured, by kind of dtype, the preferred one first.

Bools are taken for masks, where False masks. An integer may be a token or an index: 0 and a
repeated element are in range, and 0 marks padding by convention.
"""

_ROUNDINGS = 64
"""Differences up to this many epsilons of a dtype count as 0: XLA may sum in another order."""

_WORST = 1e6


class MeasuredModes:
    """The measured modes, by argument and kind of dtype; the first measurement counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chosen: dict[Slot, tuple[Mode, str]] = {}

    def chosen(self, slot: Slot) -> tuple[Mode, str]:
        """The mode of a slot, and why; zeros until it is measured."""
        only, *others = _CANDIDATES[slot[1]]
        unmeasured = "adaptive: not measured yet" if others else "adaptive: False masks"
        return self._chosen.get(slot, (only, unmeasured))

    def adopt(self, other: "MeasuredModes") -> None:
        """Take over the measurements of another object for the same function."""
        with self._lock:
            self._chosen |= other._chosen

    def settled(self, plan: Plan, call: BoundCall, *, graph: Graph) -> Plan:
        """A plan with measured modes; missing ones are measured on the data of the call.

        Args:
            plan: The plan of the call.
            call: The call.
            graph: The graph of the call.
        """
        plan = self._with_chosen(plan)
        open_slots = self._open(plan, call)
        if not open_slots:
            return plan
        leaves = _trees.leaves(_handle.cut_all(call.call.arrays, call.call.named))
        want = _trees.leaves(_compat.jit(call.fn)(*leaves))
        for slot in open_slots:
            harms = {
                mode: _harm(plan, call, graph=graph, modes={slot: mode}, want=want)
                for mode in _CANDIDATES[slot[1]]
            }
            best = min(harms, key=harms.__getitem__)
            shown = ", ".join(f"{mode} {harm:.2g}" for mode, harm in harms.items())
            with self._lock:  # not while the function runs, whose callbacks may call it again
                self._chosen.setdefault(slot, (best, f"adaptive, by differences: {shown}"))
            plan = self._with_chosen(plan)
        return plan

    def _open(self, plan: Plan, call: BoundCall) -> list[Slot]:
        """The slots that are not measured yet, of arrays that this call pads."""
        leaves = _trees.leaves(call.call.operands())
        rows = zip(plan.fillings, plan.in_capacities, leaves, strict=False)
        found = {
            filling.slot: None
            for filling, capacity, leaf in rows
            if filling.slot is not None and np.shape(leaf) != capacity
        }
        return [s for s in found if s not in self._chosen and len(_CANDIDATES[s[1]]) > 1]

    def _with_chosen(self, plan: Plan) -> Plan:
        def filled(slot: Slot | None) -> dict[str, Any]:
            return (
                {} if slot is None else dict(zip(("mode", "why"), self.chosen(slot), strict=True))
            )

        own = tuple(dataclasses.replace(f, **filled(f.slot)) for f in plan.fillings)
        return dataclasses.replace(plan, fillings=own)


def _harm(
    plan: Plan,
    call: BoundCall,
    *,
    graph: Graph,
    modes: Mapping[Slot | None, Mode],
    want: Sequence[Any],
) -> float:
    """How far the results of a call are from the unpadded ones under some modes."""
    own = tuple(
        dataclasses.replace(f, mode=modes[f.slot]) if f.slot in modes else f for f in plan.fillings
    )
    ready = make_ready(dataclasses.replace(plan, fillings=own), call)
    got = ready.run(graph, call.call, span=Span(), retrace=True)
    # A sum, so that the effect on one result is not hidden by larger effects on others.
    return sum(map(difference, _trees.leaves(got), want))


def difference(got: Any, want: Any) -> float:
    """The distance of two arrays, relative to the largest number of `want`.

    Of integers and bools: the share of elements that differ. Differences by rounding count as 0; a
    NaN on one side only counts as the worst.
    """
    if _compat.is_extended(want.dtype) or want.size == 0:
        return 0.0
    kind = _compat.kind_of_dtype(want.dtype)
    if kind in ("bool", "int"):
        return float(np.count_nonzero(np.asarray(got) != np.asarray(want)) / want.size)
    wide = np.complex128 if kind == "complex" else np.float64
    a, b = np.asarray(got).astype(wide), np.asarray(want).astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
        largest = np.max(np.abs(b), initial=0, where=np.isfinite(b))
        found = float(np.max(apart) / (largest or 1))
    if np.isnan(found):
        return _WORST
    found = min(found, _WORST)
    return 0.0 if found <= _ROUNDINGS * float(_compat.finfo(want.dtype).eps) else found
