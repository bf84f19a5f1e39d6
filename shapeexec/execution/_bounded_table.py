"""A table that empties itself when it is full, for values that are cheap to make again.

`_cache` is for values that are expensive to make; it drops the least recently used.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_MOST = 8192

Value = TypeVar("Value")


class BoundedTable(Generic[Value]):
    """A bounded number of values by key; the caller makes a missing value again.

    Attributes:
        get: The value of a key, or None; each hit asks it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Hashable, Value] = {}
        self.get = self._values.get

    def __setitem__(self, key: Hashable, value: Value) -> None:
        with self._lock:
            if len(self._values) >= _MOST:
                self._values.clear()
            self._values[key] = value

    def drop_where(self, is_gone: Callable[[Value], bool]) -> None:
        """Forget the values for which `is_gone` is True."""
        with self._lock:
            held = list(self._values.items())
        gone = [key for key, value in held if is_gone(value)]
        with self._lock:
            for key in gone:
                self._values.pop(key, None)

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()
