"""Every private or version-dependent JAX name that the library uses, and nothing else.

An upgrade of JAX is an edit of this package. `private` lists the names with the versions of JAX
that have them. Each module knows one subject:

    avals       arrays and their types
    jaxprs      how jaxprs are read, put together and run
    primitives  primitives and private functions, by name
    settings    the configuration, the state of tracing, the event of a compilation
    places      where a line of code comes from
    layouts     how an array lies in memory
    disk_cache  entries of our own in JAX's compilation cache
    executables compiled programs as bytes, and the settings that change them
    exported    calls of exported programs
    cudnn       the primitives of cuDNN's attention
    kernels     what Pallas offers to write kernels with, and kernels it has lowered
    partitioning functions that run on each device's part of arrays
    dims        symbolic dims, and the questions that code asks of them
    typed       functions whose types are partly unknown, with types

Other rooms import the package and use its names: `from shapeexec import _compat`, then
`_compat.is_literal`. So they say where JAX may change under them, and a name may move to another
module here. A test that looks inside imports the module.
"""

# Other rooms use the names of this package by its name: `_compat.bind`.
# pyright: reportUnusedImport=false

from shapeexec._compat.avals import (  # noqa: F401 - others use it by the name of the package
    ShapedArray,
    array_from_host,
    aval_like,
    aval_of_number,
    committed_sharding,
    describe_aval,
    is_committed,
    is_extended,
    is_traced,
    kind_of_dtype,
    register_numbers,
    spec_of,
    varying_alike,
    with_weak_type,
)
from shapeexec._compat.cudnn import (  # noqa: F401 - others use it by the name of the package
    cudnn_attention,
    cudnn_attention_gradient,
    cudnn_attention_is_known,
)
from shapeexec._compat.dims.bounds import (  # noqa: F401 - others use it by the name of the package
    inconclusive_comparison,
    take_over_bounds,
)
from shapeexec._compat.dims.exchange import (  # noqa: F401 - others use it by the name of the package
    listen_to_dims,
    replay_stand_ins,
)
from shapeexec._compat.dims.functions import (  # noqa: F401 - others use it by the name of the package
    FUNCTIONS_OF_NUMBERS,
    ModuleWith,
    copy_of_dim,
)
from shapeexec._compat.dims.listening import (  # noqa: F401 - others use it by the name of the package
    DimListener,
    JaxDim,
)
from shapeexec._compat.dims.stand_ins import (  # noqa: F401 - others use it by the name of the package
    StandInCall,
    is_symbolic,
    run_with_names,
    stands_in,
)
from shapeexec._compat.dims.transposes import (  # noqa: F401 - others use it by the name of the package
    take_over_transposes,
)
from shapeexec._compat.disk_cache import (  # noqa: F401 - others use it by the name of the package
    add_entry,
    compilation_cache,
    entry_of,
)
from shapeexec._compat.executables import (  # noqa: F401 - others use it by the name of the package
    XLA_VARIABLES,
    compile_settings,
    deserialized,
    devices_of_program,
    serialized,
)
from shapeexec._compat.exported import (  # noqa: F401 - others use it by the name of the package
    call_exported,
)
from shapeexec._compat.jaxprs import (  # noqa: F401 - others use it by the name of the package
    ClosedJaxpr,
    Environment,
    Jaxpr,
    bind_equation,
    closed,
    equations,
    equations_inside,
    evaluate,
    is_literal,
    jaxpr_as_function,
    jaxpr_name,
    jaxpr_of,
    live_equations,
    new_jaxpr,
    new_literal,
    new_variable,
    opened,
    own_settings,
    results_of,
    scan_counts,
    settings_around,
    sub_jaxprs,
    with_equations,
    without_hi_primitives,
)
from shapeexec._compat.kernels import (  # noqa: F401 - others use it by the name of the package
    MosaicKernel,
    begin_mosaic_kernel,
    call_mosaic_kernel,
    compile_mosaic_kernel,
    know_mosaic_kernel,
    lowered_mosaic_kernels,
    mosaic_kernel,
    pallas_has,
    part_of_tiles,
)
from shapeexec._compat.layouts import row_major  # noqa: F401 - others use it by the package's name
from shapeexec._compat.partitioning import (  # noqa: F401 - others use it by the name of the package
    Partition,
    Spec,
    context_of_partitioned,
    partitioned,
)
from shapeexec._compat.places import (  # noqa: F401 - others use it by the name of the package
    FailedCall,
    caller_place,
    conversion_asked,
    describe_line,
    eqn_line,
    error_line,
    error_place,
    failed_call,
    hide_from_places,
    is_asked_by_user,
    is_foreign,
    is_installed,
    told_as,
    user_place,
    without_caller,
)
from shapeexec._compat.primitives import (  # noqa: F401 - others use it by the name of the package
    BODY_OF,
    CALLBACKS,
    UNSAFE_ON_MADE_UP_DATA,
    Primitive,
    body_of,
    gamma_one,
    is_own_primitive,
    jax_function,
    new_identity,
    threefry2x32_p,
)
from shapeexec._compat.settings import (  # noqa: F401 - others use it by the name of the package
    CACHED_EVENT,
    COMPILE_EVENT,
    LOWERED_EVENT,
    cache_of_traces,
    checks_results,
    config_fingerprint,
    current_trace,
    default_device,
    deviating_settings,
    has_devices,
    named_settings,
    threefry_is_partitionable,
    trace_state_clean,
)
from shapeexec._compat.typed import (  # noqa: F401 - others use it by the name of the package
    JaxRuntimeError,
    asarray,
    bind,
    block_until_ready,
    broadcast_in_dim,
    broadcasted_iota,
    cond,
    device_put,
    devices_of,
    dot_general,
    dynamic_index_in_dim,
    einsum,
    empty,
    eval_shape,
    finfo,
    fori_loop,
    gather,
    jit,
    linear_transpose,
    local_device_count,
    make_jaxpr,
    numpy_pad,
    optimization_barrier,
    platform_dependent,
    reduce_sum,
    reduce_window,
    switch,
    with_spec,
    wrap_key_data,
)
