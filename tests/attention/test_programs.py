"""How the programs of a Hopper kernel share items, and in which order pieces come."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shapeexec.attention.masks import Causal, Documents, Full

if jax.__version_info__ < (0, 11):
    pytest.skip("jax < 0.11 has no interpreter for these kernels", allow_module_level=True)

from jax.experimental import io_callback
from jax.experimental.pallas import mosaic_gpu as plgpu

from shapeexec.attention.backends import mosaic_gpu
from shapeexec.attention.backends.mosaic_gpu import _forward, _prepared, _schedule
from tests.attention.hopper import CASES, IDS, Case, extreme_bias
from tests.attention.interpreted import assert_as_formulas, assert_forward_is_right, interpreted

pytestmark = pytest.mark.usefixtures("no_races")


@pytest.mark.parametrize(
    "case",
    [
        Case("causal", Causal(), queries=100, heads=(1, 1)),
        Case("long, valid lengths", Full(), 128, 640, (1, 1), sizes=([70], [600])),
        Case("no second half", Documents(IDS[:, :40], IDS), queries=40, heads=(1, 1)),
        Case("nothing to attend to", Full(), 128, heads=(1, 1), sizes=([128], [0])),
    ],
    ids=lambda case: case.name,
)
def test_two_programs_share_a_tile_if_there_is_only_one(case):
    assert_forward_is_right(case)


@pytest.mark.parametrize(
    "case",
    [
        # More pieces than places, the first one to be cleared.
        Case("the last keys cut", Full(), 100, 600, (1, 1), (128, 128)),
        Case(
            *("ragged", Full(), 192, 640, (1, 1), (128, 128), 3),
            sizes=([192, 33, 130], [600, 1, 257]),
            piece=128,
        ),
        Case(
            *("ragged, causal", Causal(), 384, 300, (2, 1), (64, 64), 4),
            sizes=([384, 200, 129, 0], [300, 129, 5, 128]),
            piece=128,
        ),
        Case(
            *("ragged, causal, a bias", Causal(), 200, 300, (1, 1), (40, 128), 2),
            sizes=([200, 130], [257, 300]),
            bias=extreme_bias(200, 300),
        ),
        Case("a tile more", Causal(128), 200, 300),
        Case("a tile less", Causal(-128), 300, 200),
        Case("a key more: two tiles may be partial", Causal(1), 300, 300, (1, 1)),
    ],
    ids=lambda case: case.name,
)
def test_the_forward_pass_is_right_from_whichever_end_rows_are_taken(case):
    assert_forward_is_right(case)


@pytest.mark.parametrize(
    ("items", "programs", "shared"),
    [(1, 8, True), (3, 8, True), (4, 8, True), (5, 8, False), (3, 7, True), (4, 7, False)],
)
def test_each_half_of_an_item_has_one_program_where_half_of_them_would_idle(
    items, programs, shared
):
    nothing = dict.fromkeys(("posts", "ready", "free", "products", "counter", "word"))
    halves = []
    for program in range(programs):
        queue = _schedule.Programs(
            table=SimpleNamespace(total=jnp.int32(items)),
            me=jnp.int32(program),
            count=programs,
            copies=1,
            together=1,
            halves=True,
            **nothing,
        )
        first = int(queue.first())
        works = [w for w in range(2) if not queue.rests(jnp.int32(w))]
        halves += [(first, w) for w in works if first < items]
        assert int(queue.following(jnp.int32(first))) >= items
    assert len(halves) == len(set(halves)) == 2 * items
    assert queue.rests(jnp.int32(0)) | queue.rests(jnp.int32(1)) == shared


INT = jax.ShapeDtypeStruct((), np.int32)


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 3), (1, 1), (1, 3), (2, 8), (3, 3)])
def test_an_item_is_looked_up_once_between_pieces_that_are_sent_once_and_in_order(first, count):
    events = []

    def tell(event, carry):
        def append(event, carry):
            events.append(int(event))
            return np.int32(carry)

        return io_callback(append, INT, event, carry, ordered=True)

    look_up = _schedule.LookUp(
        call=lambda: (tell(-1, 5), jnp.int32(7)), before=(jnp.int32(0), jnp.int32(0))
    )

    @jax.jit
    def sent(first, count):
        send = lambda i, carry: tell(i, carry + i)
        return look_up.amid(send, jnp.int32(0), first=first, count=count)

    total, following = jax.tree.map(int, sent(jnp.int32(first), jnp.int32(count)))
    assert (total, following) == (sum(range(count)), (5, 7))
    jax.effects_barrier()
    assert events == [*range(first), -1, *range(first, count)]


@pytest.mark.parametrize("count", [0, 3, 4, 5, 9])
def test_the_next_item_is_looked_up_late(count):
    look_up = _schedule.LookUp(call=lambda: jnp.int32(7), before=jnp.int32(0))
    firsts = []

    class Seen(_schedule.LookUp):
        def amid(self, send, initial, *, first, count):
            firsts.append(int(first))
            return super().amid(send, initial, first=first, count=count)

    last, following = Seen(look_up.call, look_up.before).late(
        lambda i, _: i, jnp.int32(-1), jnp.int32(count)
    )
    assert (int(last), int(following)) == (count - 1, 7)
    assert firsts == [max(count - _schedule._LAST, 0)]


@pytest.mark.parametrize("is_due", [True, False])
def test_who_is_not_due_keeps_what_was_known(is_due):
    look_up = _schedule.LookUp(call=lambda: jnp.int32(7), before=jnp.int32(3))
    assert int(look_up.only_if(jnp.bool_(is_due))()) == (7 if is_due else 3)


def test_programs_share_items_of_queries(monkeypatch):
    case = Case("", Full(), queries=77, heads=(1, 1))
    q, k, v, _ = (jnp.asarray(x, case.dtype) for x in case.operands())
    traced = []
    monkeypatch.setattr(_forward._Kernel, "skip", lambda _, item, start: traced.append(1) or start)
    backend = mosaic_gpu.MosaicGpu(plgpu.InterpretGPUParams())
    jax.eval_shape(lambda: backend.forward(case.signature, case.work(), q=q, k=k, v=v, bias=None))
    jax.clear_caches()
    assert traced


@pytest.mark.parametrize("case", ["one tile", "no keys at all"])
def test_there_may_be_more_programs_than_items(case, monkeypatch):
    monkeypatch.setattr(_prepared, "_INTERPRETED_PROGRAMS", 8)
    (case,) = [one for one in CASES if one.name == case]
    assert_as_formulas(case, *interpreted(case, detect_races=True))
