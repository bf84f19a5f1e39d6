"""The fuzzer: some programs of it, and that it would find errors."""

import dataclasses

import pytest

from shapeexec import checking
from shapeexec.execution import _proofs
from shapeexec.masking._registry import RULES
from tests import fuzz
from tests.fuzzing.programs import Input, Program, Step, make_program

QUICK = (1, 2)
"""Seeds whose programs compile fast."""
SEEDS = [seed if seed in QUICK else pytest.param(seed, marks=pytest.mark.slow) for seed in range(9)]


# Random programs branch on sizes, and overflow.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_runs_as_without_padding(seed):
    verdict = fuzz.run(seed, ("runs",))
    assert verdict.kind not in ("wrong", "crash"), f"{verdict.source}\n{verdict.text}"
    assert verdict.comparisons > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_makes_one_program_of_10_to_20_steps(seed):
    program = make_program(seed)
    assert program == make_program(seed)
    assert 10 <= len(program.steps) <= 20
    assert all(array.size for array in program.arguments())
    read = {name for step in program.steps for name in step.used}
    assert read >= {one.name for one in program.inputs}
    assert set(program.outputs) == {s.name for s in program.steps} - read


def made(*texts: str) -> Program:
    steps = tuple(Step(f"v{i}", text) for i, text in enumerate(texts))
    read = {name for step in steps for name in step.used}
    return Program(
        inputs=(Input("x0", "s, 4", "f"),),
        steps=steps,
        outputs=tuple(step.name for step in steps if step.name not in read),
        sizes={"b": 3, "s": 5, "t": 7},
        seed=1,
        special=False,
    )


def test_a_rule_that_is_broken_is_found_and_the_program_shrunk(monkeypatch):
    kept = RULES["cumsum"]

    def forward_only(ctx, operand, *, axis, reverse, **params):
        return ctx.bind(operand, axis=axis, reverse=reverse, **params)

    monkeypatch.setitem(RULES, "cumsum", dataclasses.replace(kept, apply=forward_only))
    program = made(
        "jnp.tanh(x0)",
        "v0.mean(0)",
        "jax.lax.cumsum(v0, 0, reverse=True)",
        "jnp.sort(v2, 1) + v1",
    )
    verdict = fuzz.check(program)
    assert verdict.kind == "wrong"
    assert "cumsum" in verdict.text
    least, verdict = fuzz.shrunk(program, verdict)
    assert verdict.kind == "wrong"
    assert [step.text for step in least.steps] == ["jax.lax.cumsum(x0, 0, reverse=True)"]
    assert "    v2 = jax.lax.cumsum(x0, 0, reverse=True)\n    return v2," in str(least)


@pytest.mark.parametrize(("number", "kind"), [("jnp.inf", "limit"), ("jnp.nan", "exact")])
def test_a_convolution_by_an_infinite_kernel_may_differ_as_the_readme_says(number, kind):
    program = made(f'jnp.correlate(x0.mean(-1), jnp.full(2, {number}), "full")')
    verdict = fuzz.check(program)
    assert verdict.kind == kind
    assert ("conv_general_dilated: " in verdict.text) == (kind == "limit")


def test_a_convolution_by_a_finite_kernel_may_not_differ(monkeypatch):
    unfilled = dataclasses.replace(
        RULES["conv_general_dilated"], apply=lambda ctx, *xs, **params: ctx.bind(*xs, **params)
    )
    monkeypatch.setitem(RULES, "conv_general_dilated", unfilled)
    verdict = fuzz.check(made('jnp.correlate(x0.mean(-1), jnp.ones(2), "full")'))
    assert verdict.kind == "wrong"
    assert "conv_general_dilated: " in verdict.text


def test_an_error_that_is_not_the_librarys_is_a_crash(monkeypatch):
    def stumbles(ctx, *operands, **params):
        raise IndexError("list index out of range")

    monkeypatch.setitem(RULES, "tanh", dataclasses.replace(RULES["tanh"], apply=stumbles))
    verdict = fuzz.check(made("jnp.tanh(x0)"))
    assert (verdict.kind, verdict.text) == ("crash", "IndexError: list index out of range")


def test_a_trace_that_truly_differs_is_told_from_one_that_does_not(monkeypatch):
    silent = "x0 * (2 if (type)(x0.shape[0]) is int else 3)"
    asked = "x0 * (2 if type(x0.shape[0]) is int else 3)"
    sound, seen = made("jnp.sin(x0)"), []
    for program in (sound, made(silent), made(asked)):
        found = fuzz.traces(program)
        seen.append([(one.is_asked, one.kind) for one in found.differences])
        assert found.checks == 3
    assert seen == [[], [(False, "true")] * 3, [(True, "true")] * 3]
    differs = checking.Outcome(checking.Difference("no difference at all"))
    monkeypatch.setattr(_proofs, "examine", lambda *_, **__: differs)
    both = fuzz.traces(sound) + fuzz.traces(made("x0 + 0 * attempt(lambda: 1, lambda: 2)"))
    kinds = [(one.is_asked, one.kind) for one in both.differences]
    assert kinds == [(False, "false")] * 3 + [(True, "false")] * 3
    assert "1, false, at s=5: no difference at all" in both.differences[0].text
    assert str(both) == (
        "3 checks of programs that ask what is not heard: 0 differ, and so do results; "
        "3 differ, and results are the same\n"
        "3 checks of programs that do not: 0 differ, and so do results; "
        "3 differ, and results are the same (100.00%)"
    )


def test_traces_alone_are_surveyed_without_a_run(capsys):
    assert fuzz.main(["--programs", "1", "--seed", "4", "--only", "traces"]) == 0
    said = capsys.readouterr().out
    assert "1/1 programs in" in said
    assert "0 comparisons" in said
    assert "3 checks of programs that do not" in said


ROW_BY_ROW = """
(lambda f: f.defvjp(lambda x: (x * 2, x), lambda x, c: (jnp.stack([2 * r for r in c]),)) or f)(
    jax.custom_vjp(lambda x: x * 2)
)(x0)
"""


def test_a_refusal_is_told():
    program = dataclasses.replace(made(ROW_BY_ROW.strip().replace("\n", "")), seed=2)
    verdict = fuzz.check(program)
    assert verdict.kind == "exact"  # of its value; the gradient is refused
    assert "as a Python int" in verdict.text


def test_the_command_counts_what_failed(monkeypatch, capsys):
    wrong = fuzz.Verdict(7, "wrong", "text of the error", 3, "def program(x0): ...")
    exact = fuzz.Verdict(8, "exact", "", 4)
    monkeypatch.setattr(fuzz, "run", lambda seed, **_: {7: wrong, 8: exact}[seed])
    assert fuzz.main(["--programs", "2", "--seed", "7"]) == 1
    said = capsys.readouterr().out
    assert "wrong: seed 7\n\ndef program(x0): ...\n\ntext of the error" in said
    assert "2/2 programs in 0 s: 1 exact, 1 wrong" in said
    assert "7 comparisons" in said
    assert fuzz.main(["--programs", "1", "--seed", "8"]) == 0
