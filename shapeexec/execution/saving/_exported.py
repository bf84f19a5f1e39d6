"""Programs before XLA compiles them, by `jax.export`: for a machine that no executable fits.

XLA compiles such a program again; masking and lowering are skipped. Only `save(portable=True)`
writes them. Their format is FlatBuffers, which hold no Python code, but a program is code by
itself: they are read only if trusted, as executables are.
"""

import dataclasses
import importlib.util
import time
from typing import Any

import jax
import jax.export

from shapeexec import _compat
from shapeexec._errors import ConfigError
from shapeexec.execution._compile import Graph, Outline, Prepared, prepare
from shapeexec.execution._permission import permitted
from shapeexec.shape import _trees

_KERNELS = (b"mosaic_gpu", b"tpu_custom_call")
"""Calls of Pallas kernels that JAX exports; JAX refuses Triton kernels itself."""


class NotExportedError(Exception):
    """A graph has no form that another machine can compile."""


def check_may_export() -> None:
    """Check that `flatbuffers` is installed, with which JAX writes exported programs.

    Raises:
        ConfigError: It is not installed.
    """
    if importlib.util.find_spec("flatbuffers") is None:
        raise ConfigError(
            "save: flatbuffers is not installed.",
            option="portable",
            got="portable=True",
            why="jax.export writes programs with it",
            fix="pip install flatbuffers, or leave portable=True out",
        )


def exported(graph: Graph) -> bytes:
    """The program of a graph that was made in this process.

    Raises:
        NotExportedError: JAX cannot export it, or would not export the program that was compiled.
    """
    outline = graph.outline
    if len(_compat.devices_of_program(graph.compiled)) > 1:
        raise NotExportedError("it runs on several devices")
    if (outline.config, outline.settings) != (
        _compat.config_fingerprint(),
        _compat.compile_settings(),
    ):
        raise NotExportedError("JAX's settings have changed since it was made")
    try:
        with permitted():
            program = jax.export.export(graph.jitted)(*outline.arguments)
        if any(name in program.mlir_module_serialized for name in _KERNELS):
            raise NotExportedError("it holds a kernel that was written for one kind of device")
        if any(getattr(aval, "weak_type", False) for aval in program.out_avals):
            raise NotExportedError("a result has a weak type, which jax.export does not keep")
        # Flat, for trees may have nodes that JAX cannot write.
        arguments = _trees.structure(((*range(len(program.in_avals)),), {}))
        results = _trees.structure((*range(len(program.out_avals)),))
        flat = dataclasses.replace(program, in_tree=arguments, out_tree=results)
        return bytes(flat.serialize())
    except NotExportedError:
        raise
    except Exception as error:  # of any kind: a rule's, or the format's
        text = f"JAX cannot export it: {type(error).__name__}: {error!s:.200}"
        raise NotExportedError(text) from error


def imported(payload: bytes, outline: Outline, *, began: float) -> Prepared:
    """A program that `exported` wrote, as the masked function of an outline.

    Args:
        payload: The bytes.
        outline: The inputs from which it was made.
        began: When reading began, by `time.perf_counter`, in seconds.

    Raises:
        Exception: It does not fit these arguments, platform or versions; of any kind.
    """
    program = jax.export.deserialize(bytearray(payload))
    tree = outline.recipe.result_tree
    if len(program.out_avals) != tree.num_leaves:
        raise ValueError("the program returns another number of arrays")  # `_saved` warns

    def body(*arguments: Any) -> Any:
        return _trees.unflatten(tree, _compat.call_exported(program, _trees.leaves(arguments)))

    prepared = prepare(outline, body=body)
    with permitted():
        prepared.trace().lower()  # what does not fit is found here; JAX keeps the result
    seconds = dataclasses.replace(prepared.seconds, mask=0.0, load=time.perf_counter() - began)
    return dataclasses.replace(prepared, seconds=seconds, is_exported=True)
