"""What `command_buffers` counts in the files that XLA dumps."""

import pytest

from benchmarks.command_buffers import counted, kinds_in

BEFORE = """\
001: kKernel [0 | 1] kernel=loop_fusion, profile_annotation=kFusion
002: kGemm (no description)
"""
AFTER = """\
000: kCommandBuffer
  001: kKernel [0 | 1] kernel=loop_fusion, profile_annotation=kFusion
  002: kGemm (no description)
003: kCopy
004: kWhile
  condition:
    005: kKernel kernel=compare
  body:
    006: kCublasLtMatmul
"""
OPTIMISED = """\
HloModule jit_chain, is_scheduled=true

%fused_computation (p: f32[4]) -> f32[4] {
  ROOT %add.1 = f32[4]{0} add(%p, %p), metadata={op_name="jit(chain)/add"}
}

ENTRY %main.2 (x: f32[4]) -> f32[4] {
  %loop_fusion = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused_computation
  %pair.1 = (f32[4]{0}, s32[]) custom-call(%loop_fusion), custom_call_target="f"
  ROOT %copy.3 = f32[4]{0} copy(%loop_fusion)
}
"""
DUMPS = {
    "an optimised program": ({"cpu_after_optimizations": OPTIMISED}, (2, 0)),
    "thunks that no pass changed": (
        {"sm_9.0a_gpu_after_optimizations": OPTIMISED, "thunk_sequence": BEFORE},
        (2, 0),
    ),
    "thunks in a command buffer": (
        {"thunk_sequence": BEFORE, "thunk_sequence_after_thunk_passes": AFTER},
        (4, 1),
    ),
}


@pytest.mark.parametrize("module", ["jit_chain", "jit_shapeexec_chain_b4_s64"])
@pytest.mark.parametrize("dump", DUMPS)
def test_kernels_and_command_buffers_are_counted_in_what_runs(dump, module, tmp_path):
    files, (kernels, buffers) = DUMPS[dump]
    for ending, text in files.items():
        (tmp_path / f"module_0010.{module}.{ending}.txt").write_text(text)
        (tmp_path / f"module_0008.jit_chain.{ending}.txt").write_text("001: kKernel\n")
        (tmp_path / f"module_0012.jit_normal.{ending}.txt").write_text("001: kKernel\n")
    assert counted(kinds_in(tmp_path, "chain")) == {"kernels": kernels, "buffers": buffers}


def test_every_kind_is_told_and_a_kind_that_the_table_lacks_runs_no_kernel(tmp_path):
    (tmp_path / "module_0001.jit_chain.thunk_sequence.txt").write_text(AFTER + "007: kNew\n")
    kinds = kinds_in(tmp_path, "chain")
    assert kinds == {
        "kCommandBuffer": 1,
        "kKernel": 2,
        "kGemm": 1,
        "kCopy": 1,
        "kWhile": 1,
        "kCublasLtMatmul": 1,
        "kNew": 1,
    }
    assert counted(kinds) == {"kernels": 4, "buffers": 1}


def test_a_program_that_was_not_dumped_has_no_kinds(tmp_path):
    assert kinds_in(tmp_path, "chain") == {}
