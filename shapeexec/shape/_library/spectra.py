"""Stand-in for short-time Fourier transforms, whose number of windows depends on a size.

The transforms inside are JAX's, and the rules make them pad-safe.
"""

# JAX's C extension has no stubs, so some of JAX's functions have partly unknown types.
# pyright: reportUnknownMemberType=false

from typing import Any

import jax.numpy as jnp

from shapeexec import _compat


@_compat.stands_in("spectral_helper")
def spectral_helper(original: Any, *args: Any, **kwargs: Any) -> Any:
    """JAX's own helper of `stft`, `csd` and `welch`, with one time per window.

    JAX counts the windows in floats; here their number is read off the transform.
    """
    names = original.__globals__
    windows: list[Any] = []

    def fft_helper(*operands: Any) -> Any:
        result = names["_fft_helper"](*operands)
        windows.append(result.shape[-2])
        return result

    def times(start: float, stop: Any, step: int, dtype: Any) -> Any:  # as jnp.arange
        del stop
        return start + step * jnp.arange(windows[0], dtype=dtype)

    numbers = _compat.ModuleWith(names["jnp"], arange=times)
    return _compat.run_with_names(original, _fft_helper=fft_helper, jnp=numbers)(*args, **kwargs)
