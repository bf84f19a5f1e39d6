"""The work of a jaxpr, equation by equation: calls in place, loops by their length.

The costs of primitives are in `_table`. How bytes are counted: XLA computes pointwise equations in
the loop of their readers. Such a value moves no bytes if one loop reads it; else it is written
once, and read by each loop.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shapeexec import _compat
from shapeexec.costing._polynomial import NOTHING, Polynomial, constant, read_dim
from shapeexec.costing._table import ROWS, Dims, Row, Use, product
from shapeexec.costing._work import Work
from shapeexec.masking._registry import nested_jaxpr
from shapeexec.shape import _dim

_UNKNOWN = Row()
_TYPICAL = 128
"""The size of each symbol at which the branches of a `cond` are compared."""


@dataclasses.dataclass(frozen=True)
class Counted:
    """The work of one equation.

    Attributes:
        primitive: Its name.
        where: The user's line, `code  (file.py:12)`; None if unknown.
        work: How much it does, in all steps of the loops around it.
        note: What was not counted, or was assumed; None: nothing.
    """

    primitive: str
    where: str | None
    work: Work
    note: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """An equation whose operands are values of the outermost jaxpr: calls are taken apart.

    Attributes:
        eqn: The equation, with new variables for its results.
        reads: The variables that it reads, in order, without literals.
        where: The user's line, `code  (file.py:12)`; None if unknown.
        row: The costs of its primitive; None: the table has no row.
    """

    eqn: Any
    reads: tuple[Any, ...]
    where: str | None
    row: Row | None


def count(closed_jaxpr: Any, outward: Callable[[Any], Any]) -> list[Counted]:
    """The work of each equation of a closed jaxpr.

    Args:
        closed_jaxpr: The program.
        outward: From the text of a dim in the program to the dim in the symbols of calls.
    """
    return [*_Counter(outward).counted(_compat.opened(closed_jaxpr), where=None)]


def flattened(jaxpr: Any) -> list[Node]:
    """The equations of an open jaxpr in order, with calls taken apart, and loops as they are."""
    nodes: list[Node] = []
    values = {var: var for var in (*jaxpr.invars, *jaxpr.constvars)}
    _flatten(jaxpr, values, nodes=nodes, where=None)
    return nodes


def alive(closed_jaxpr: Any, outward: Callable[[Any], Any]) -> tuple[Polynomial, ...]:
    """The bytes of results and of values in between that are needed at once.

    Arguments are left out. XLA may compute in another order, and in place.

    Args:
        closed_jaxpr: The program.
        outward: See `count`.

    Returns:
        Polynomials; at given sizes the peak memory is the greatest of them.
    """
    return _undominated(_Counter(outward).alive(_compat.opened(closed_jaxpr)))


class _Counter:
    """Counts jaxprs whose dims are in one set of symbols."""

    def __init__(self, outward: Callable[[Any], Any]) -> None:
        self._outward = outward
        self._known: dict[str, Polynomial] = {}

    def counted(self, jaxpr: Any, *, where: str | None) -> Iterator[Counted]:
        """The work of an open jaxpr and of the jaxprs nested in it."""
        nodes: list[Node] = []
        values = {var: var for var in (*jaxpr.invars, *jaxpr.constvars)}
        results = _flatten(jaxpr, values, nodes=nodes, where=where)
        roots = _roots(nodes, results)
        moved = self._moved(nodes, roots)
        for number, node in enumerate(nodes):
            if node.eqn.primitive.name in _LOOPS:
                yield from _LOOPS[node.eqn.primitive.name](self, node)
            else:
                yield from self._of(node, moves=moved[number])

    def _of(self, node: Node, *, moves: Polynomial | None) -> Iterator[Counted]:
        """The work of an equation without loops inside; `moves` is None within a fused loop."""
        name = node.eqn.primitive.name
        note = None if node.row is not None else f"`{name}` has no row: counted by its bytes"
        row, use = node.row or _UNKNOWN, self._use(node.eqn)
        ends = {} if moves is None else {"bytes": moves, "launches": constant(1)}
        convolved = row.convolved(use)
        work = Work(row.flops(use) + convolved, convolved, row.transcendentals(use), **ends)
        if note or work != Work():
            yield Counted(name, node.where, work, note)

    def _use(self, eqn: Any) -> Use:
        operands = tuple(map(self._dims, eqn.invars))
        return Use(eqn.params, operands, tuple(map(self._dims, eqn.outvars)))

    def _dims(self, atom: Any) -> Dims:
        return tuple(map(self.read_dim, getattr(atom.aval, "shape", ())))

    def read_dim(self, dim: Any) -> Polynomial:
        """A dim of the jaxpr in the symbols of calls."""
        if isinstance(dim, int):
            return constant(dim)
        text = _dim.dim_text(dim)
        if text not in self._known:
            self._known[text] = read_dim(self._outward(text))
        return self._known[text]

    def _bytes(self, atom: Any) -> Polynomial:
        itemsize = getattr(getattr(atom.aval, "dtype", None), "itemsize", 0)
        return product(self._dims(atom)) * itemsize

    def _moved(self, nodes: Sequence[Node], roots: Sequence[int | None]) -> list[Polynomial | None]:
        """The bytes that each fused loop moves, at its last node; None at all others."""
        read: dict[int, set[Any]] = {}
        made = {var: number for number, node in enumerate(nodes) for var in node.eqn.outvars}
        for number, node in enumerate(nodes):
            for var in node.reads:
                if var not in made or roots[made[var]] is None:
                    read.setdefault(_root(roots, number), set()).add(var)
        moved: list[Polynomial | None] = []
        for number, node in enumerate(nodes):
            through = (*read.get(number, ()), *node.eqn.outvars)
            own = roots[number] is None
            moved.append(sum(map(self._bytes, through), start=NOTHING) if own else None)
        return moved

    def alive(self, jaxpr: Any) -> list[Polynomial]:
        """The bytes that are needed after each equation that writes memory."""
        nodes: list[Node] = []
        values = {var: var for var in (*jaxpr.invars, *jaxpr.constvars)}
        results = _flatten(jaxpr, values, nodes=nodes, where=None)
        roots = _roots(nodes, results)
        last = {var: _root(roots, number) for number, n in enumerate(nodes) for var in n.reads}
        last |= {var: len(nodes) for var in results if var is not None}
        ending: dict[int, list[Polynomial]] = {}
        found, current = [NOTHING], NOTHING
        for number, node in enumerate(nodes):
            if roots[number] is not None:
                continue
            for var in node.eqn.outvars:
                current = current + self._bytes(var)
                ending.setdefault(last.get(var, number), []).append(self._bytes(var))
            inner = [_compat.opened(one) for one in _compat.sub_jaxprs(node.eqn.params)]
            bodies = _undominated([peak for body in inner for peak in self.alive(body)])
            found += [current + body for body in bodies] or [current]
            for freed in ending.pop(number, ()):
                current = current + freed * -1.0
        return found

    # Loops and branches, whose jaxprs are counted apart

    def scan(self, node: Node) -> Iterator[Counted]:
        """A loop of known length: its body in each step."""
        params = node.eqn.params
        length = self.read_dim(params["length"])
        yield from self._repeated(params["jaxpr"], node, times=length)

    def while_(self, node: Node) -> Iterator[Counted]:
        """A loop of unknown length: its body once."""
        note = "`while` is counted as one step: its length is not known"
        yield Counted("while", node.where, Work(launches=constant(1)), note)
        for name in ("cond_jaxpr", "body_jaxpr"):
            yield from self._repeated(node.eqn.params[name], node, times=constant(1))

    def cond(self, node: Node) -> Iterator[Counted]:
        """The branch that costs most, at sizes of 128."""
        branches = [
            [*self._repeated(branch, node, times=constant(1))]
            for branch in node.eqn.params["branches"]
        ]
        yield Counted("cond", node.where, Work(), "`cond` is counted by its costliest branch")
        yield from max(branches, key=lambda found: sum(_typical(one.work) for one in found))

    def _repeated(self, jaxpr: Any, node: Node, *, times: Polynomial) -> Iterator[Counted]:
        for one in self.counted(_compat.opened(jaxpr), where=node.where):
            yield dataclasses.replace(one, work=one.work.times(times))


_LOOPS: Mapping[str, Callable[[_Counter, Node], Iterator[Counted]]] = {
    "scan": _Counter.scan,
    "while": _Counter.while_,
    "cond": _Counter.cond,
}


def _undominated(polynomials: Sequence[Polynomial]) -> tuple[Polynomial, ...]:
    """The polynomials that no other one exceeds in each term."""
    kept: list[Polynomial] = []
    for one in sorted(set(polynomials), key=lambda found: -sum(found.terms.values())):
        if not any(
            all(value <= other.terms.get(key, 0.0) for key, value in one.terms.items())
            for other in kept
        ):
            kept.append(one)
    return tuple(kept)


def _typical(work: Work) -> float:
    class Typical(dict[str, int]):
        def __missing__(self, symbol: str) -> int:
            return _TYPICAL

    sizes = Typical()
    return float(work.flops(sizes) + work.transcendentals(sizes) + work.bytes(sizes))


def _inner(eqn: Any) -> Any | None:
    """The open jaxpr that an equation only wraps; None: the equation is not a wrapper."""
    nested = nested_jaxpr(eqn)
    if nested is not None:
        return _compat.opened(nested)
    if eqn.primitive.name in ROWS or eqn.primitive.name in _LOOPS:
        return None
    inner = [_compat.opened(jaxpr) for jaxpr in _compat.sub_jaxprs(eqn.params)]
    fits = len(inner) == 1 and len(inner[0].invars) == len(eqn.invars)
    return inner[0] if fits and len(inner[0].outvars) == len(eqn.outvars) else None


def _flatten(
    jaxpr: Any, values: dict[Any, Any], *, nodes: list[Node], where: str | None
) -> list[Any]:
    """Add the nodes of an open jaxpr, and return its results.

    Args:
        jaxpr: An open jaxpr.
        values: By variable of the jaxpr the outer variable that it stands for; constants stand for
            themselves.
        nodes: The list to which nodes are added.
        where: The line of the equation that holds the jaxpr; None if unknown.
    """

    def read(atom: Any) -> Any:
        return None if _compat.is_literal(atom) else values.get(atom, atom)

    for eqn in jaxpr.eqns:
        line = _compat.eqn_line(eqn) or where
        inner = _inner(eqn)
        if inner is None:
            reads = tuple(var for var in map(read, eqn.invars) if var is not None)
            # A jaxpr may be called twice: each call gets new variables.
            made = [_compat.new_variable(var.aval) for var in eqn.outvars]
            values.update(zip(eqn.outvars, made, strict=True))
            row = ROWS.get(eqn.primitive.name)
            nodes.append(Node(eqn.replace(outvars=made), reads, line, row))
            continue
        own = dict(zip(inner.invars, map(read, eqn.invars), strict=True))
        results = _flatten(inner, own, nodes=nodes, where=line)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _roots(nodes: Sequence[Node], results: Sequence[Any]) -> list[int | None]:
    """For each node the last node of the fused loop that computes it; None: the node itself."""
    readers: dict[Any, list[int]] = {}
    for number, node in enumerate(nodes):
        for var in node.reads:
            readers.setdefault(var, []).append(number)
    returned = {var for var in results if var is not None}
    roots: list[int | None] = [None] * len(nodes)
    for number in reversed(range(len(nodes))):
        node = nodes[number]
        if node.row is None or node.row.fusion != "fused" or returned & {*node.eqn.outvars}:
            continue
        reading = {reader for var in node.eqn.outvars for reader in readers.get(var, ())}
        loops = {_root(roots, reader) for reader in reading}
        is_fused = all(_fuses_operands(nodes[reader]) for reader in reading)
        if is_fused and len(loops) == 1:
            (roots[number],) = loops
    return roots


def _root(roots: Sequence[int | None], number: int) -> int:
    root = roots[number]
    return number if root is None else root


def _fuses_operands(node: Node) -> bool:
    return node.row is not None and node.row.fusion != "none"
