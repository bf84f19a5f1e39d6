"""Each private name of JAX that the library uses exists here, and behaves as documented."""

import ast
import importlib
import inspect
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax._src import source_info_util

from shapeexec import _compat
from shapeexec._compat import cudnn, settings
from shapeexec._compat.private import VERSIONS
from shapeexec.shape._library import searching
from tests.execution.support import counted, ones

INSTALLED = ".".join(jax.__version__.split(".")[:2])
SOURCES = [*pathlib.Path(inspect.getfile(_compat)).parent.rglob("*.py")]
NOTHING = object()


def eqns(fn, *args):
    return jax.make_jaxpr(fn)(*args).jaxpr.eqns


def named(name):
    """What a dotted name of JAX's means, or `NOTHING`."""
    module, rest = name, []
    while True:
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
    for part in rest:
        found = getattr(found, part, NOTHING)
    return found


def private_names(path):
    """The names of JAX's private modules in a file, as far as attributes spell them out."""
    tree = ast.parse(path.read_text())
    aliases = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if f"{node.module}.".startswith(("jax._src.", "jax.extend.", "jax.interpreters."))
    }

    def spelled(node):
        if isinstance(node, ast.Attribute):
            owner = spelled(node.value)
            return owner and f"{owner}.{node.attr}"
        return aliases.get(node.id) if isinstance(node, ast.Name) else None

    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    outermost = (node for node in ast.walk(tree) if id(node) not in inner)
    return {*filter(None, map(spelled, outermost))}


@pytest.mark.parametrize("name", VERSIONS)
def test_a_private_name_is_in_the_versions_that_are_said_to_have_it(name):
    found = named(name)
    assert (found is not NOTHING) == (INSTALLED in VERSIONS[name])


def test_each_private_name_in_use_has_its_versions():
    known = tuple(f"{name}." for name in VERSIONS)
    used = {f"{name}." for path in SOURCES for name in private_names(path)}
    has_members = {name for name in used if any(row.startswith(name) for row in known)}
    assert not [name for name in used - has_members if not name.startswith(known)]
    assert len(used) > 50


def test_no_name_has_versions_and_no_use():
    code = "".join(path.read_text() for path in SOURCES if path.stem != "private")
    code += inspect.getsource(searching)
    words = {*re.findall(r"\w+", code)}
    assert not [name for name in VERSIONS if name.rpartition(".")[2] not in words]


def test_a_jaxpr_is_put_together_and_runs():
    jaxpr = jax.make_jaxpr(lambda x: x * 2)(ones(3)).jaxpr
    aval = _compat.ShapedArray((5,), np.dtype(np.float32))
    x, factor, out = (_compat.new_variable(aval) for _ in range(3))
    scalar = _compat.ShapedArray((), np.dtype(np.float32))
    doubled = _compat.new_variable(aval)
    eqns = [
        jaxpr.eqns[0].replace(invars=[x, factor], outvars=[doubled]),
        jaxpr.eqns[0].replace(
            invars=[doubled, _compat.new_literal(np.float32(2), scalar)], outvars=[out]
        ),
    ]
    opened = _compat.new_jaxpr(jaxpr, constvars=[factor], invars=[x], outvars=[out], eqns=eqns)
    closed = _compat.ClosedJaxpr(opened, [np.full(5, 3, np.float32)])
    assert isinstance(closed.jaxpr, _compat.Jaxpr)
    assert [a.shape for a in closed.in_avals] == [(5,)]
    (result,) = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, ones(5))
    np.testing.assert_array_equal(result, 6 * ones(5))


def test_indexing_while_somebody_listens_has_the_users_line():
    scope = export.SymbolicScope()
    (s,) = export.symbolic_shape("s", scope=scope)
    struct = jax.ShapeDtypeStruct((s,), np.float32)
    with _compat.listen_to_dims(None, scope):
        jaxpr = jax.jit(lambda x: x[1]).trace(struct).jaxpr
    (eqn, *_) = jaxpr.eqns
    assert "test_compat.py" in (_compat.eqn_line(eqn) or "")
    assert "test_compat.py" in source_info_util.summarize(eqn.source_info)  # as JAX tells of it


def test_a_compilation_is_an_event():
    with counted() as count:
        jax.jit(lambda x: x * 3 + 7)(ones(3))
    assert count.compilations == 1


def test_the_trace_state_is_clean_outside_of_traces_only():
    seen = []
    note = lambda: seen.append(_compat.trace_state_clean())
    jax.jit(note)()
    jax.eval_shape(note)
    jax.vmap(lambda x: note() or x)(ones(2))
    jax.grad(lambda x: note() or x)(1.0)
    jax.lax.scan(lambda c, _: (note() or c, None), 0, None, length=1)
    assert not any(seen)
    assert _compat.trace_state_clean()


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("weak_type", [False, True])
def test_a_host_array_becomes_a_jax_array(committed, weak_type):
    like = jnp.asarray(ones(2))
    array = _compat.array_from_host(
        ones(4)[1:3], dtype=like.dtype, weak_type=weak_type, like=like, committed=committed
    )
    np.testing.assert_array_equal(array, [2, 3])
    assert (array.weak_type, array.committed) == (weak_type, committed)
    assert array.devices() == like.devices()


