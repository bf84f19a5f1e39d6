"""The registry of rules: complete in itself, and of primitives that JAX has."""

import ast
import contextlib
import importlib
import pathlib
import re
import sys

import jax
import numpy as np
import pytest

import shapeexec as sx
from shapeexec import _compat
from shapeexec.masking import rules
from shapeexec.masking._registry import (
    KINDS,
    KNOWLEDGE,
    NESTED,
    REFUSALS,
    RULES,
    Rule,
    refuse,
    register,
    register_knowledge,
    register_nested,
    status,
)
from shapeexec.shape._dim import symbols_of
from shapeexec.shape._trace import Leaf, trace
from shapeexec.shape._transposes import TRANSPOSED
from tests import cases
from tests.cases import Case
from tests.execution.support import refused

# Names that the installed JAX may lack, for another supported version has them.
_OF_SOME_VERSIONS = frozenset(
    """
    call call_hi_primitive closed_call copy_p core_call expand_dims log2 one_minus_square pjit
    polynomial program_order reduced_vary_cast reduced_vary_cast_p relayout
    """.split()
)


# All public modules that define primitives; those that a version lacks are left out.
_MODULES = """
    jax.custom_batching jax.debug jax.experimental.buffer_callback jax.experimental.checkify
    jax.experimental.custom_partitioning jax.experimental.fused jax.experimental.hijax
    jax.experimental.multihost_utils jax.experimental.pallas jax.experimental.pallas.fuser
    jax.experimental.pallas.mosaic_gpu jax.experimental.pallas.tpu jax.experimental.pallas.triton
    jax.experimental.rnn jax.experimental.scheduling_groups jax.experimental.sparse
    jax.experimental.sparse.linalg jax.experimental.xla_metadata jax.export jax.ffi
    jax.nn jax.ref jax.scipy.linalg jax.shard_map
""".split()


@pytest.fixture(scope="module")
def primitives():
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return primitives_in(lambda module: True)


def primitives_in(accepts):
    """Those that the loaded modules of JAX define, by name."""
    return {
        value.name: value
        for name, module in dict(sys.modules).items()
        if name.split(".")[0] == "jax" and module is not None and accepts(name)
        for value in list(vars(module).values())
        if isinstance(value, _compat.Primitive)
    }


_OF_KERNELS = ("jax._src.pallas.", "jax.experimental.pallas", "jax.experimental.mosaic.")


def test_every_primitive_of_jax_has_a_rule_or_a_reason(primitives):
    elsewhere = primitives_in(lambda module: not module.startswith(_OF_KERNELS)).keys()
    in_kernels = primitives_in(lambda module: module.startswith(_OF_KERNELS)).keys() - elsewhere
    told = RULES.keys() | NESTED.keys() | REFUSALS.keys() | in_kernels
    assert len(primitives) > 350  # all of JAX was looked at
    assert sorted(primitives.keys() - told) == []


def test_a_refused_primitive_has_no_rule():
    assert not REFUSALS.keys() & (RULES.keys() | NESTED.keys())


def test_the_status_of_a_primitive_is_told():
    assert status("sort") == "exact"
    assert status("jit") == "exact"
    assert status("rng_bit_generator") == "exact when no axis is padded"
    assert status("pallas_call") == f"error: {REFUSALS['pallas_call']}"
    assert status("a_primitive_of_nobody") == "error: it has no rule"


def test_an_error_gives_the_reason_of_the_refusal():
    def read_in_place(x):
        return jax.new_ref(x)[...]

    run = sx.Exec(read_in_place, ("s",))
    with pytest.raises(sx.UnsupportedPrimitiveError, match="in place") as caught:
        run(np.ones(3, np.float32))
    assert caught.value.primitive == "new_ref"
    assert caught.value.why == REFUSALS["new_ref"]


