"""A program as text, JSON, a flow chart and a table for notebooks."""

import dataclasses
import html.parser
import json
import re

import jax
import jax.numpy as jnp
import pytest

import shapeexec as sx
from shapeexec.program._rows import rows
from tests.execution.support import ones
from tests.program.support import PARAMS, SPECS, block, tokens

P = sx.Pow2()


def softmax(x):
    return jax.nn.softmax(x * 2)


def two_blocks(params, x):
    return block(params, block(params, x)).std()


def block_program():
    return sx.Exec(block, SPECS, buckets=P).trace(PARAMS, tokens(3, 100))


def lines(program):
    return str(program).splitlines()


# Text


def test_a_short_program_prints_an_equation_in_a_line():
    def fn(x):
        return jnp.exp(x).max(axis=1)

    printed = lines(sx.Exec(fn, ("b, s",), buckets=P).trace(ones(3, 5)))
    assert printed[:2] == ["fn(x f32[b,s]) -> f32[b]", "  b = 3 of 4, s = 5 of 8"]
    operation, code = re.split(r" {3,}", printed[2])
    assert operation == "  %0 f32[b,s] = exp x"
    assert re.fullmatch(r"return jnp\.exp\(x\).*  \(test_views\.py:\d+\)", code)
    assert printed[3].split() == ["%1", "f32[b]", "=", "reduce_max[axes=(1,)]", "%0", '"']
    assert printed[4:] == [
        "    mask  reduce_max: f32[b,s] along s: filled with -inf where it is made, "
        "for padding is 1.0",
        "  return %1",
    ]


def test_a_block_of_a_transformer_fits_a_screen():
    printed = lines(block_program())
    assert len(printed) <= 50
    assert max(map(len, printed)) <= 110


@pytest.mark.parametrize("fn", [block, jax.grad(two_blocks)], ids=["block", "gradient"])
@pytest.mark.parametrize("is_expanded", [False, True], ids=["folded", "expanded"])
def test_no_line_is_longer_than_a_screen_is_wide(fn, is_expanded):
    program = sx.Exec(fn, SPECS, buckets=P).trace(PARAMS, tokens(3, 100))
    program = program.expand() if is_expanded else program
    assert max(map(len, lines(program))) <= 110


def test_masks_and_why_are_printed():
    printed = str(sx.Exec(softmax, ("s",), buckets=P).trace(ones(3)))
    assert "    mask  reduce_max: f32[s] along s: filled with -inf where it is made" in printed
    assert "    spared  reduce_sum: f32[s] along s: padding is 0.0" in printed
    assert "for padding is 0.0" in printed


def test_guards_numbers_and_exact_symbols_are_printed():
    def fn(x):
        n = x.shape[0]
        return x.sum() / (n * (n - 1) / 2) if n > 2 else x

    printed = lines(sx.Exec(fn, ("s",), buckets=P).trace(ones(5)))
    assert any(line.startswith("  guard s > 2   <- return x.sum()") for line in printed)
    assert "  host  (s^2 - s) / 2 = 10.0 (float32)" in printed
    ex = sx.Exec(lambda x: jax.new_ref(x)[...], ("s",), buckets=P, on_unsupported="exact")
    assert "  s is exact: no pad-safe rule for `new_ref`" in str(ex.trace(ones(3)))


def test_functions_are_folded_until_they_are_expanded():
    program = sx.Exec(lambda x: jax.nn.silu(x).max(), ("s",), buckets=P).trace(ones(3))
    assert "logistic" not in str(program)
    assert "jit silu x" in str(program)
    assert "= logistic x" in str(program.expand())
    # The mask of a function that is folded stands with its call.
    inner = sx.Exec(jax.jit(lambda x: x.max()), ("s",), buckets=P).trace(ones(3))
    assert "mask  reduce_max" in str(inner)
    assert str(inner).count("mask  reduce_max") == str(inner.expand()).count("mask  reduce_max")


