"""The Python protocols of an Exec as a function: methods of instances, copies, pickling.

`_exec` has the methods that users call by name.
"""

import copy
import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from shapeexec.execution import _monitor, _options, _pickling
from shapeexec.execution._cache import CacheLimits
from shapeexec.execution._learning import learner_of
from shapeexec.execution._method import method_of, without_self
from shapeexec.execution._runner import Runner
from shapeexec.execution._settings import Settings, changed, check_pins
from shapeexec.execution._split import FUNCTION, has_parts
from shapeexec.execution._store import Store
from shapeexec.execution.saving._saved import may_fit
from shapeexec.shape._inferred import Inferred

_METHODS = threading.RLock()
"""Held while an Exec becomes a method, so that all instances share one store of graphs."""


class Function:
    """A runner and its limits, as a descriptor that is copied and pickled without its graphs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        raise NotImplementedError  # `Exec` has it

    def _start(self, settings: Settings, limits: CacheLimits) -> None:
        check_pins(settings, limits.pin)
        self._limits = limits
        name = _options.name_of(settings.fn)
        store = Store(
            limits,
            settings.missing,
            compiling=settings.compiling,
            name=name,
            make_learner=functools.partial(learner_of, settings),
        )
        self._runner = Runner.of(settings, store)
        store.note_places({FUNCTION} if has_parts(settings.fn) else ())
        self._method: Self | None = None
        self._is_method = False
        _monitor.listen()
        functools.update_wrapper(self, settings.fn, updated=())
        if getattr(settings.fn, "__isabstractmethod__", False):
            self.__isabstractmethod__ = True  # read by `abc`

    def __get__(self, instance: Any, owner: type | None = None) -> Self:
        """Bind to an instance: an Exec of the arguments behind `self`, with shared graphs.

        `self` is an argument: its arrays are data, everything else is constant. So instances that
        differ in arrays only share graphs, and attributes are read at each call.
        """
        with _METHODS:
            if self._method is None:
                method = self._like(without_self(self._runner.settings))
                method._is_method = True
                self._method = method
        return self._method if instance is None else self._method._of_self(instance)

    def __copy__(self) -> Self:
        return self._like(self._runner.current)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        settings = self._runner.current
        fn = copy.deepcopy(settings.fn, memo)
        other = self._of(changed(settings, {"fn": fn}), self._limits)
        # A saved graph is found by its trace, and the copy of `fn` has the same one.
        other._runner.store.making.use_saved(self._runner.store.making.saved)
        return other

    def __reduce__(self) -> Any:
        made = self._of, (self._runner.current, self._limits)  # without its graphs
        return _pickling.reduced(self, Function, made=made)

    @classmethod
    def _of(cls, settings: Settings, limits: CacheLimits) -> Self:
        ex = cls.__new__(cls)
        ex._start(settings, limits)
        return ex

    def _like(self, settings: Settings, *, limits: CacheLimits | None = None) -> Self:
        """An Exec with other settings, and the saved graphs of this one if one may fit."""
        own, other = self._runner, self._of(settings, limits or self._limits)
        if may_fit(own.settings, settings):
            other._runner.store.making.use_saved(own.store.making.saved)
        return other

    def _receiver(self, args: Sequence[Any]) -> tuple[Runner, Sequence[Any]]:
        """The runner, of the instance that is the first argument if this is a method."""
        if self._is_method:
            return self._runner.with_function(method_of(self._runner.settings.fn, args)), args[1:]
        return self._runner, args

    def _of_self(self, instance: Any) -> Self:
        """The method of an instance."""
        runner, _ = self._receiver((instance,))
        bound = type(self).__new__(type(self))
        vars(bound).update(vars(self), _runner=runner, _is_method=False)
        vars(bound)["__wrapped__"] = runner.settings.fn  # read by `inspect.signature`
        return bound


Own = TypeVar("Own", bound=Function)


def with_found(ex: Own, found: tuple[Inferred, ...]) -> Own:
    """An Exec with the same options and inferred specs from another process."""
    settings = runner_of(ex).settings
    if not found or settings.in_shapes is not None:
        return ex
    return ex._like(dataclasses.replace(settings, found=found))  # pyright: ignore[reportPrivateUsage] - beside its class


def runner_of(ex: Function) -> Runner:
    """The runner of an Exec, for tools that look inside."""
    return ex._runner  # pyright: ignore[reportPrivateUsage] - the one door into it