def test_an_approximate_top_k_is_refused_along_its_axis_on_a_tpu_only(monkeypatch):
    def fn(x):
        return jax.lax.approx_min_k(x, 2)

    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(sx.Exec(fn, ("b, s",))(x)[0], x[:, :2])
    run = sx.Exec(fn, ("b, s",))
    with monkeypatch.context() as patched:
        patched.setattr(jax, "default_backend", lambda: "tpu")
        with pytest.raises(sx.UnsupportedPrimitiveError, match="a TPU misses") as caught:
            run.explain(x)
        rows = sx.Exec(fn, ("b, 5",)).explain(x)
    assert caught.value.symbols == {"s"}
    assert caught.value.fix.startswith("jax.lax.top_k of -x; or make `s` exact: ")
    assert "0 masks" in str(rows)


def test_a_second_refusal_is_refused():
    with pytest.raises(sx.ConfigError, match="`pallas_call` is registered already") as caught:
        refuse("pallas_call", reason="twice")
    assert caught.value.fix.startswith("register each primitive once; ")


def test_every_rule_is_of_a_primitive_that_jax_has(primitives):
    own = {"attention", "attention_tangent", "attention_gradient", "host_value", *TRANSPOSED}
    known = primitives.keys() | _OF_SOME_VERSIONS | own
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
        assert own or name == "refused", f"{name} registers nothing"


def test_a_second_rule_for_a_primitive_is_refused():
    def rule(ctx):
        """Keep: nothing."""

    with pytest.raises(sx.ConfigError, match="`sort` is registered already"):
        register(jax.lax.sort_p)(rule)


WRONG = {
    "dtype": (lambda x: x.astype(np.float16), "float16 of rank 1"),
    "rank": (lambda x: x[:, None], "float32 of rank 2"),
    "list": (lambda x: [x], "list"),
    "nothing": (lambda _: None, "NoneType"),
}


@pytest.mark.parametrize(("rule", "got"), WRONG.values(), ids=WRONG)
def test_a_rule_that_returns_what_its_primitive_does_not_is_refused(rule, got, monkeypatch):
    made = Rule(lambda _, x, **__: rule(x), "Keep", "")
    monkeypatch.setitem(RULES, "cumsum", made)
    with pytest.raises(sx.ShapeExecError, match="rule of `cumsum` returns other") as caught:
        sx.Exec(jax.lax.cumsum, ("s",))(np.ones(3, np.float32))
    assert f"Got:   {got}; wanted float32 of rank 1\n" in str(caught.value)
    assert "Fix:   return one array per result, of its rank and dtype" in str(caught.value)


def test_a_rule_that_returns_too_few_results_is_refused(monkeypatch):
    monkeypatch.setitem(RULES, "top_k", Rule(lambda _, x, **__: [x], "Keep", ""))
    with pytest.raises(sx.ConfigError, match="float32 of rank 1; wanted float32 of rank 1, int32"):
        sx.Exec(lambda x: jax.lax.top_k(x, 1), ("s",))(np.ones(3, np.float32))


IN_ITS_PLACE = {
    "no parentheses": ((lambda ctx: None,), "<lambda>"),
    "a function of JAX": (("sort", jax.numpy.sum), "sum"),
    "numbers": ((3, 4.5), "3, 4.5"),
    "nothing": ((), "nothing"),
}


@pytest.mark.parametrize("registers", [register, register_knowledge, refuse])
@pytest.mark.parametrize(("given", "told"), IN_ITS_PLACE.values(), ids=IN_ITS_PLACE)
def test_what_is_registered_is_a_primitive(registers, given, told):
    options = {"reason": "none"} if registers is refuse else {}
    name = registers.__name__
    what, fix = f"{name} is given {told} in place of a primitive.", f'{name}("reduce_sum", ...)'
    with refused(sx.ConfigError, what, fix) as caught:
        registers(*given, **options)
    assert caught.value.where.startswith("registers(*given, **options)  (test_registry.py:")


def test_a_nested_jaxpr_is_that_of_a_primitive():
    with refused(sx.ConfigError, "register_nested is given 3 in", 'register_nested("reduce_sum"'):
        register_nested(3, lambda params: params["jaxpr"])


