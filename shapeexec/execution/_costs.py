"""The cost model of a function, from a trace in which each size is a symbol.

`costing` reads the trace. Graphs are left as they are.
"""

from shapeexec._errors import ConfigError
from shapeexec.bucketing import Pow2
from shapeexec.costing import CostModel, model_of
from shapeexec.execution._cache import CacheLimits
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
    other = Runner.of(changed(runner.settings, _EVERY_SIZE), Store(CacheLimits()))
    if args or kwargs:
        call = other.bind(arguments)
    elif runner.store.example is not None:
        call = other.planner.bind(runner.store.example)
    else:
        raise ConfigError(
            f"cost_model: the arguments of {name} are not known yet.",
            option="args",
            got="no example arguments, and no call before",
            fix="pass example arguments, such as jax.ShapeDtypeStruct, or call once before",
        )
    plan = other.planner.draft(call)
    return model_of(plan.recipe.trace, name=name, sizes=plan.sizes)
