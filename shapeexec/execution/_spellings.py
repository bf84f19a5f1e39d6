"""What people call the options of `Exec` elsewhere, told in the words of this library.

The error prints the line that they meant, and this line runs. What options do is not known here.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Never

from shapeexec._errors import ConfigError
from shapeexec.bucketing import Strategy
from shapeexec.execution._options import POSITIONAL, parameters_of
from shapeexec.shape._forms import dim_code, is_dim

_OPTIONS = (
    "in_shapes buckets kwarg_shapes constraints on_unsupported static_argnums static_argnames "
    "donate_argnums examples limits check poison"
).split()
_FOR_BUCKETS = "bucket bucket_sizes bucketing buckets_for padding sizes strategies strategy".split()
_FOR_SHAPES = (
    "arg_shapes in_shape in_specs input_shape input_shapes input_signature input_spec input_specs "
    "polymorphic_shapes shape shapes spec specs"
).split()
_BY_AXES = "axes dynamic_axes dynamic_axis dynamic_dims dynamic_shapes ragged_axes".split()
_NAMES = ("b", "s")  # of axes 0 and 1, if they have none


def refuse(
    fn: Callable[..., Any], options: Mapping[str, Any], in_shapes: Any, buckets: Any
) -> Never:
    """Refuse options that there are not, with the line that was meant.

    Args:
        fn: The function to run.
        options: The options that are not known, with their values.
        in_shapes: The specs that were given beside them, or None.
        buckets: The strategies that were given beside them, or None.

    Raises:
        ConfigError: Always.
    """
    specs = None if in_shapes is None else _code(in_shapes)
    strategies = None if buckets is None else _code(buckets)
    others: list[str] = []
    for name, value in options.items():
        if name in _FOR_BUCKETS:
            strategies = _code(value)
        elif name in _FOR_SHAPES:
            specs = _specs_of_shapes(value)
        elif name in _BY_AXES:
            specs = _specs_of_axes(fn, value)
        elif name == "in_axes":
            specs = _specs_of_in_axes(fn, value)
        elif name != "dynamic":  # what is without a spec is dynamic on axis 0
            others += difflib.get_close_matches(name, _OPTIONS, 1)[:1] or [""]
    told = ", ".join(f"{name}={value!r}" for name, value in options.items())
    raise ConfigError(
        f"Exec has no option {', '.join(map(repr, options))}.",
        got=f"{told:.200}",
        fix=f"the options are {', '.join(_OPTIONS)}"
        if "" in others
        else _line(fn, specs, strategies, options, others),
    )


def _line(
    fn: Callable[..., Any],
    specs: str | None,
    strategies: str | None,
    options: Mapping[str, Any],
    others: Iterable[str],
) -> str:
    name = getattr(fn, "__name__", "fn")
    arguments = [name if name.isidentifier() else "fn"]
    arguments += [] if specs is None else [f"in_shapes={specs}"]
    arguments += [] if strategies is None else [f"buckets={strategies}"]
    arguments += [f"{option}=..." for option in others]
    line = f"sx.Exec({', '.join(arguments)})"
    if "dynamic" in options and specs is None:
        return f"{line}: axis 0 of each array is ragged if no in_shapes are given"
    return line


def _specs_of_shapes(shapes: Any) -> str:
    """What shapes say of which a None or a -1 is a size that changes, as elsewhere."""
    if isinstance(shapes, str) or _is_shape(shapes):
        shapes = (shapes,)
    if not isinstance(shapes, list | tuple):
        return _code(shapes)
    specs = [_spec_of_shape(getattr(shape, "shape", shape)) for shape in shapes]
    return _tuple(specs)


def _spec_of_shape(shape: Any) -> str:
    if not _is_shape(shape):
        return _code(shape)
    return _tuple(["sx.UNKNOWN" if dim in (None, -1) else _code(dim) for dim in shape])


def _is_shape(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(dim is None or is_dim(dim) for dim in value)


def _specs_of_axes(fn: Callable[..., Any], axes: Any) -> str:
    """What axes say that are given for the first argument, by position, or by name."""
    if isinstance(axes, Mapping) and all(isinstance(key, str) for key in axes):
        return _tuple([_spec_of_axes(axes.get(name)) for name in _required(fn)])
    if isinstance(axes, list | tuple) and any(isinstance(one, Mapping) for one in axes):
        return _tuple([_spec_of_axes(one) for one in axes])
    others = len(_required(fn)) - 1
    return _tuple([_spec_of_axes(axes), *["None"] * others])


def _spec_of_axes(axes: Any) -> str:
    if axes is None:
        return "None"
    if isinstance(axes, Mapping):
        named = {axis: _name_of(dim, axis) for axis, dim in axes.items() if dim is not None}
    else:
        listed = axes if isinstance(axes, Iterable) else (axes,)
        named = {axis: _name_of(None, axis) for axis in listed}
    return _spec_of_names({axis: name for axis, name in named.items() if isinstance(axis, int)})


def _spec_of_names(named: Mapping[int, str]) -> str:
    front = {axis: name for axis, name in named.items() if axis >= 0}
    back = {axis: name for axis, name in named.items() if axis < 0}
    entries = [front.get(axis, "_") for axis in range(max(front, default=-1) + 1)]
    entries += ["..."]
    entries += [back.get(axis, "_") for axis in range(min(back, default=0), 0)]
    return f'"{", ".join(entries)}"'


def _name_of(dim: Any, axis: int) -> str:
    name = dim if isinstance(dim, str) else getattr(dim, "__name__", getattr(dim, "name", None))
    if isinstance(name, str) and name.isidentifier():
        return name
    return _NAMES[axis] if 0 <= axis < len(_NAMES) else f"d{axis}".replace("-", "_")


def _specs_of_in_axes(fn: Callable[..., Any], in_axes: Any) -> str:
    """What `in_axes` of `jax.vmap` say: the axis that the examples lie along."""
    if isinstance(in_axes, int):
        in_axes = (in_axes,) * max(1, len(_required(fn)))
    if not isinstance(in_axes, list | tuple):
        return _code(in_axes)
    return _tuple(
        [_spec_of_names({axis: "b"}) if isinstance(axis, int) else "None" for axis in in_axes]
    )


def _required(fn: Callable[..., Any]) -> list[str]:
    """The names of the arguments by position that must be given."""
    return [
        parameter.name
        for parameter in parameters_of(fn)
        if parameter.kind in POSITIONAL and parameter.default is inspect.Parameter.empty
    ]


def _code(value: Any) -> str:
    """A value as people write it, where it is one of specs and strategies."""
    if is_dim(value):
        return dim_code(value)
    if isinstance(value, Strategy):
        return f"sx.{value!r}"
    if isinstance(value, tuple):
        return _tuple(list(map(_code, value)))
    if isinstance(value, list):
        return f"[{', '.join(map(_code, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_code(key)}: {_code(held)}' for key, held in value.items())}}}"
    if isinstance(value, str):
        return f'"{value}"'
    return getattr(value, "__name__", repr(value))


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' * (len(items) == 1)})"