@pytest.mark.parametrize(
    ("axes", "fix"), [((-1,), "axes=(1,): axes"), ((0, 2), "axes=(0,): axes")], ids=str
)
def test_a_rule_that_fills_an_axis_that_is_none_is_refused(axes, fix, monkeypatch):
    made = Rule(lambda ctx, x, **_: ctx.fill(0, 0.0, axes=axes).sum(1), "Fill", "")
    monkeypatch.setitem(RULES, "reduce_sum", made)
    what = f"the rule of `reduce_sum` fills axes={axes} of an array of rank 2."
    with refused(sx.ConfigError, what, fix) as caught:
        sx.Exec(lambda x: x.sum(1), ("b, s",))(np.ones((3, 5), np.float32))
    assert caught.value.got == "f32[b,s]"
    assert caught.value.where.startswith("sx.Exec(lambda x: x.sum(1), ")


def test_a_rule_without_a_kind_is_refused():
    def rule(ctx):
        """Does something."""

    with pytest.raises(sx.ConfigError, match="rule: the docstring begins with 'Does'") as caught:
        register("a_primitive_of_nobody")(rule)
    assert caught.value.fix.endswith("Keep, Fill, Move, Run, Refuse, and a colon")
    assert "a_primitive_of_nobody" not in RULES


# Registered primitives that no case row holds, and the test that ties each: a path, and a name.
_TIED = {
    # Their programs are no plain functions of arrays.
    "attention attention_gradient": "attention/test_exec.py::test_padding_changes_nothing",
    "attention_tangent": "attention/test_exec.py::test_a_derivative_along_a_direction_is_exact_too",
    "debug_callback": "masking/test_callbacks.py::test_a_debug_callback_sees_true_shapes",
    "debug_print": "masking/test_callbacks.py::test_a_debug_print_prints_true_shapes",
    "io_callback": "masking/test_callbacks.py::test_a_callback_with_effects_runs_in_order",
    "pure_callback": (
        "masking/test_callbacks.py::test_a_pure_callback_returns_results_of_true_shapes"
    ),
    # Theirs is refused, or needs options that a row does not have.
    "rng_bit_generator rng_uniform": (
        "masking/rules/test_random.py::test_a_generator_that_needs_the_whole_shape_is_refused"
    ),
    "select_and_gather_add_transpose": (
        "masking/rules/test_transposes.py::test_gradients_of_slices_pads_pools_and_bodies_share_one_graph"
    ),
}
# JAX traces no function to these by itself: only in the lowering of another primitive, for several
# devices, for hijax's types, or in a version before or behind the installed one. All but the tokens
# keep padding in place by a rule that the other primitives of the same rule test.
_NEVER_TRACED = frozenset(
    """
    after_all broadcast_to create_token dce_sink empty eq_to from_edtype geqp3 iota_2x32_shape
    layout_constraint philox2x32 philox4x32 reshard stage threefry2x32
    threefry4x32 tie to_edtype with_memory_space_constraint xla_metadata_value
    custom_partitioning eval_jaxpr fused_call remat_opt xla_metadata_call
    """.split()
)


# Primitives that no row has along two symbols at once, and why.
_ONE_SYMBOL = {
    "dim_as_value host_value platform_index": "a number, which has no axis",
    "random_clone random_fold_in random_seed random_wrap": "of one key, which has no axis",
    "custom_vmap_call": "a call, which is interpreted in place",
    "igamma igamma_grad_a igammac": "pointwise, and slow for each element that is poison",
    "cholesky_update symmetric_product": "JAX maps neither over a batch",
}


def _primitives_of(case: Case) -> dict[str, int]:
    """The primitives of a case, and along how many symbols at most its arrays there are ragged.

    The case is traced at symbolic sizes, and nested jaxprs are included.
    """
    leaves = [Leaf(dims, dtype) for dims, dtype in zip(case.dims, case.arg_dtypes, strict=True)]
    traced = trace(case.fn, leaves, sizes={symbol: case.sizes[symbol] for symbol in case.symbols})
    found: dict[str, int] = {}
    for eqn in _compat.equations(traced.jaxpr.jaxpr):
        most = found.setdefault(eqn.primitive.name, 0)
        if most < 2:
            dims = {d for x in (*eqn.invars, *eqn.outvars) for d in getattr(x.aval, "shape", ())}
            found[eqn.primitive.name] = max(most, len(set().union(*map(symbols_of, dims))))
    return found


