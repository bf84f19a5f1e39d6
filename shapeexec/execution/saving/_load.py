"""An Exec from a directory that another process has saved.

`_saved` finds the saved graph of a call.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shapeexec._errors import ConfigError
from shapeexec.execution._exec import Exec
from shapeexec.execution._function import runner_of, with_found
from shapeexec.execution._options import as_size
from shapeexec.execution.saving import _files
from shapeexec.execution.saving._files import DamagedError
from shapeexec.execution.saving._saved import Saved
from shapeexec.execution.saving._written import OPTIONS, read, written
from shapeexec.shape._inferred import Inferred


def load(
    directory: Any, fn: Callable[..., Any], *shapes: Any, trusted: bool = False, **options: Any
) -> Exec:
    """Make an Exec from a directory of `Exec.save`: its options and, if trusted, its graphs.

    A call whose graph was saved loads it, without masking, lowering or compiling. The function is
    still traced, because a saved graph is found by its trace, and each trace is proven as always.
    If the function, versions, device, flags or options differ, or a file is damaged, the graph is
    compiled again, with one warning that says why.

    **A graph is code, and its file is unpickled: whoever can write to the directory can run any
    code in a process that loads with `trusted=True`.** Without it only JSON is read, which holds
    options and runs nothing.

    Args:
        directory: The directory that `save` wrote.
        fn: The plain function.
        *shapes: `in_shapes` and `buckets`, if they differ from the saved ones.
        trusted: Whether graphs are loaded: whether you know who wrote the directory.
        **options: Options of `Exec` that are not data, such as a strategy that is a function, or
            that override the saved ones, with a warning.

    Returns:
        The Exec. Its statistics start at zero; the saved ones stay in `manifest.json`.

    Raises:
        ConfigError: `directory` is not one, or cannot be read; an option that is not data is
            missing.
        ShapeExecError: Whatever `Exec` raises for the options.

    Example:
        >>> run = sx.Exec(jnp.sum, ("s",))
        >>> _ = run(np.ones(5, np.float32))
        >>> import tempfile
        >>> directory = tempfile.mkdtemp()
        >>> run.save(directory)
        1
        >>> again = sx.load(directory, jnp.sum, trusted=True)
        >>> _ = again(np.ones(6, np.float32))
        >>> again.stats.compiles, again.stats.loads, again.graphs[0].origin
        (0, 1, 'loaded')
    """
    path = _files.checked(directory, is_made=False)
    given = dict(zip(("in_shapes", "buckets"), shapes, strict=False)) | options
    saved, found, sizes = _manifest(path)
    missing = [name for name in saved if saved[name] is None and name not in given]
    if missing:
        raise ConfigError(
            f"load: {missing[0]} could not be saved as data.",
            option=missing[0],
            why="functions and classes of your own are not written into files",
            fix=f"sx.load(directory, fn, {missing[0]}=...)",
        )
    known = {name: read(text) for name, text in saved.items() if text is not None}
    ex = with_found(Exec(fn, **{**known, **given}), found)
    runner = runner_of(ex)
    own = written(runner.settings, runner.store.limits)
    _warn_of_others({name: (saved[name], own[name]) for name in saved if saved[name] != own[name]})
    entries, reasons = _files.read_entries(path) if trusted else ({}, [])
    constraints = runner.settings.constraints
    loaded = Saved(path, entries, constraints=constraints, reasons=reasons, sizes=sizes)
    runner.store.making.use_saved(loaded)
    return ex


def _manifest(
    directory: Path,
) -> tuple[Mapping[str, str | None], tuple[Inferred, ...], list[dict[str, int]]]:
    """The options, the inferred specs, and the buckets of each graph.

    There are none, with a warning, if it is damaged.

    Raises:
        ConfigError: The file is missing, or cannot be read.
    """
    try:
        content: Any = _files.read_json(directory / _files.MANIFEST)
        options: dict[str, str | None] = content["options"]
        if not options.keys() <= OPTIONS:
            raise DamagedError(f"{_files.MANIFEST} is of another format")
        for text in filter(None, options.values()):
            read(text)
        buckets = [graph["buckets"] for graph in content["graphs"] if graph["examples"] is None]
        sizes = [{str(symbol): as_size(size) for symbol, size in own.items()} for own in buckets]
        found = tuple(map(Inferred.from_json, content.get("found", ())))
        return options, found, sizes
    except OSError as error:
        raise _files.unusable(directory, error) from error
    except (DamagedError, ValueError, TypeError, KeyError, AttributeError) as error:
        is_known = isinstance(error, DamagedError)
        reason = str(error) if is_known else f"{_files.MANIFEST} is of another format"
        warnings.warn(
            f"shapeexec: saved options cannot be read: {reason}\n"
            f"  Where: {directory}\n"
            "  Fix:   pass the options to load(); save() writes them again",
            RuntimeWarning,
            stacklevel=3,
        )
        return {}, (), []


def _warn_of_others(others: Mapping[str, tuple[str | None, str | None]]) -> None:
    """Warn of options that are given and differ from those that were saved."""
    given = {name: pair for name, pair in others.items() if pair[0] is not None}
    texts = [f"{name} was {old}, is {new}" for name, (old, new) in given.items()]
    if texts:
        warnings.warn(
            f"shapeexec: options differ from the saved ones: {'; '.join(texts)}\n"
            "  Fix:   leave them out to use the saved ones",
            RuntimeWarning,
            stacklevel=3,
        )
