"""Fourier transforms over ragged batches, and at ragged lengths."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import signal

from tests.cases._case import Case
from tests.tolerance import SUMS


def there_and_back(x):
    spectrum = jnp.fft.fft2(x, axes=(0, 2))
    return spectrum, jnp.fft.ifft2(spectrum, axes=(0, 2)), jnp.fft.ifft(x, axis=1)


def of_reals(x):
    half = x + 1j * jnp.cos(x)  # also where its imaginary part has no meaning
    return jnp.fft.rfft(jnp.cos(x)), jnp.fft.irfft(half), jnp.fft.rfft2(x), jnp.fft.ihfft(x, 5)


CASES = (
    Case(
        "stft",
        lambda x: signal.stft(jnp.cos(x), nperseg=4)[1:],
        ("b, s + 3",),
        naive="differs",
    ),
    Case(
        "Fourier transform over a batch",
        lambda x: jnp.abs(jnp.fft.rfft(x)),
        ("b, 8",),
        naive="agrees",
        loose=SUMS,
    ),
    Case("there and back", there_and_back, ("b, 4, s",), dtypes=np.complex64, loose=SUMS),
    Case("transforms of reals", of_reals, ("b, s",), least={"s": 2}, loose=SUMS),
    Case(
        "power at each frequency",
        lambda x: jnp.square(jnp.abs(jnp.fft.fft(jax.nn.tanh(x)))),
        ("b, s",),
        loose=SUMS,
    ),
)