def test_a_loop_names_what_its_body_takes():
    def fn(x):
        return jax.lax.scan(lambda c, row: (c + row.max(), row * 2), 0.0, x)

    expanded = str(sx.Exec(fn, ("b, s",), buckets=P).trace(ones(3, 5)).expand())
    assert "scan[length=b]" in expanded
    assert re.search(r"^    jaxpr\(%\d+ f32\[\], %\d+ f32\[s\]\):$", expanded, re.MULTILINE)
    assert re.search(r"^      return %\d+, %\d+$", expanded, re.MULTILINE)


def test_a_line_of_an_installed_package_is_told_by_the_users_own():
    told = sx.trace(jnp.exp, sx.Shape("float32", "s"))
    (eqn,) = told.equations
    where = "y = net(x)  (own.py:3), through return self.f(x)  (lib.py:9)"
    program = dataclasses.replace(told, equations=(dataclasses.replace(eqn, where=where),))
    assert str(program).splitlines()[1].endswith("exp x   y = net(x)  (own.py:3)")
    assert json.loads(program.to_json())["equations"][0]["where"] == where


def test_many_arguments_are_cut():
    params = [ones(3) for _ in range(200)]
    program = sx.Exec(lambda p, x: sum(p) + x, (None, "3"), buckets=P).trace(params, ones(3))
    assert len(program.inputs) == 201
    head = [line for line in lines(program) if "lines more" in line]
    assert len(head) == 1
    assert len(lines(program)) <= 50


