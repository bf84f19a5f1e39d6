"""Advice on the function itself: attention that is written out, or over rows of one short example.

`costing` takes the calls of a trace apart.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from shapeexec import _compat
from shapeexec.costing._count import Node, flattened
from shapeexec.execution.analysis._advice import AdviceLine
from shapeexec.execution.analysis._facts import Facts
from shapeexec.shape import _dim

_PASSES = 6
"""How often XLA at least moves the scores: the first product writes them, the maximum and the sum
of exponentials read them, the weights are read and written, and the second product reads them."""
_BETWEEN = frozenset(
    "add and convert_element_type copy div max mul neg pjit select_n sub tanh transpose".split()
)
"""What may stand between the first product and the softmax: a scale, a bias, a cap, a mask."""
_BEHIND = frozenset(("convert_element_type", "copy", "mul", "select_n", "transpose"))
_AROUND = frozenset(("broadcast_in_dim", "convert_element_type", "reshape"))
_DEEPEST = 12
_ATTENTION = frozenset(("attention", "attention_gradient", "attention_tangent"))


@dataclasses.dataclass(frozen=True, eq=False)
class Written:
    """An attention that is written out.

    Attributes:
        scores: The first product, of queries and keys.
        is_masked: Whether something is selected between it and the softmax.
        where: The user's line of the second product; None if unknown.
    """

    scores: Node
    is_masked: bool
    where: str | None


def attention(facts: Facts) -> Iterator[AdviceLine]:
    """Attention whose scores are moved through memory, which a kernel keeps on the chip."""
    row, requests = facts.typical, facts.requests
    if facts.platform == "cpu" or row is None or row.trace is None or requests is None:
        return
    inward = row.trace.substitution.sizes
    for written in written_out(_compat.opened(row.trace.jaxpr)):
        aval = written.scores.eqn.outvars[0].aval
        moved = 0.0
        for _, buckets, count in facts.placed(facts.ladders):
            moved += count * _bytes(aval, inward(buckets))
        mask = ", mask=..." if written.is_masked else ""
        yield AdviceLine(
            "attention",
            f"attention is written out: {written.where or 'a line that is not known'}; its scores"
            " go through memory, which a kernel keeps on the chip",
            f"sx.dot_product_attention(q, k, v{mask})  # [b, s, heads, size] each",
            bytes=_PASSES * moved,
        )


def packed(facts: Facts) -> Iterator[AdviceLine]:
    """Maps of attention over short examples, of which several would fit into one row.

    What is exact for a function in general is what `map` does: each example in its own bucket. A
    row of several takes a function that tells them apart, as attention can by document ids. Placed
    one after another they need less than twice the valid elements: two rows in turn hold more than
    one. So past three quarters of padding it is known to halve.
    """
    rows = [row for row in facts.rows if row.examples is not None and row.trace is not None]
    run, valid = (
        sum(getattr(row, n) for row in rows) for n in ("bucket_elements", "valid_elements")
    )
    stats = facts.analysis.stats
    padding = sum(row.bucket_elements - row.valid_elements for row in facts.rows)
    if facts.platform == "cpu" or run <= 4 * valid:
        return
    if not any(_attends(_compat.opened(row.trace.jaxpr)) for row in rows):
        return
    padded = stats.padded_bytes * (run - valid) / padding
    yield AdviceLine(
        "packed",
        f"{1 - valid / run:.0%} of what maps run is padding: examples in one row, told apart by"
        " document ids, would need less than half",
        "sx.dot_product_attention(q, k, v, mask=sx.Documents(ids))  # several examples in a row:"
        " positions, and all else that looks along it, by ids, too",
        bytes=padded,
        saves={"padded_bytes": padded},
    )


def _attends(jaxpr: Any) -> bool:
    """Whether a jaxpr has attention, by our primitive or written out."""
    nodes = flattened(jaxpr)
    inner = (_compat.opened(one) for node in nodes for one in _compat.sub_jaxprs(node.eqn.params))
    return (
        any(_name(node) in _ATTENTION for node in nodes)
        or next(written_out(jaxpr), None) is not None
        or any(map(_attends, inner))
    )


def _bytes(aval: Any, sizes: Mapping[str, int]) -> int:
    return math.prod(_dim.evaluate(dim, sizes) for dim in aval.shape) * aval.dtype.itemsize


def written_out(jaxpr: Any) -> Iterator[Written]:
    """Each attention in an open jaxpr, and in the loops inside: dot, softmax, dot."""
    nodes = flattened(jaxpr)
    made = {var: node for node in nodes for var in node.eqn.outvars}
    for node in nodes:
        for inner in _compat.sub_jaxprs(node.eqn.params):
            yield from written_out(_compat.opened(inner))
        if node.eqn.primitive.name != "dot_general":
            continue
        for var in node.reads:
            found = _softmax_of_product(made, made.get(var))
            if found is not None:
                yield dataclasses.replace(found, where=node.where)


_Made = Mapping[Any, Node]


def _softmax_of_product(made: _Made, weights: Node | None) -> Written | None:
    """The product behind weights that are a softmax: exp(x) over its sum, from x back to it."""
    node = _back(made, weights, through=_BEHIND)
    if node is None or _name(node) != "div" or len(node.reads) < 2:
        return None
    above, below = (_back(made, made.get(var), through=_AROUND) for var in node.reads[:2])
    if above is None or below is None or (_name(above), _name(below)) != ("exp", "reduce_sum"):
        return None
    summed = _back(made, made.get(below.reads[0]), through=_AROUND)
    return _product(made, above, depth=_DEEPEST) if summed is above else None


def _product(made: _Made, node: Node, *, depth: int) -> Written | None:
    """The matrix product that a value is computed from elementwise, and whether it is masked."""
    for var in node.reads if depth else ():
        before = made.get(var)
        if before is None:
            continue
        if _name(before) == "dot_general":
            return Written(before, False, None)
        if _name(before) in _BETWEEN:
            found = _product(made, before, depth=depth - 1)
            if found is not None:
                is_masked = found.is_masked or _name(before) == "select_n"
                return dataclasses.replace(found, is_masked=is_masked)
    return None


def _back(made: _Made, node: Node | None, *, through: frozenset[str]) -> Node | None:
    """The first node on the way back that does not only pass a value on."""
    while node is not None and _name(node) in through and node.reads:
        node = made.get(node.reads[-1] if _name(node) == "select_n" else node.reads[0])
    return node


def _name(node: Node) -> str:
    return str(node.eqn.primitive.name)
