"""Real text that every Python has: the docstrings of its standard library, as requests."""

import ast
import functools
import sysconfig
import warnings
from pathlib import Path

import numpy as np

from demo.model import LONGEST

LARGEST_BATCH = 16
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def docstrings() -> tuple[bytes, ...]:
    """Docstrings of the standard library's top-level modules, read from their source."""
    texts = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            tree = ast.parse(path.read_bytes())
        nodes = (node for node in ast.walk(tree) if isinstance(node, _DOCUMENTED))
        texts += [text.encode() for node in nodes if (text := ast.get_docstring(node))]
    return tuple(texts)


def requests(count: int, *, seed: int) -> list[np.ndarray]:
    """Make requests: i32[b, s] with 1 to 16 passages of 1 to 512 bytes.

    The passages of a request are docstrings of nearly the same length, cut to the shortest.
    """
    texts = sorted(docstrings(), key=len)
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        batch = random.integers(1, LARGEST_BATCH + 1)
        first = random.integers(len(texts) - batch + 1)
        size = min(len(texts[first]), LONGEST)
        passages = [list(text[:size]) for text in texts[first : first + batch]]
        made.append(np.array(passages, np.int32))
    return made
