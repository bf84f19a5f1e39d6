"""A cache of a function whose entries live as long as their keys.

`_bounded_table` is the cache for keys that are not unique objects.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class WeakTable(Generic[Key, Value]):
    """A function whose results are kept with its arguments, such as classes.

    Args:
        make: The function. It runs without the lock, so two threads may both run it: the first
            result is kept.
    """

    def __init__(self, make: Callable[[Key], Value]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._values: weakref.WeakKeyDictionary[Key, tuple[Value]] = weakref.WeakKeyDictionary()

    def __call__(self, key: Key) -> Value:
        """The value of the function for a key."""
        found = self._values.get(key)
        if found is None:
            made = (self._make(key),)
            with self._lock:
                found = self._values.setdefault(key, made)
        return found[0]
