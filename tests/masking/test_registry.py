"""The registry of rules: complete in itself, and of primitives that JAX has."""

import importlib
import pathlib

import jax
import pytest

from shapeexec import _compat
from shapeexec.masking import rules
from shapeexec.masking._registry import KINDS, KNOWLEDGE, NESTED, RULES, register

# Names that the installed JAX may lack, for another supported version has them.
_OF_SOME_VERSIONS = frozenset(
    """
    call call_hi_primitive closed_call copy_p core_call expand_dims log2 one_minus_square pjit
    polynomial reduced_vary_cast
    """.split()
)


def test_every_rule_is_of_a_primitive_that_jax_has():
    known = _compat.registered_primitives().keys() | _OF_SOME_VERSIONS
    assert not (RULES.keys() | NESTED.keys() | KNOWLEDGE.keys()) - known


def test_a_primitive_has_a_rule_or_a_nested_jaxpr_but_not_both():
    assert not RULES.keys() & NESTED.keys()


def test_what_is_known_of_a_result_is_asked_only_where_there_is_a_rule():
    assert not KNOWLEDGE.keys() - RULES.keys()


@pytest.mark.parametrize("name", sorted(RULES))
def test_each_rule_says_its_kind_and_what_it_does(name):
    assert RULES[name].kind in KINDS
    assert RULES[name].summary


def test_each_module_of_rules_is_imported():
    names = {path.stem for path in pathlib.Path(rules.__file__).parent.glob("[a-z]*.py")}
    for name in names:
        module = importlib.import_module(f"shapeexec.masking.rules.{name}")
        own = [rule for rule in RULES.values() if rule.apply.__module__ == module.__name__]
        assert own, f"{name} registers nothing"


def test_a_second_rule_for_a_primitive_is_refused():
    def rule(ctx):
        """Keep: nothing."""

    with pytest.raises(ValueError, match="`sort` is registered already"):
        register(jax.lax.sort_p)(rule)


def test_a_rule_without_a_kind_is_refused():
    def rule(ctx):
        """Does something."""

    with pytest.raises(ValueError, match="the docstring begins with one of"):
        register("a_primitive_of_nobody")(rule)
    assert "a_primitive_of_nobody" not in RULES
