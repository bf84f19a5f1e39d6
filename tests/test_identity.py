"""Values that another process can identify, and code that it cannot."""

import dataclasses
import functools
import time

import pytest
from jax import lax

from shapeexec import _identity
from shapeexec._identity import UnsaveableError, digest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the library's sources; they are imported when all of them are there."""
    monkeypatch.setattr(_identity, "_ROOT", tmp_path)
    monkeypatch.setattr(_identity, "_IMPORTED", time.time() + 60)
    return tmp_path


def test_an_edited_rule_makes_other_programs(folder):
    (folder / "one.py").write_text("a = 1")
    before = _identity.sources()
    (folder / "one.py").write_text("a = 2")
    changed = _identity.sources()
    (folder / "one.py").rename(folder / "two.py")
    assert len({before, changed, _identity.sources()}) == 3


def test_sources_are_named_by_their_places_in_the_library_wherever_that_is(folder, monkeypatch):
    digests = []
    for root, names in (("here", "ab"), ("there", "ab"), ("elsewhere", "ac")):
        monkeypatch.setattr(_identity, "_ROOT", folder / root)
        for name in names:
            (folder / root / name).mkdir(parents=True)
            (folder / root / name / "_base.py").write_text("one = 1")
        digests.append(_identity.sources())
    assert digests[0] == digests[1] != digests[2]


def test_sources_that_were_changed_after_they_were_imported_are_not_what_runs(folder, monkeypatch):
    (folder / "one.py").write_text("a = 1")
    assert _identity.sources()
    monkeypatch.setattr(_identity, "_IMPORTED", time.time() - 60)
    with pytest.raises(UnsaveableError, match="was changed after it was imported"):
        _identity.sources()


def test_code_without_sources_is_not_known(folder):
    (folder / "one.pyc").write_bytes(b"")
    with pytest.raises(UnsaveableError, match="whose sources are not there"):
        _identity.sources()


def made_by_exec(text, name):
    names = {"functools": functools, "dataclasses": dataclasses}
    exec(text, names)
    return names[name]


OF_EXEC = made_by_exec("class Own: pass", "Own")
FROZEN = made_by_exec("@dataclasses.dataclass(frozen=True)\nclass Own:\n  a: int = 1", "Own")


class Changed(functools.partial):
    """A partial application whose call is the user's."""


UNKNOWN = {
    "a class that exec made": OF_EXEC,
    "a value of one": FROZEN(),
    "a subclass of partial": Changed(lax.add),
    "a function that exec made": made_by_exec("def own(): pass", "own"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_says_that_it_is_python_s_and_is_not_is_refused(name):
    with pytest.raises(UnsaveableError):
        digest(UNKNOWN[name])
    with pytest.raises(UnsaveableError):
        digest({"in": [functools.partial(lax.add, UNKNOWN[name])]})


KNOWN = [int, type(None), {}, functools.partial(lax.add, 1), len, ..., (1, [2.0], {"a": b"b"})]


@pytest.mark.parametrize("value", KNOWN, ids=range(len(KNOWN)))
def test_what_is_python_s_is_known(value):
    assert digest(value) == digest(value)
