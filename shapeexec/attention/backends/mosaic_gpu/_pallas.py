"""Pallas' modules and MLIR's, each imported when something of it is first used.

A process that finds its kernels in JAX's compilation cache (`_on_disk`) needs none of them, and to
import them takes longer than all else that it does to lower a program.
"""

import importlib
from typing import Any


class _Later:
    """A module that is imported when it is asked for an attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)  # for whoever copies or inspects this
        found = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, found)  # it is not asked for again
        return found


pl: Any = _Later("jax.experimental.pallas")
plgpu: Any = _Later("jax.experimental.pallas.mosaic_gpu")
mgpu: Any = _Later("jax.experimental.mosaic.gpu")
ir: Any = _Later("jaxlib.mlir.ir")
arith: Any = _Later("jaxlib.mlir.dialects.arith")
llvm: Any = _Later("jaxlib.mlir.dialects.llvm")
math: Any = _Later("jaxlib.mlir.dialects.math")
memref: Any = _Later("jaxlib.mlir.dialects.memref")
nvvm: Any = _Later("jaxlib.mlir.dialects.nvvm")
scf: Any = _Later("jaxlib.mlir.dialects.scf")
vector: Any = _Later("jaxlib.mlir.dialects.vector")
