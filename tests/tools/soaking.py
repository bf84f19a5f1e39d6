"""Small soaks, and services whose calls a test makes by hand."""

import os
from pathlib import Path

from shapeexec.tools.soaking import _run, _traffic
from shapeexec.tools.soaking._compare import Expected, Shape
from shapeexec.tools.soaking._faults import Faults
from shapeexec.tools.soaking._models import MODELS
from shapeexec.tools.soaking._outcome import Soak
from shapeexec.tools.soaking._services import WAYS, services
from shapeexec.tools.soaking._traffic import Traffic, shapes_of

BY_NAME = {model.name: model for model in MODELS}
BY_WAY = {way.name: way for way in WAYS}
SIZES, GUARDS, RAGGED = (BY_NAME[name] for name in ("sizes", "guards", "ragged"))


def by_name(row):
    return row.name


def soak(**changes):
    given = {"minutes": 0.05, "threads": 4, "models": [SIZES], "ways": [BY_WAY["plain"]]}
    return _run.run(Soak(**(given | {"rates": {}} | changes)), lambda line: None)


def served(*, model=SIZES, way="plain", rates=None, directory=Path(os.devnull)):
    """A service, and its traffic."""
    faults = Faults(0, rates or {})
    (service,) = services(faults, directory, models=[model], ways=[BY_WAY[way]])
    traffic = Traffic(0, [service], shapes_of([model], seed=0, count=40), Expected())
    return service, traffic, faults


def drawn(service, operation, *shapes):
    return _traffic.Draw(0, 0, 0, service, operation, shapes, 0)


def at(model, **sizes):
    return Shape(model, tuple(sizes.items()))