@pytest.mark.parametrize("weak_type", [False, True])
@pytest.mark.parametrize("value", [2.0, np.float32(2), jnp.float32(2), jnp.asarray(2.0)], ids=repr)
def test_a_weak_type_may_be_given_and_taken(value, weak_type):
    aval = _compat.ShapedArray((), np.dtype(np.float32), weak_type=weak_type)
    assert jax.jit(lambda: _compat.with_weak_type(value, aval))().weak_type == weak_type


def test_keys_and_float0_have_no_weak_type_to_give():
    key = jax.random.key(0)
    assert _compat.with_weak_type(key, jax.typeof(key)) is key
    nothing = np.zeros(3, jax.dtypes.float0)
    assert _compat.with_weak_type(nothing, jax.typeof(nothing)) is nothing


def test_avals_print_as_in_jaxprs():
    (s,) = export.symbolic_shape("s")
    assert _compat.describe_aval(_compat.ShapedArray((s, 5), np.dtype(np.float32))) == "f32[s,5]"


def test_keys_are_extended_and_numbers_are_not():
    assert _compat.is_extended(jax.random.key(0).dtype)
    assert not _compat.is_extended(np.dtype(np.float32))


def test_where_an_array_was_put_on_purpose_is_known():
    free, put = jnp.asarray(ones(2)), jax.device_put(ones(2), jax.devices()[0])
    struct = jax.ShapeDtypeStruct((2,), np.float32, sharding=put.sharding)
    assert (_compat.is_committed(free), _compat.is_committed(put)) == (False, True)
    assert [_compat.committed_sharding(x) for x in (free, ones(2), 3.0)] == [None] * 3
    assert [_compat.committed_sharding(x) for x in (put, struct)] == [put.sharding] * 2


def test_the_operands_of_a_scan_are_counted():
    const = jnp.float32(2)
    (eqn,) = eqns(
        lambda c, xs: jax.lax.scan(lambda c, x: ((c[0] * const, c[1] + x), x), (c, c), xs),
        1.0,
        ones(3),
    )[-1:]
    consts, carries = _compat.scan_counts(eqn.params, len(eqn.invars))
    assert carries == 2
    assert consts + carries + 1 == len(eqn.invars)


def test_nested_jaxprs_are_found():
    (eqn,) = eqns(jax.jit(lambda x: x + 1), 1.0)
    (inner,) = _compat.sub_jaxprs(eqn.params)
    assert [e.primitive.name for e in getattr(inner, "jaxpr", inner).eqns] == ["add"]


def test_literals_are_told_from_variables():
    (eqn,) = eqns(lambda x: x + 1.0, 2.0)
    assert [_compat.is_literal(var) for var in eqn.invars] == [False, True]


def test_one_gamma_variate_is_what_jax_draws():
    key = jax.random.key(0)
    one = _compat.gamma_one()(jax.random.split(key, 1)[0], jnp.float32(2.0), False)
    assert float(one) == float(jax.random.gamma(key, 2.0)) or np.isfinite(one)


def test_threefry_is_a_primitive():
    assert _compat.threefry2x32_p.name == "threefry2x32"


def test_primitives_that_stand_for_a_function_become_calls_of_it():
    row = jnp.arange(4.0)
    fn = lambda x: jax.lax.map(lambda y: jnp.nonzero(y > 1, size=3)[0], x)
    given = jax.make_jaxpr(fn)(row[None])
    plain = _compat.without_hi_primitives(given)
    names = {eqn.primitive.name for eqn in _compat.equations(plain.jaxpr)}
    assert "call_hi_primitive" not in names
    (got,) = jax.extend.core.jaxpr_as_fun(plain)(row[None])
    np.testing.assert_array_equal(got, [[2, 3, 0]])
    without = jax.make_jaxpr(jnp.sin)(1.0)
    assert _compat.without_hi_primitives(without) is without


def test_cudnns_attention_is_a_pair_of_primitives():
    assert _compat.cudnn_attention_is_known()
    q, k, v = (jnp.zeros((2, 128, heads, 64), jnp.float16) for heads in (4, 2, 2))
    options = {"scale": 0.5, "is_causal": True, "window": 3}
    out, logsumexp = jax.eval_shape(lambda *x: _compat.cudnn_attention(*x, **options), q, k, v)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    assert (logsumexp.shape, logsumexp.dtype) == ((2, 4, 128), np.float32)
    gradients = jax.eval_shape(
        lambda *x: _compat.cudnn_attention_gradient(x[:3], x[3:], x[3], **options),
        *(q, k, v, out, logsumexp),
    )
    assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize("gone", ["MaskType", "_dot_product_attention_bwd_p"])
