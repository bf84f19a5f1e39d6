"""Cost models: their polynomials against XLA's own analysis, and what they tell."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shapeexec as sx
from benchmarks import _networks
from demo import model
from shapeexec.costing import _table
from shapeexec.costing._polynomial import constant
from shapeexec.costing._speed import fitted
from shapeexec.costing._work import Work
from shapeexec.masking._registry import NESTED, RULES
from tests.tolerance import assert_close

SHAPES = ((2, 40), (3, 61))
XLA = 0.05  # XLA drops and shares pointwise operations, and products with the padding at edges
XLA_BYTES = 0.6  # it fuses, and computes in place, what the model takes for separate loops

ONE_KERNEL = ("MLP",)  # of which XLA on a CPU makes one kernel: what is in between moves no bytes


def mlp(weights, x):  # x: f32[b, s, 64]
    for weight in weights:
        x = jax.nn.relu(x @ weight)
    return x.mean(axis=1)


def lstm(params, x):
    """`_networks.lstm` without a loop in XLA, which would count one step of it."""
    with pytest.MonkeyPatch.context() as patch:
        scan = functools.partial(jax.lax.scan, unroll=True)
        patch.setattr(_networks, "lax", type("", (), {"scan": staticmethod(scan)}))
        return _networks.lstm(params, x)


def tokens(b, s):
    return np.random.default_rng(0).integers(0, 256, (b, s), dtype=np.int32)


def features(b, s, width=_networks.FEATURES):
    return np.random.default_rng(0).normal(size=(b, s, width)).astype(np.float32)


KEY = jax.random.key(0)
MODELS = {
    "transformer": (model.score, model.init(KEY, layers=1), tokens, "b, s"),
    "its gradient": (jax.value_and_grad(model.loss), model.init(KEY, layers=1), tokens, "b, s"),
    "CNN": (_networks.cnn, _networks.init_cnn(KEY), features, "b, s, 8"),
    "LSTM": (lstm, _networks.init_lstm(KEY), features, "b, s, 8"),
    "MLP": (
        mlp,
        [jnp.ones((64, 256)), jnp.ones((256, 64))],
        functools.partial(features, width=64),
        "b, s, 64",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_that_xla_counts_at_all_sizes(name):
    fn, params, data, spec = MODELS[name]
    found = sx.Exec(fn, (None, spec)).cost_model(params, data(2, 5))
    assert found.notes == ()
    for b, s in SHAPES:
        analysis = jax.jit(fn).lower(params, data(b, s)).compile().cost_analysis()
        cost = found(b=b, s=s)
        assert cost.flops == pytest.approx(analysis["flops"], rel=XLA)
        if name not in ONE_KERNEL:
            assert cost.bytes == pytest.approx(analysis["bytes accessed"], rel=XLA_BYTES)
        transcendentals = analysis.get("transcendentals", 0.0)
        assert cost.transcendentals == pytest.approx(transcendentals, rel=XLA, abs=1)


@pytest.mark.parametrize(
    ("fn", "spec", "flops"),
    [
        (lambda x: x @ x.T, "b, s", "2*b^2*s"),
        (lambda x: x + 1, "b, s", "b*s"),
        (lambda x: x.reshape(-1)[: x.size // 2] * 2, "b, s", "floordiv(b * s, 2)"),
        (lambda x: jnp.sort(x, axis=1), "b, s", "b*log2(s)*s"),
        (lambda x: jax.lax.cumsum(x, axis=0), "b, s", "b*s"),
        (lambda x: jnp.linalg.cholesky(x @ x.T), "s, 4", "0.3333*s^3 + 13*s^2"),
        (lambda x: jax.lax.map(lambda row: row * 3, x), "b, s", "b*s"),
        (jax.checkpoint(lambda x: x * 3), "b, s", "b*s"),
        (lambda x: jax.lax.cond(x[0, 0] > 0, lambda y: y * 3 + 1, jnp.abs, x), "b, 7", "14*b + 9"),
    ],
)
def test_flops_are_polynomials_in_the_symbols(fn, spec, flops):
    found = sx.Exec(fn, (spec,)).cost_model(np.ones((4, 4) if "4" in spec else (6, 7), np.float32))
    assert str(found.flops) == flops


def test_a_symbol_without_a_strategy_is_a_symbol_of_the_cost():
    run = sx.Exec(lambda x: x @ x.T, ("b, s",), buckets={"b": sx.Pow2()})
    assert str(run.cost_model(np.ones((3, 5), np.float32)).flops) == "2*b^2*s"


def test_the_last_call_is_the_example_and_nothing_is_compiled():
    run = sx.Exec(lambda x: x * 2, ("s",))
    run(np.ones(5, np.float32))
    found = run.cost_model()
    assert found.sizes == {"s": 5}
    assert run.stats.compiles == 1


def test_a_fused_value_moves_no_bytes_and_one_that_two_loops_read_is_written_once():
    chain = sx.Exec(lambda x: jnp.exp(x * 2 + 1), ("s",))
    assert str(chain.cost_model(np.ones(5, np.float32)).bytes) == "8*s"

    def twice(x):
        doubled = x * 2  # 8 s: read x, written
        return doubled.max() + doubled.min()  # 4 s + 4 each, and 12 for the sum

    found = sx.Exec(twice, ("s",)).cost_model(np.ones(5, np.float32))
    assert str(found.bytes) == "16*s + 20"


def test_a_scan_is_counted_by_its_length_and_a_while_as_one_step():
    def loops(start, x):  # x: f32[s]
        total, _ = jax.lax.scan(lambda total, each: (total + each * each, None), start, x)
        return jax.lax.while_loop(lambda y: y < 100, lambda y: y * 2 + 1, total)

    found = sx.Exec(loops, (None, "s")).cost_model(np.float32(0), np.ones(5, np.float32))
    assert str(found.flops) == "2*s + 3"
    (note,) = found.notes
    assert note.startswith("`while` is counted as one step: its length is not known")


def test_memory_is_what_is_alive_at_once():
    run = sx.Exec(lambda x: jnp.cumsum(jnp.cumsum(jnp.cumsum(x))), ("s",))
    assert run.cost_model(np.ones(5, np.float32))(s=1000).memory == 8000


def test_seconds_are_those_of_each_kind_of_work_and_take_arrays():
    found = sx.Exec(lambda x: jnp.exp(x + 1), ("s",)).cost_model(np.ones(5, np.float32))
    by_bytes = sx.Speed(seconds_per_flop=0.0, seconds_per_byte=1.0, seconds_per_call=0.5)
    by_work = sx.Speed(
        seconds_per_flop=3.0,
        seconds_per_byte=0.0,
        seconds_per_transcendental=5.0,
        seconds_per_launch=2.0,
    )
    assert found.seconds(by_bytes, s=10) == 80.5
    assert found.seconds(by_work, s=10) == 30 + 50 + 2
    np.testing.assert_array_equal(found.seconds(by_bytes, s=np.array([10, 20])), [80.5, 160.5])


@pytest.mark.parametrize(("convolved", "seconds"), [(None, 150 + 9 + 2), (7.0, 7 * 150 + 9 + 2)])
def test_convolutions_may_have_a_speed_of_their_own(convolved, seconds):
    def smooth(x):  # x: f32[1, s, 1]
        numbers = ("NHC", "HIO", "NHC")
        kernel = jnp.ones((5, 1, 3))
        return jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=numbers)

    fn = sx.Exec(lambda x, y: (smooth(x), y + 1), ("1, s, 1", "s"))
    found = fn.cost_model(np.ones((1, 9, 1), np.float32), np.ones(9, np.float32))
    speed = sx.Speed(
        seconds_per_flop=1.0,
        seconds_per_byte=0.0,
        seconds_per_call=2.0,
        seconds_per_convolved_flop=convolved,
    )
    assert found(s=9).flops == 150 + 9
    assert found.seconds(speed, s=9) == seconds


WORKS = [(3, 0, 1, 2, 5), (90, 60, 0, 7, 2), (4, 4, 9, 1, 1), (8, 1, 2, 30, 9), (1, 0, 0, 2, 40)]
WORKS += [(70, 1, 3, 2, 1), (2, 1, 80, 3, 1)]
RATES = (3.0, 5.0, 2.0, 0.5, 7.0, 11.0)  # of products, convolutions, ... and of calls


def test_speeds_are_found_at_which_programs_take_the_times_that_they_took():
    works = [Work(*map(constant, amounts)) for amounts in WORKS]
    rows = [(flops - convolved, convolved, *rest, 1) for flops, convolved, *rest in WORKS]
    seconds = np.array(rows) @ RATES
    assert_close(np.array(fitted(works, seconds.tolist())), np.array(RATES))
    without = [Work(work.flops, *work.amounts[1:4]) for work in works]
    found = fitted(without, (seconds - 7 * np.array(rows)[:, 4] - 11).tolist())
    assert_close(np.array(found), np.array([*RATES[:4], 0, 0]))
    assert min(fitted(works, [1e-3] * len(works))) >= 0


def test_a_model_that_knows_a_measured_call_is_scaled_to_it():
    found = sx.Exec(lambda x: x + 1, ("s",)).cost_model(np.ones(5, np.float32))
    speed = sx.Speed(seconds_per_flop=0.0, seconds_per_byte=1.0)
    fitted = found.measured(8.0, speed, s=10)
    assert fitted.seconds(speed, s=20) == 16.0
    assert fitted.measured(4.0, speed, s=10).seconds(speed, s=20) == 8.0
    assert found.seconds(speed, s=20) == 160.0


def test_the_speed_of_the_device_is_measured_once():
    found = sx.Exec(lambda x: x @ x.T, ("b, s",)).cost_model(np.ones((3, 5), np.float32))
    assert 0 < found.seconds(b=8, s=8) < found.seconds(b=512, s=512)
    assert found.seconds(b=8, s=8) == found.seconds(b=8, s=8)


def test_a_guard_of_the_trace_is_told():
    run = sx.Exec(lambda x: x * 2 if x.shape[0] > 4 else x, ("s",))
    assert run.cost_model(np.ones(6, np.float32)).guards == ("s > 4",)


def test_a_model_prints_polynomials_and_the_costliest_lines():
    def project(w, x):  # x: f32[b, s, 4]
        hidden = x @ w
        return jnp.tanh(hidden).sum(axis=1)

    run = sx.Exec(project, (None, "b, s, 4"))
    text = str(run.cost_model(np.ones((4, 4), np.float32), np.ones((2, 3, 4), np.float32)))
    lines = text.splitlines()
    assert lines[:6] == [
        "project: the cost of a call, at b=2, s=3",
        "  FLOPs                216  36*b*s",
        "  transcendentals       24  4*b*s",
        "  bytes                384  48*b*s + 16*b + 64",
        "  launches               2  2",
        "  memory, bytes        128",
    ]
    places = [line.partition("  (test_cost_model.py:")[0] for line in lines[6:]]
    assert places == [
        "    80% of FLOPs,  67% of bytes   hidden = x @ w",
        "    20% of FLOPs,  33% of bytes   return jnp.tanh(hidden).sum(axis=1)",
    ]


IDLE = sx.Speed(seconds_per_flop=0.0, seconds_per_byte=0.0)
NO_SIZES = ("x", -1, 1.5, None, True, np.array([1, 2]))
NO_ARRAYS = ("x", -1, np.array([1, -1]), np.array([1.0, 2.0]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda run: run.cost_model(),
            "cost_model: the arguments of <lambda> are not known yet.\n"
            "  Got:   no example arguments, and no call before\n"
            "  Fix:   pass example arguments, such as jax.ShapeDtypeStruct, or call once before",
        ),
        (
            lambda run: run.cost_model(np.ones((2, 3), np.float32))(b=4),
            "cost of <lambda>: the sizes are not those of its symbols.\n"
            "  Got:   b\n"
            "  Fix:   (b=128, s=128)",
        ),
        (
            lambda run: run.cost_model(np.ones((2, 3), np.float32)).measured(0, b=1, s=1),
            "measured: 0 is not a positive number of seconds.\n"
            "  Fix:   the seconds of one call, the median of several",
        ),
        (
            lambda run: run.cost_model(np.ones((2, 3), np.float32)).measured("1", b=1, s=1),
            "measured: '1' is not a positive number of seconds.\n"
            "  Fix:   the seconds of one call, the median of several",
        ),
        (
            lambda run: run.cost_model(np.ones((2, 3), np.float32)).measured(1.0, IDLE, b=1, s=1),
            "measured: by the model a call of <lambda> takes 0 seconds.\n"
            f"  Got:   {IDLE!r}\n"
            "  Fix:   a Speed above 0, or sizes of a call that does some work",
        ),
        *(
            (
                lambda run, value=value, ask=ask: ask(run)(b=value, s=3),
                f"cost of <lambda>: b={value!r} is not a size.\n"
                "  Fix:   b=128, an integer of at least 0",
            )
            for ask, values in (
                (lambda run: run.cost_model(np.ones((2, 3), np.float32)), NO_SIZES),
                (lambda run: run.cost_model(np.ones((2, 3), np.float32)).seconds, NO_ARRAYS),
            )
            for value in values
        ),
        (
            lambda run: run.cost_model(np.ones((2, 3), np.float32)).seconds(),
            "cost of <lambda>: the sizes are not those of its symbols.\n"
            "  Got:   no sizes\n"
            "  Fix:   (b=128, s=128)",
        ),
    ],
)
def test_a_question_that_has_no_answer_is_told_with_a_way_out(call, text):
    with pytest.raises(sx.ConfigError) as caught:
        call(sx.Exec(lambda x: x + 1, ("b, s",)))
    assert str(caught.value) == text


def test_a_primitive_without_a_row_is_told_and_one_row_ends_that():
    def run():
        fn = lambda x: jax.lax.linalg.tridiagonal_solve(x, x, x, x[:, None])
        return sx.Exec(fn, ("s",)).cost_model(np.ones(5, np.float32))

    (note,) = run().notes
    assert note.startswith("`tridiagonal_solve` has no row: counted by its bytes")
    with pytest.MonkeyPatch.context() as patch:
        row = _table.Row(flops=lambda use: use.made * 8)
        patch.setitem(_table.ROWS, "tridiagonal_solve", row)
        assert run().notes == ()
        assert str(run().flops) == "8*s"


WITHOUT_ROWS = """
    approx_top_k cholesky_update custom_linear_solve debug_callback debug_print eig geqp3 hessenberg
    io_callback ormqr pmax pmin psum pure_callback qr ragged_dot_general random_gamma random_split
    remat2 rng_bit_generator rng_uniform scaled_dot schur symmetric_product tridiagonal
    tridiagonal_solve