PROGRAMS = {
    "block": block_program,
    "gradient": lambda: sx.Exec(jax.grad(two_blocks), SPECS, buckets=P).trace(PARAMS, tokens(3, 5)),
    "loop": lambda: sx.Exec(
        lambda x: jax.lax.scan(lambda c, row: (c + row.max(), jax.nn.softmax(row)), 0.0, x),
        ("b, s",),
        buckets=P,
    ).trace(ones(3, 5)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("is_expanded", [False, True], ids=["folded", "expanded"])
def test_each_line_reads_what_a_line_above_has_made(name, is_expanded):
    program = PROGRAMS[name]()
    program = program.expand() if is_expanded else program
    known = {v.name for v in (*program.inputs, *program.constants)}
    shown = rows(program)
    for row in shown:
        assert {v.name for v in row.operands if not v.is_literal} <= known
        known |= {v.name for v in row.results}
    assert {v.name for v in program.results} <= known
    # No equation is left out, and none is shown twice.
    assert [id(eqn) for row in shown for eqn in row.equations] == [id(eqn) for eqn in program]


def test_only_what_does_not_fit_shares_a_line():
    assert all(
        len(row.equations) == 1 for row in rows(sx.Exec(softmax, ("s",), buckets=P).trace(ones(3)))
    )
    shared = [row for row in rows(block_program()) if len(row.equations) > 1]
    assert shared
    for row in shared:
        assert len({eqn.where for eqn in row.equations}) == 1
        assert not any(eqn.all_masks for eqn in row.equations)


def test_repr_is_short():
    assert repr(sx.Exec(softmax, ("s",), buckets=P).trace(ones(3))).startswith("Program(softmax, ")


# JSON


def test_json_holds_all_of_a_program():
    program = sx.Exec(lambda x: jax.nn.silu(x).max(axis=1), ("b, s",), buckets=P).trace(ones(3, 5))
    told = json.loads(program.to_json())
    assert told["symbols"] == ["b", "s"]
    assert told["sizes"] == {"b": 3, "s": 5}
    assert told["buckets"] == {"b": 4, "s": 8}
    assert {"dim": "s", "length": 5, "capacity": 8} in told["extents"]
    silu, maximum = told["equations"]
    assert (silu["primitive"], silu["name"]) in {("jit", "silu"), ("custom_jvp_call", "silu")}
    assert "logistic" in json.dumps(silu["bodies"])
    assert maximum["operands"][0]["dims"] == ["b", "s"]
    assert maximum["operands"][0]["dtype"] == "float32"
    assert maximum["operands"][0]["lengths"] == [3, 5]
    assert maximum["operands"][0]["capacities"] == [4, 8]
    assert maximum["rule"] == "Fill"
    assert "test_views.py:" in maximum["where"]
    (mask,) = maximum["masks"]
    assert mask["masked"]
    assert mask["why"].startswith("padding is")
    assert json.loads(program.expand().to_json(indent=2)) == told


def test_json_tells_guards_numbers_and_what_is_exact():
    def fn(x):
        n = x.shape[0]
        return x.sum() / (n * (n - 1) / 2) if n > 2 else x

    told = json.loads(sx.Exec(fn, ("s",), buckets=P).trace(ones(5)).to_json())
    assert [guard["text"] for guard in told["guards"]] == ["s > 2"]
    assert told["numbers"] == [{"text": "(s^2 - s) / 2", "dtype": "float32", "value": "10.0"}]
    assert told["exact"] == {}


# Flow chart


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("is_expanded", [False, True], ids=["folded", "expanded"])
def test_each_arrow_of_a_flow_chart_joins_nodes_that_it_has(name, is_expanded):
    program = PROGRAMS[name]()
    program = program.expand() if is_expanded else program
    head, *rest = program.to_mermaid().splitlines()
    assert head == "flowchart TD"
    nodes = {m[1] for line in rest if (m := re.fullmatch(r'  (\w+)\(?\["[^"]*"\]\)?', line))}
    arrows = [
        m for line in rest if (m := re.fullmatch(r'  (\w+) (?:-->|-\.->)\|"[^"]*"\| (\w+)', line))
    ]
    styles = [line for line in rest if line.startswith(("  class ", "  classDef "))]
    assert len(rest) == len(nodes) + len(arrows) + len(styles)
    assert {end for found in arrows for end in found.groups()} <= nodes
    assert "out" in {found[2] for found in arrows}


def test_a_flow_chart_marks_what_is_masked():
    chart = (
        sx.Exec(lambda x: jnp.exp(x).max(axis=1), ("b, s",), buckets=P)
        .trace(ones(3, 5))
        .to_mermaid()
    )
    assert '  in0(["x"])' in chart
    assert '  n0["exp"]' in chart
    assert '  n1["reduce_max[axes=(1,)]<br>1 mask"]' in chart
    assert '  in0 -->|"f32[b,s]"| n0' in chart
    assert '  n0 -->|"f32[b,s]"| n1' in chart
    assert chart.endswith("  class n1 masked")
    assert "mask" not in sx.trace(jnp.exp, sx.Shape("float32", "s")).to_mermaid()


def test_a_flow_chart_dots_what_a_function_returns_to_its_equation():
    program = sx.Exec(jnp.cumsum, ("s",), buckets=P).trace(ones(3))
    assert "-.->" not in program.to_mermaid()
    assert '  n1 -.->|"f32[s]"| n0' in program.expand().to_mermaid()


def test_what_mermaid_reads_otherwise_is_escaped():
    def fn(x):
        return x['"<#>"'] + 1

    chart = sx.trace(fn, {'"<#>"': sx.Shape("float32", "s")}).to_mermaid()
    assert "in0([\"x['#quot;#lt;#35;#gt;#quot;']\"])" in chart


# Notebooks


class Tags(html.parser.HTMLParser):
    """What stands open, and the strings."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.seen = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(program):
    tags = Tags()
    tags.feed(program._repr_html_())
    assert not tags.open
    return tags


def test_a_notebook_shows_a_row_per_equation_and_opens_functions():
    program = sx.Exec(lambda x: jax.nn.silu(x).max(axis=1), ("b, s",), buckets=P).trace(ones(3, 5))
    tags = read(program)
    text = " ".join(tags.texts)
    assert [tag for tag, _ in tags.seen].count("tr") >= 2 + len(program)
    assert "logistic" in text
    assert "filled with -inf" in text
    assert "%0 f32[b,s] (3, 5) of (4, 8)" in text
    assert ("details", {}) in tags.seen
    assert ("details", {"open": None}) in read(program.expand()).seen


def test_a_notebook_shows_code_as_it_is_written():
    def fn(x):
        return x < x[0]  # <b> & "co"

    assert any('# <b> & "co"' in text for text in read(sx.trace(fn, sx.Shape("float32", 3))).texts)