def test_without_one_of_its_names_cudnns_attention_is_not_known(monkeypatch, gone):
    from jax._src.cudnn import fused_attention_stablehlo  # noqa: PLC0415 - the name to remove

    monkeypatch.delattr(fused_attention_stablehlo, gone)
    cudnn._cudnn.cache_clear()
    try:
        assert not _compat.cudnn_attention_is_known()
    finally:
        cudnn._cudnn.cache_clear()


def test_without_its_module_cudnns_attention_is_not_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax._src.cudnn.fused_attention_stablehlo", None)
    cudnn._cudnn.cache_clear()
    try:
        assert not _compat.cudnn_attention_is_known()
    finally:
        cudnn._cudnn.cache_clear()


def test_an_equation_knows_the_line_that_made_it():
    (eqn,) = eqns(lambda x: x + 1.0, 2.0)  # this line
    assert "# this line" in _compat.eqn_line(eqn)
    assert "(test_compat.py:" in _compat.eqn_line(eqn)


def test_an_error_knows_the_users_line():
    try:
        jnp.zeros(3).reshape(2)
    except TypeError as error:
        place = _compat.error_place(error)
    assert "reshape(2)" in _compat.describe_line(place)
    assert _compat.describe_line(None) is None
    assert _compat.error_place(ValueError()) is None


def test_the_configuration_that_changes_a_trace_changes_the_fingerprint():
    prints = [_compat.config_fingerprint()]
    for changed in (
        jax.enable_x64(True),
        jax.default_matmul_precision("highest"),
        jax.numpy_dtype_promotion("strict"),
        jax.threefry_partitionable(not jax.config.jax_threefry_partitionable),
        jax.default_device(jax.devices()[0]),
    ):
        with changed:
            prints.append(_compat.config_fingerprint())
    assert len(set(prints)) == len(prints)
    assert prints[0] == _compat.config_fingerprint()


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        (
            lambda: jax.default_matmul_precision("highest"),
            "jax_default_matmul_precision",
            "highest",
        ),
        (lambda: jax.enable_x64(True), "jax_enable_x64", True),
        (lambda: jax.numpy_rank_promotion("raise"), "jax_numpy_rank_promotion", "raise"),
        (lambda: jax.debug_nans(True), "jax_debug_nans or jax_debug_infs", True),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_the_settings_of_a_fingerprint_have_the_names_that_jax_gives_them(change, name, value):
    before = _compat.named_settings(_compat.config_fingerprint())
    with change():
        after = _compat.named_settings(_compat.config_fingerprint())
    assert before.keys() == after.keys()
    assert len(after) == len(_compat.config_fingerprint()[0]) + 1
    assert {n for n in after if after[n] != before[n]} == {name}
    assert after[name] == value
    assert before == _compat.named_settings(_compat.config_fingerprint())


def test_where_jax_tells_no_names_of_its_context_each_setting_is_tried():
    before, _ = _compat.config_fingerprint()
    tried = settings._names_by_trial()
    assert _compat.config_fingerprint()[0] == before
    assert len(tried) == len(before)
    named = {n: v for n, v in zip(tried, before, strict=True) if hasattr(jax.config, n)}
    assert len(named) > 20
    assert named == {n: getattr(jax.config, n) for n in named}
    pairs = zip(tried, settings._names_of_context(), strict=True)
    assert all(mine == its for mine, its in pairs if its.startswith("jax_"))


def test_a_setting_that_is_registered_later_is_not_in_an_earlier_fingerprint(monkeypatch):
    names = (*settings._names_of_context(), "user_context", "user_context")
    monkeypatch.setattr(settings, "_names_of_context", lambda: names)
    context, are_checked = _compat.config_fingerprint()
    later = _compat.named_settings(((*context, 1, 2), are_checked))
    assert [later[n] for n in later if n.startswith("user_context")][-2:] == [1, 2]
    assert later.keys() - _compat.named_settings((context, are_checked)).keys()


@pytest.mark.parametrize(
    ("ask", "read"),
    [
        (lambda s: s > 6, ("s", ">", "6")),
        (lambda s: s <= 2, ("s", "<=", "2")),
        (lambda s: jnp.zeros(s).reshape(-1, 4), ("mod(s, 4)", "==", "0")),
        (lambda s: int(s), None),  # noqa: PLW0108 - a call in user code
        (lambda s: 1 / 0, None),
    ],
)
def test_an_inconclusive_comparison_is_read_off_the_error(ask, read):
    (s,) = export.symbolic_shape("s")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of several kinds
        jax.eval_shape(lambda: ask(s))
    assert _compat.inconclusive_comparison(caught.value) == read


def test_what_pallas_has_is_asked_of_jax():
    assert _compat.pallas_has("mosaic_gpu")
    assert not _compat.pallas_has("cuda_for_abacuses")
