"""The names of JAX that may go without notice, with the versions that have them.

Rows are sorted by module. A member of a class stands after its class. Where a name
means something else in another version, the function that uses it says so. `0.10` is 0.10.2.
"""

_EVERY = ("0.10", "0.11", "0.12")
_TABLE = (
    ("jax._src.compilation_cache", "_get_cache is_persistent_cache_enabled", _EVERY),
    (
        "jax._src.config",
        """compilation_cache_check_contents config_ext.Config config_states debug_infs debug_nans
        default_device persistent_cache_min_compile_time_secs threefry_partitionable trace_context
        trace_context_names""",
        _EVERY,
    ),
    (
        "jax._src.core",
        """ShapedArray ShapedArray.mat Tracer _get_shape_sharding_str canonicalize_shape
        concrete_or_error pytype_aval_mappings set_current_trace str_short_aval
        trace_ctx trace_state_clean""",
        _EVERY,
    ),
    (
        "jax._src.cudnn.fused_attention_stablehlo",
        """AttentionLayout MaskType _dot_product_attention_bwd_p
        _dot_product_attention_fwd_p""",
        _EVERY,
    ),
    (
        "jax._src.dtypes",
        """python_scalar_types python_scalar_types_to_dtypes
        register_canonicalize_value_handler register_weak_scalar_type""",
        _EVERY,
    ),
    ("jax._src.export._export", "_call_exported_lowering", _EVERY),
    (
        "jax._src.export.shape_poly",
        """BoundsPrecision.BEST BoundsPrecision.FOR_GEQ0_OR_LT0 Comparator.EQ Comparator.GEQ
        _DimExpr._hash _DimExpr._scope _DimExpr._sorted_terms _DimExpr._to_constant
        _DimFactor.FLOORDIV _bounds_decision""",
        _EVERY,
    ),
    (
        "jax._src.export.shape_poly_decision",
        "_DecisionByElimination._bounds_for_sorted_terms",
        _EVERY,
    ),
    (
        "jax._src.interpreters.ad",
        "GradAccum NullAccum UndefinedPrimal fancy_transposes primitive_transposes",
        _EVERY,
    ),
    (
        "jax._src.interpreters.partial_eval",
        "DynamicJaxprTrace.to_jaxpr_tracer DynamicJaxprTracer._short_repr",
        _EVERY,
    ),
    ("jax._src.lax.control_flow.loops", "_infer_scan_length associative_scan", _EVERY),
    ("jax._src.lax.convolution", "operator", _EVERY),
    (
        "jax._src.lax.lax",
        """_const _convert_element_type _reduce_jvp _sort_le_comparator
        _sort_lt_comparator""",
        _EVERY,
    ),
    ("jax._src.lax.utils", "int_dtype_for_dim int_dtype_for_shape", _EVERY),
    ("jax._src.lib.xla_client", "batched_device_put", _EVERY),
    ("jax._src.mesh", "empty_abstract_mesh", _EVERY),
    ("jax._src.numpy.array_methods", "_IndexUpdateHelper", _EVERY),
    ("jax._src.numpy.fft", "operator", _EVERY),
    (
        "jax._src.numpy.hijax",
        "_searchsorted_impl _searchsorted_scan_impl searchsorted",
        _EVERY,
    ),
    ("jax._src.numpy.hijax", "searchsorted_via_expand", ("0.10", "0.11")),
    ("jax._src.numpy.lax_numpy", "_squeeze", _EVERY),
    ("jax._src.numpy.polynomial", "core lax", _EVERY),
    ("jax._src.random.core", "_gamma_one _shuffle choice permutation", _EVERY),
    ("jax._src.scipy.signal", "_spectral_helper", _EVERY),
    ("jax._src.sharding_impls", "ShardingContext", _EVERY),
    ("jax._src.source_info_util", "current user_context user_frames", _EVERY),
    ("jax._src.util", "cache", _EVERY),
    ("jax._src.xla_bridge", "backends_are_initialized", _EVERY),
    ("jax.experimental.mosaic.gpu.core", "KNOWN_KERNELS", _EVERY),
    (
        "jax.experimental.mosaic.gpu.launch_context",
        "Scratch._find_alloc_load_and_device_ptr Scratch.finalize_size",
        _EVERY,
    ),
    ("jax.extend.backend", "get_backend", _EVERY),
    (
        "jax.extend.core",
        """ClosedJaxpr Jaxpr Literal Primitive Var jaxpr_as_fun jaxprs_in_params
        primitives.closed_call_p""",
        _EVERY,
    ),
    ("jax.extend.random", "threefry2x32_p", _EVERY),
    ("jax.extend.source_info_util", "register_exclusion", _EVERY),
    ("jax.interpreters.ad", "Zero", _EVERY),
    ("jax.interpreters.batching", "primitive_batchers", _EVERY),
    ("jax.interpreters.mlir", "lower_fun", _EVERY),
    ("jax.interpreters.mlir", "register_lowering", _EVERY),
)
VERSIONS: dict[str, tuple[str, ...]] = {
    f"{module}.{name}": versions for module, names, versions in _TABLE for name in names.split()
}
"""By private name of JAX the versions that have it."""
