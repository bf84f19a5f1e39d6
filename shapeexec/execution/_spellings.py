"""Options under the names of other libraries, translated to options of `Exec`.

The error prints the line that the user meant, and this line runs. `_options` reads the options
themselves.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Never

from shapeexec._code import code
from shapeexec._errors import ConfigError, SpecError
from shapeexec.execution._narrow import is_iterable, is_listed, is_mapping
from shapeexec.execution._options import POSITIONAL, parameters_of
from shapeexec.shape import UNKNOWN, Dim
from shapeexec.shape._forms import axis_name, is_dim, is_size, text_of_axes

_OPTIONS = (
    "in_shapes buckets kwarg_shapes constraints on_unsupported static_argnums static_argnames "
    "donate_argnums examples limits check missing compiling on_memory returns poison masking "
    "padding"
).split()
_FOR_BUCKETS = "bucket bucket_sizes bucketing buckets_for sizes strategies strategy".split()
_FOR_SHAPES = (
    "arg_shapes in_shape in_specs input_shape input_shapes input_signature input_spec input_specs "
    "polymorphic_shapes shape shapes spec specs"
).split()
_BY_AXES = "axes dynamic_axes dynamic_axis dynamic_dims dynamic_shapes ragged_axes".split()
_AUTOMATIC, _STATIC = ("AUTO", "DYNAMIC"), "STATIC"  # foreign dims without a name


@dataclasses.dataclass(frozen=True)
class _Meant:
    """The meaning of foreign options, as options of `Exec`.

    Attributes:
        options: The options of `Exec`, by name.
        notes: Remarks for the error.
    """

    options: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def check(
    fn: Callable[..., Any], options: Mapping[str, Any], *, in_shapes: Any, buckets: Any
) -> None:
    """Refuse unknown options, with the line that was meant.

    Args:
        fn: The function to run.
        options: The unknown options, with their values.
        in_shapes: The specs that were given beside them, or None.
        buckets: The strategies that were given beside them, or None.

    Raises:
        ConfigError: There is an unknown option.
        SpecError: `in_shapes` is a mapping.
    """
    if options and callable(fn):
        _refuse(fn, options, in_shapes=in_shapes, buckets=buckets)
    if is_mapping(in_shapes):
        _refuse_mapping(fn, in_shapes)


def _refuse(
    fn: Callable[..., Any], options: Mapping[str, Any], *, in_shapes: Any, buckets: Any
) -> Never:
    meant = {"in_shapes": in_shapes, "buckets": buckets}
    meant = {name: value for name, value in meant.items() if value is not None}
    notes: list[str] = []
    renamed: dict[str, str] = {}
    for name, value in options.items():
        own = _meant(fn, name, value=value)
        if own is None:
            renamed = {}
            break
        renamed[name] = " and ".join(f"{option}=" for option in own.options)
        meant |= own.options
        notes += own.notes
    if "dynamic" in options and "in_shapes" not in meant:
        notes += ["calls show which sizes change if no in_shapes are given"]
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    raise ConfigError(
        f"Exec has no option {', '.join(map(repr, options))}.",
        option=next(iter(options)),
        got=f"{given:.200}",
        fix=_way_out(fn, meant, renamed=renamed, notes=notes)
        if renamed
        else f"the options are {', '.join(_OPTIONS)}",
    )


def _refuse_mapping(fn: Callable[..., Any], in_shapes: Mapping[Any, Any]) -> Never:
    """Refuse specs by the names of arguments, or axes by their position, given as `in_shapes`.

    Raises:
        SpecError: Always.
    """
    meant = _by_argument(fn, in_shapes, spec_of=_spec_of_axes)
    known = {"in_shapes": "a sequence of specs"}
    raise SpecError(
        f"in_shapes={in_shapes!r:.200} is not a sequence of specs.",
        path="in_shapes",
        fix=_way_out(fn, meant.options, renamed=known, notes=meant.notes),
    )


def _meant(fn: Callable[..., Any], name: str, *, value: Any) -> _Meant | None:
    """The meaning of one foreign option; None: it is not known."""
    if name in _FOR_BUCKETS:
        return _Meant({"buckets": _instance(value)})
    if name in _FOR_SHAPES:
        return _by_argument(fn, value, spec_of=_spec_of_shape)
    if name in _BY_AXES:
        return _by_argument(fn, value, spec_of=_spec_of_axes)
    if name == "in_axes":
        every = (value,) * max(1, len(_required(fn))) if is_size(value) else value
        return _by_argument(fn, every, spec_of=_spec_of_in_axes)
    if name == "dynamic":  # what an Exec without specs is by itself
        return _Meant({})
    close = difflib.get_close_matches(name, _OPTIONS, 1)
    return _Meant({close[0]: value}) if close else None


def _instance(value: Any) -> Any:
    """A strategy, if its class was given and needs no arguments; other values unchanged."""
    try:
        return value() if isinstance(value, type) else value
    except TypeError:
        return value


def _way_out(
    fn: Callable[..., Any],
    meant: Mapping[str, Any],
    *,
    renamed: Mapping[str, str],
    notes: Iterable[str],
) -> str:
    """The line that was meant; in words, if a value has no source."""
    name = getattr(fn, "__name__", "fn")
    given = [option for option in _OPTIONS if option in meant]
    sources = [code(meant[option]) for option in given]
    if None in sources:
        pairs = [f"{own or 'nothing'} in the place of {name}=" for name, own in renamed.items()]
        return ", ".join(pairs)
    items = [f"{option}={source}" for option, source in zip(given, sources, strict=True)]
    line = ", ".join([name if name.isidentifier() else "fn", *items])
    return ": ".join([f"sx.Exec({line})", *("; ".join([*notes]),) * bool([*notes])])


def _by_argument(fn: Callable[..., Any], given: Any, *, spec_of: Callable[[Any], Any]) -> _Meant:
    """Specs of all arguments, from a value for the first one, by position, or by name."""
    if is_mapping(given) and given and all(isinstance(key, str) for key in given):
        return _by_name(fn, {name: spec_of(own) for name, own in given.items()})
    if is_listed(given) and not _is_one(given, spec_of):
        return _Meant({"in_shapes": tuple(map(spec_of, given))})
    others = 0 if spec_of is _spec_of_shape else len(_required(fn)) - 1
    return _Meant({"in_shapes": (spec_of(given), *(None,) * others)})


def _is_one(given: Sequence[Any], spec_of: Callable[[Any], Any]) -> bool:
    """Whether a list or tuple describes one array, and not one array per entry."""
    if spec_of is _spec_of_shape:
        return _is_shape(given)
    return spec_of is _spec_of_axes and not any(
        isinstance(one, Mapping | list | tuple) for one in given
    )


def _by_name(fn: Callable[..., Any], specs: Mapping[str, Any]) -> _Meant:
    """Specs by the names of arguments; if no name is known they are taken in their order.

    An unknown name, which may be the name of a result, is reported in a note.
    """
    parameters = {
        parameter.name: parameter
        for parameter in parameters_of(fn)
        if parameter.kind is not inspect.Parameter.VAR_POSITIONAL
    }
    any_name = [n for n, p in parameters.items() if p.kind is inspect.Parameter.VAR_KEYWORD]
    for name in any_name:
        del parameters[name]
    notes: list[str] = []
    if not any_name and not specs.keys() & parameters.keys():
        arguments = [n for n, p in parameters.items() if p.kind in POSITIONAL] or [*specs]
        renamed = dict(zip(specs, arguments, strict=False))
        notes += [
            f"no argument is called `{name}`, taken for `{own}`"
            for name, own in renamed.items()
            if name != own
        ]
        left = [name for name in specs if name not in renamed]
        specs = {own: specs[name] for name, own in renamed.items()}
        parameters = parameters or dict.fromkeys(arguments)
    else:
        left = [] if any_name else [name for name in specs if name not in parameters]
    notes += [f"no argument is called `{name}`" for name in left]
    by_position = [n for n, p in parameters.items() if p is None or p.kind in POSITIONAL]
    needed = [*_required(fn), *(name for name in by_position if name in specs)]
    count = max((by_position.index(name) + 1 for name in needed), default=0)
    options = {"in_shapes": tuple(specs.get(name) for name in by_position[:count])}
    named = {n: spec for n, spec in specs.items() if n not in by_position and n not in left}
    return _Meant(options | ({"kwarg_shapes": named} if named else {}), tuple(notes))


def _spec_of_shape(shape: Any) -> Any:
    """The spec for a shape in which None or -1 stands for a size that changes."""
    own = getattr(shape, "shape", shape)
    if _is_shape(own):
        return tuple(UNKNOWN if dim is None or _is_minus_one(dim) else dim for dim in own)
    return _below(own, _spec_of_shape)


def _is_shape(value: Any) -> bool:
    return is_listed(value) and all(dim is None or is_dim(dim) for dim in value)


def _is_minus_one(dim: Any) -> bool:
    return is_size(dim) and dim == -1


def _spec_of_axes(axes: Any) -> Any:
    """The spec of one array, from positions of its axes, with or without names, or from dims."""
    if axes is None:
        return None
    if isinstance(axes, str) and "," in axes:
        return axes
    if axes is UNKNOWN or _own_name(axes) is not None:
        return f"{_text_of_dim(axes, 0)}, ..."
    if is_mapping(axes) and all(map(is_size, axes)):
        return text_of_axes(
            {int(axis): _name_of(dim, axis) for axis, dim in axes.items() if not _is_static(dim)}
        )
    if is_size(axes):
        return text_of_axes({int(axes): axis_name(int(axes))})
    if isinstance(axes, Mapping) or not is_iterable(axes):
        return _below(axes, _spec_of_axes)
    entries = list(axes)
    if all(map(is_size, entries)):
        return text_of_axes({int(axis): axis_name(int(axis)) for axis in entries})
    if any(isinstance(entry, Mapping | list | tuple) for entry in entries):
        return _below(axes, _spec_of_axes)
    return ", ".join(_text_of_dim(dim, axis) for axis, dim in enumerate(entries))


def _text_of_dim(dim: Any, axis: int) -> str:
    if dim is UNKNOWN or dim is ...:
        return "?" if dim is UNKNOWN else "..."
    if _is_static(dim):
        return "_"
    return str(dim) if is_dim(dim) else _name_of(dim, axis)


def _is_static(dim: Any) -> bool:
    return dim is None or _own_name(dim) == _STATIC


def _own_name(dim: Any) -> Any:
    """The name of a dim: a string, or the name of another library's symbol or typed dim."""
    dim = getattr(dim, "type", dim)
    return dim if isinstance(dim, str) else getattr(dim, "__name__", getattr(dim, "name", None))


def _name_of(dim: Any, axis: int) -> str:
    if isinstance(dim, Dim):
        return str(dim)
    name = _own_name(dim)
    if isinstance(name, str) and name.isidentifier() and name not in _AUTOMATIC:
        return name
    return axis_name(axis)


def _spec_of_in_axes(axes: Any) -> Any:
    """The spec for an entry of `in_axes` of `jax.vmap`: the axis of the examples."""
    if is_size(axes):
        return text_of_axes({int(axes): "b"})
    return None if axes is None else _below(axes, _spec_of_in_axes)


def _below(tree: Any, spec_of: Callable[[Any], Any]) -> Any:
    """The specs of the arrays in a container; anything else itself."""
    if is_mapping(tree):
        return {key: spec_of(own) for key, own in tree.items()}
    if is_listed(tree):
        own = list(map(spec_of, tree))
        return own if isinstance(tree, list) else tuple(own)
    return tree


def _required(fn: Callable[..., Any]) -> list[str]:
    """The names of the arguments by position that must be given."""
    return [
        parameter.name
        for parameter in parameters_of(fn)
        if parameter.kind in POSITIONAL and parameter.default is inspect.Parameter.empty
    ]