"""


def test_each_primitive_with_a_rule_has_a_row_or_is_known_to_have_none():
    counted = {"scan", "while", "cond", *_table.ROWS, *NESTED}
    assert {*RULES} - counted == {*WITHOUT_ROWS.split()}


HARDWARE = [
    ("cpu", "float32", 16),
    ("gpu", "bfloat16", 64),
    ("gpu", "int8", 128),
    ("tpu", "float32", 128),
]


@pytest.mark.parametrize(("device", "dtype", "tile"), HARDWARE)
def test_buckets_for_a_device_are_powers_of_two_up_to_a_tile_and_its_multiples(device, dtype, tile):
    strategy = sx.HardwareAware(dtype, device=device)
    assert strategy.tile == tile
    sx.bucketing.check_laws(strategy)
    for bucket in strategy.buckets_up_to(5000):
        assert bucket % tile == 0 or (bucket < tile and bucket & (bucket - 1) == 0)
    for size in range(tile, 3000, 7):
        assert strategy.bucket(size) < 1.25 * size + tile


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"device": "npu"},
            "device='npu' is not known.\n"
            "  Fix:   one of 'cpu', 'gpu', 'tpu', or None for JAX's own",
        ),
        ({"dtype": "f32x"}, "dtype='f32x' is not a dtype.\n  Fix:   \"float32\", or jnp.bfloat16"),
    ],
)
def test_a_device_or_dtype_that_is_none_is_refused(options, text):
    with pytest.raises(sx.ConfigError) as caught:
        sx.HardwareAware(**options)
    assert str(caught.value) == text


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), None, "fast"])
def test_a_speed_that_no_device_has_is_refused(value):
    with pytest.raises(sx.ConfigError) as caught:
        sx.Speed(seconds_per_flop=1e-11, seconds_per_byte=value)
    assert str(caught.value) == (
        f"seconds_per_byte={value!r} is not a finite number of at least 0.\n"
        "  Fix:   seconds_per_byte=1e-11, say, in seconds"
    )


def test_a_primitive_has_one_row():
    before = dict(_table.ROWS)
    with pytest.raises(sx.ConfigError, match="`dot_general` has a row already"):
        _table.add_row("dot_general", _table.Row())
    assert before == _table.ROWS
