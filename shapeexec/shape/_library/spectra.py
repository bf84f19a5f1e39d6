"""Short-time Fourier transforms: as many windows as a size says."""

from typing import Any

import jax.numpy as jnp

from shapeexec import _compat


@_compat.stands_in("spectral_helper")
def spectral_helper(original: Any, *args: Any, **kwargs: Any) -> Any:
    """JAX's own, but that there is a time for each window, and windows are not counted in floats.

    It is what `stft`, `csd` and `welch` are made of.
    """
    names = original.__globals__
    windows: list[Any] = []

    def fft_helper(*operands: Any) -> Any:
        result = names["_fft_helper"](*operands)
        windows.append(result.shape[-2])
        return result

    def times(start: float, stop: Any, step: int, dtype: Any) -> Any:
        del stop
        return start + step * jnp.arange(windows[0], dtype=dtype)

    numbers = _compat.ModuleWith(names["jnp"], arange=times)
    return _compat.run_with_names(original, _fft_helper=fft_helper, jnp=numbers)(*args, **kwargs)
