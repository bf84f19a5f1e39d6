"""The cost model of a function, from a trace in which each size is a symbol.

`costing` reads the trace. Graphs are left as they are.
"""

from shapeexec._errors import ConfigError
from shapeexec.bucketing import Pow2
from shapeexec.costing import CostModel, model_of
from shapeexec.execution._cache import CacheLimits
from shapeexec.execution._inference import with_specs
from shapeexec.execution._planner import Planner
from shapeexec.execution._runner import Arguments, Runner
from shapeexec.execution._settings import changed
from shapeexec.execution._store import Store
from shapeexec.program._names import function_name

# A bucket changes no polynomial, and what is exact for a while need not be.
_EVERY_SIZE = {
    "strategies": Pow2(),
    "check": "off",
    "on_unsupported": "exact",
    "missing": "wait",
    "masking": True,
    "padding": "zeros",
}


def cost_model(runner: Runner, arguments: Arguments) -> CostModel:
    """See `Exec.cost_model`."""
    args, kwargs = arguments
    name = function_name(runner.settings.fn)
    example = runner.store.example
    if args or kwargs:
        example = runner.taken(arguments)
    if example is None:
        raise ConfigError(
            f"cost_model: the arguments of {name} are not known yet.",
            option="args",
            got="no example arguments, and no call before",
            fix="pass example arguments, such as jax.ShapeDtypeStruct, or call once before",
        )
    settings = changed(with_specs(runner.current, example), _EVERY_SIZE)
    planner = Planner(settings, Store(CacheLimits()))
    plan = planner.draft(planner.bind(example))
    return model_of(plan.recipe.trace, name=name, sizes=plan.sizes)