def test_each_registered_primitive_is_in_cases_of_one_and_of_two_symbols_or_has_its_own_test():
    gradients = [gradient for case in cases.ALL if (gradient := case.gradient())]
    rows = list(map(_primitives_of, (*cases.ALL, *gradients)))
    found = set().union(*rows)
    tied = {name for names in _TIED for name in names.split()}
    registered = RULES.keys() | NESTED.keys()
    assert sorted(registered - found - tied - _NEVER_TRACED - _OF_SOME_VERSIONS) == []
    assert sorted((tied | _NEVER_TRACED) & found) == []  # no exception outlives its reason
    assert sorted((tied | _NEVER_TRACED) - registered) == []
    of_two = {name for row in rows for name, symbols in row.items() if symbols >= 2}
    of_one = {name for names in _ONE_SYMBOL for name in names.split()}
    assert sorted((registered & found) - of_two - of_one - _OF_SOME_VERSIONS) == []
    assert sorted(of_one & of_two) == []


@pytest.mark.parametrize("test", _TIED.values(), ids=str)
def test_a_primitive_without_a_case_is_tied_to_a_test_that_there_is(test):
    path, name = test.split("::")
    text = (pathlib.Path(__file__).parents[1] / path).read_text()
    assert re.search(rf"^def {name}\(", text, re.MULTILINE)


_OF_INTERMEDIATES = {
    "_any_of": "the shape is an aval's, of dims",
    "_reshape_group": "the array is reshaped already along the axes of other groups",
    "_run_of": "the array is cut already along other axes",
    "_transform": "the array is as wide as the result by then",
    "_in_corner": "the axes of the batch are those of the result",
    "_widened": "the array is a callback's result",
    "_hash": "keys are never padded within a draw",
    "hash_pair": "counters are made by the rule, and keys are never padded within a draw",
    "by_element": "starts are laid out in rows by the rule",
    "_unchanging": "updates that are spread element by element are the rule's",
    "take": "what is moved may be moved along other axes already",
    "take_back": "the array is what a primitive made of laid elements",
    "_added_up": "the array is what a primitive made of laid elements",
    "unpad_axis": "the array may be cut already along other axes",
    "close_up_groups": "the array is what a primitive made of spread groups",
}
_MASKING = pathlib.Path(rules.__path__[0]).parent
RULE_FILES = [
    *sorted((_MASKING / "rules").glob("*.py")),
    *(_MASKING / f"_{name}.py" for name in ("windows", "moves", "taps")),
]


def shapes_read(text: str) -> set[tuple[str, str]]:
    """Functions that read the shape of a parameter, of a field, or of a value's array."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    found: set[tuple[str, str]] = set()
    for function in functions:
        given = (*function.args.args, *function.args.kwonlyargs)
        names = {parameter.arg for parameter in given}
        attributes = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
        read = {ast.unparse(node.value) for node in attributes if node.attr == "shape"}
        found |= {
            (function.name, x)
            for x in read
            if x in names or x.startswith("self.") or x.endswith(".array")
        }
    return found


def test_rules_take_capacities_from_their_context():
    found = set().union(*(shapes_read(path.read_text()) for path in RULE_FILES))
    assert {function for function, _ in found} == _OF_INTERMEDIATES.keys()


def test_an_extent_that_is_read_off_an_operand_is_found():
    rule = "def rule(ctx, operand, *, axis):\n    return operand.shape[axis]"
    helper = "def helper(x):\n    return x.shape"
    method = "class Writes:\n    def apply(self):\n        return self.updates.shape"
    assert shapes_read(rule) == {("rule", "operand")}
    assert shapes_read(helper) == {("helper", "x")}
    value = "def rule(ctx):\n    return ctx.operands[0].array.shape"
    assert shapes_read(method) == {("apply", "self.updates")}
    assert shapes_read(value) == {("rule", "ctx.operands[0].array")}
