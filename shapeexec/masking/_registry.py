"""The registry of rules: which function keeps the invariant for which primitive.

Primitives are identified by name, so a rule for a primitive that this version of JAX lacks is
unused. Rules themselves are in `rules`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.masking._knowledge import Known

KINDS = ("Keep", "Fill", "Move", "Run", "Refuse")
"""What a rule does about padding: the first word of its docstring.

Keep: nothing. Fill: it overwrites padding that would be read. Move: it places elements by their
position in the unpadded shape. Run: it interprets nested jaxprs. Refuse: it raises on a padded
axis.
"""


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule, described by its docstring.

    Attributes:
        apply: `rule(ctx, *operands, **params) -> array or arrays`.
        kind: One of `KINDS`.
        summary: The first line of the docstring after the kind.
        exact_when: The condition under which it is exact; it raises otherwise. None: always.
        also_static: Whether it is called for equations without symbolic dims too.
    """

    apply: Callable[..., Any]
    kind: str
    summary: str
    exact_when: str | None = None
    also_static: bool = False


RULES: dict[str, Rule] = {}
NESTED: dict[str, Callable[[dict[str, Any]], Any]] = {}
KNOWLEDGE: dict[str, Callable[..., Any]] = {}
REFUSALS: dict[str, str] = {}


def register(
    *primitives: Any, exact_when: str | None = None, also_static: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the decorated function the rule of each of `primitives`.

    The rule is called as `rule(ctx, *operands, **params)`. Operands are arrays at capacity with
    unspecified padding; each dim inside `params` is its capacity already. It returns the array of
    the result, or a sequence of them for a primitive with several results; the interpreter cuts or
    widens them to capacity. Its docstring begins with one of `KINDS`.

    Args:
        *primitives: JAX primitives or their names, such as `"reduce_sum"`.
        exact_when: The condition under which the rule is exact, for the table of primitives; where
            it does not hold the rule raises. None: it is exact always.
        also_static: Also call the rule for equations without symbolic dims; by default those are
            bound unchanged.

    Raises:
        ConfigError: No primitive is given, or something that is not a primitive; a primitive has a
            rule already; or the docstring begins with another word.
    """
    names = _names("register", primitives)

    def decorate(rule: Callable[..., Any]) -> Callable[..., Any]:
        first_line = (rule.__doc__ or "").strip().splitlines()[:1]
        kind, _, rest = (first_line or [""])[0].partition(" ")
        kind = kind.rstrip(":")
        if kind not in KINDS:
            raise ConfigError(
                f"{rule.__name__}: the docstring begins with {kind!r}, not with a kind of rule.",
                option="rule",
                fix=f"begin it with what it does about padding: {', '.join(KINDS)}, and a colon",
            )
        for name in names:
            _claim(RULES, name, entry=Rule(rule, kind, rest.strip(), exact_when, also_static))
        return rule

    return decorate


def register_nested(primitive: Any, get_jaxpr: Callable[[dict[str, Any]], Any]) -> None:
    """Say which parameter of a call-like primitive, which only wraps a jaxpr, is that jaxpr.

    It is interpreted in place, so that facts about padding pass in and out.

    Args:
        primitive: A JAX primitive or its name.
        get_jaxpr: The jaxpr, closed or open, from the equation's parameters.

    Raises:
        ConfigError: It is not a primitive, or it is registered already.
    """
    (name,) = _names("register_nested", [primitive])
    _claim(NESTED, name, entry=get_jaxpr)


def nested_jaxpr(eqn: Any) -> Any | None:
    """The closed jaxpr that an equation only wraps; None: it is not call-like."""
    get_jaxpr = NESTED.get(eqn.primitive.name)
    return None if get_jaxpr is None else _compat.closed(get_jaxpr(eqn.params))


def register_knowledge(*primitives: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the decorated function derive the facts about the result of `primitives`.

    The function is called as `know(ctx, *known, **params) -> Known`, with the facts about each
    operand after the rule has filled. Without such a function nothing is known of a result.

    Args:
        *primitives: JAX primitives, or their names.

    Raises:
        ConfigError: No primitive is given, or something that is not a primitive; or a primitive has
            such a function already.
    """
    names = _names("register_knowledge", primitives)

    def decorate(know: Callable[..., Known]) -> Callable[..., Known]:
        for name in names:
            _claim(KNOWLEDGE, name, entry=know)
        return know

    return decorate


def refuse(*primitives: Any, reason: str) -> None:
    """Say why primitives without a rule have none: the error on a padded axis gives the reason."""
    for name in _names("refuse", primitives):
        _claim(REFUSALS, name, entry=reason)


def is_own(primitive: str) -> bool:
    """Whether only code of the library runs when equations of a primitive are masked.

    The user may have written the rule, or a mask that the rule of attention calls.
    """
    rule = RULES.get(primitive)
    functions = (rule and rule.apply, KNOWLEDGE.get(primitive), NESTED.get(primitive))
    homes = (getattr(one, "__globals__", {}).get("__name__", "") for one in functions if one)
    return all(home.startswith("shapeexec.masking.") for home in homes)


def status(primitive: str) -> str:
    """The promise for a primitive on padded axes: `exact`, `exact when ...`, `error: ...`."""
    rule = RULES.get(primitive)
    if rule is not None:
        condition = "no axis is padded" if rule.kind == "Refuse" else None
        condition = rule.exact_when or condition
        return "exact" if condition is None else f"exact when {condition}"
    return "exact" if primitive in NESTED else f"error: {why_refused(primitive)}"


def why_refused(primitive: str) -> str:
    """Why a primitive without a rule is an error on a padded axis."""
    return REFUSALS.get(primitive, "it has no rule")


def _names(function: str, primitives: Sequence[Any]) -> list[str]:
    """The names of the primitives that a function of this module is given."""
    strange = [one for one in primitives if not isinstance(one, str | _compat.Primitive)]
    if primitives and not strange:
        return [one if isinstance(one, str) else one.name for one in primitives]
    given = ", ".join(getattr(one, "__name__", repr(one)) for one in strange) or "nothing"
    raise ConfigError(
        f"{function} is given {given} in place of a primitive.",
        option="primitives",
        where=_compat.describe_line(_compat.user_place()),
        fix=f'{function}("reduce_sum", ...) or {function}(jax.lax.reduce_sum_p, ...)',
    )


def _claim(table: dict[str, Any], name: str, *, entry: Any) -> None:
    if name in table:
        raise ConfigError(
            f"`{name}` is registered already.",
            option="primitives",
            fix="register each primitive once; to change what the library does, edit its own rule",
        )
    table[name] = entry
