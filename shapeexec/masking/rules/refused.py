"""Primitives that have no rule on a padded axis, each with its reason.

The interpreter raises the error, with the user's line.
"""

from shapeexec.masking._registry import refuse

_ON_BLOCKS = "it runs on each device's block, and blocks are cut at capacity"
_OPAQUE = "what it computes is compiled already, and shapeexec cannot see which elements it reads"
_IN_PLACE = "it reads and writes memory in place, and a reference has no rule for its padding"
_NVIDIA = "it calls a CUDA library at capacity, which has no operand for the true one"
_SPARSE = "its result lists the nonzero elements, padding among them"
_NEVER = "JAX replaces it before a function is compiled"

for _reason, _names in {
    _ON_BLOCKS: """
        all_gather all_gather_done all_gather_invariant all_gather_reduced
        all_gather_reduced_start all_gather_start all_to_all all_to_all_done all_to_all_start
        axis_index pbroadcast pbroadcast_done pbroadcast_dynamic pbroadcast_start
        ppermute ppermute_done ppermute_start precv preduced psend psum_done
        psum_invariant
        psum_invariant_start psum_start pvary ragged_all_to_all reduce_scatter
        reduce_scatter_done reduce_scatter_start shard_map unreduced_pmax unreduced_pmin
        unreduced_psum unreduced_psum_start unreduced_reduce_scatter
        unreduced_reduce_scatter_start vary_unreduced_cast vary_unreduced_cast_p
        global_array_to_host_local_array host_local_array_to_global_array
    """,
    _OPAQUE: """
        buffer_callback call_exported custom_fusion ffi_call mosaic_gpu_p mpmd_map pallas_call
        tpu_custom_call
    """,
    _IN_PLACE: """
        accum_grad_in_ref addupdate box_get box_set core_map create_linear empty_ref free_ref
        freeze get log_extend log_read new_box new_log new_ref pin run_scoped run_state swap unpin
    """,
    _NVIDIA: """
        cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper
        dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper
        dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper
        dot_product_attention_fwd dot_product_attention_fwd_wrapper rnn_bwd rnn_fwd
        scaled_matmul scaled_matmul_wrapper
    """,
    _SPARSE: """
        bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices
        bcoo_spdot_general bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general
        bcsr_extract bcsr_fromdense bcsr_todense coo_fromdense coo_matmat coo_matvec coo_spmm
        coo_spmv coo_todense csr_fromdense csr_matmat csr_matvec csr_spmm csr_spmv csr_todense
        spsolve todense
    """,
    _NEVER: """
        call_hi_primitive call_hi_primitive_linearized custom_jvp_call_jaxpr custom_lin
        dimension_size empty2 shape_assertion unreachable zeros_like
    """,
    "its check raises from inside of the graph, where padding could fail it": "check",
    "it shows how an array is laid out over devices, which differs at capacity": """
        inspect_sharding
    """,
    "it compares the elements of a window by a function of the user": """
        select_and_scatter
    """,
}.items():
    refuse(*_names.split(), reason=_reason)
