"""Specs that annotations hold."""

import dataclasses
import functools
from typing import Annotated, NamedTuple, Optional, TypedDict

import jax
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PyTree

from shapeexec import SpecError
from shapeexec.shape._annotated import annotated, check_given, symbols_of, text_at

BS, B = Float[Array, "b s"], Float[Array, "b"]


@pytest.mark.parametrize(
    ("dimensions", "text"),
    [
        ("b s d", "b, s, d"),
        ("b s 512", "b, s, 512"),
        ("... d", "..., d"),
        ("b *rest", "b, ..."),
        ("b *#rest", "b, ..."),
        ("#b", "?"),
        ("?b", "?"),
        ("b _ _heads", "b, _, _"),
        ("*_ b", "..., b"),
        ("b=4 #3", "4, _"),
        ("b+1 2*b-1 b//2", "b+1, 2*b-1, b//2"),
        ("{self.size} b", "_, b"),
        ("", ""),
    ],
)
def test_dimensions_are_specs(dimensions, text):
    def fn(x: Float[Array, dimensions]):
        return x

    assert annotated(fn) == {0: text, "x": text}


@dataclasses.dataclass
class Batch:
    x: BS
    mask: B
    name: str = ""


@dataclasses.dataclass
class Node:
    value: B
    child: Optional["Node"] = None


class Pair(NamedTuple):
    x: BS
    y: int


class Record(TypedDict):
    x: BS
    y: int


@pytest.mark.parametrize(
    ("annotation", "tree"),
    [
        (Batch, {"x": "b, s", "mask": "b"}),
        (Node, {"value": "b"}),
        (Pair, {"x": "b, s", "0": "b, s"}),
        (Record, {"x": "b, s"}),
        (dict[str, Batch], {"x": "b, s", "mask": "b"}),
        (list[BS], "b, s"),
        (tuple[BS, ...], "b, s"),
        (tuple[BS, int, B], {"0": "b, s", "2": "b"}),
        (PyTree[BS], "b, s"),
        (Annotated[BS, "tokens"], "b, s"),
        (BS | None, "b, s"),
        (Optional[BS], "b, s"),  # noqa: UP045 - another type than `BS | None`
        (Float[Array | np.ndarray, "b s"], "b, s"),
        (BS | Int[Array, "b s"], "b, s"),
        (BS | B, None),
        (Array, None),
        (int, None),
        (dict[str, int], None),
    ],
    ids=str,
)
def test_an_annotated_tree_becomes_a_tree_of_specs(annotation, tree):
    def fn(x: annotation):
        return x

    assert annotated(fn) == ({} if tree is None else {0: tree, "x": tree})


@pytest.mark.parametrize(
    ("path", "text"),
    [(("x",), "b, s"), (("mask",), "b"), (("name",), None), (("x", 0), "b, s"), ((), None)],
)
def test_an_array_has_the_spec_of_its_path(path, text):
    assert text_at({"x": "b, s", "mask": "b"}, path) == text


def test_parameters_are_known_by_position_and_by_name():
    def fn(w, x: BS, /, y: B, *rest: B, z: B, **others: B):
        return w, x, y, rest, z, others

    assert annotated(fn) == {1: "b, s", 2: "b", "y": "b", "z": "b"}
    assert symbols_of(annotated(fn)) == {"b", "s"}


def test_annotations_may_be_texts_also_such_that_no_name_has():
    def fn(x: "BS", y: "Missing"):  # noqa: F821 - that is the test
        return x, y

    def known(x: "BS"):
        return x

    assert annotated(fn) == {}
    assert annotated(known) == {0: "b, s", "x": "b, s"}


def fn(x: BS):
    return x.sum()


@pytest.mark.parametrize(
    ("wrapped", "is_read"),
    [
        (jax.jit(fn), True),
        (jaxtyping.jaxtyped(typechecker=None)(fn), True),
        (functools.partial(fn), True),
        (jax.vmap(fn), False),  # its arguments have an axis more
        (jax.grad(fn), False),
        (np.sum, False),
    ],
    ids=["jit", "jaxtyped", "partial", "vmap", "grad", "a ufunc's method"],
)
def test_of_wrappers_only_those_are_looked_through_that_keep_the_shapes(wrapped, is_read):
    assert (annotated(wrapped) != {}) == is_read


def test_dimensions_that_are_no_spec_are_an_error():
    dimensions = "b s**t.u"

    def wrong(x: Float[Array, dimensions]):
        return x

    with pytest.raises(SpecError, match="the annotation of `x` has the dimensions") as caught:
        annotated(wrong)
    assert caught.value.what.endswith('"b s**t.u", which are not a spec.')
    assert caught.value.fix == "give in_shapes=..., which overrides annotations"


@pytest.mark.parametrize(
    ("spec", "is_refused"),
    [
        ("b, 512", False),
        ("n, 512", False),
        ("n, _", False),
        ("n, ...", False),
        (None, False),
        ({"x": "b"}, False),
        ("b, 256", True),
        ("b", True),
        ("b, s, t, ...", True),
    ],
)
def test_given_specs_may_not_contradict(spec, is_refused):
    check = functools.partial(check_given, {0: "b, 512"}, {0: ("in_shapes[0]", spec)})
    if not is_refused:
        return check()
    with pytest.raises(SpecError) as caught:
        check()
    assert caught.value.what == f'in_shapes[0] is "{spec}", but its annotation says "b, 512".'
    assert caught.value.fix == (
        "change one of the two; or leave in_shapes out: the annotation is a spec"
    )
    return None
