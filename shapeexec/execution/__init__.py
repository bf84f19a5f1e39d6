"""Running: from a call's arguments to its result, by way of a plan and a compiled graph.

How a function is made exact on padded arrays is known to `masking`.
"""

from shapeexec.execution._by_hand import Sizes, pad_to_bucket, unpad
from shapeexec.execution._cache import CacheLimits
from shapeexec.execution._compiling import Compiling
from shapeexec.execution._decorator import bucketed
from shapeexec.execution._events import Event
from shapeexec.execution._exec import Exec
from shapeexec.execution._explain import Explanation
from shapeexec.execution._graphs import Graphs
from shapeexec.execution._handle import Padded
from shapeexec.execution._inference import Specs
from shapeexec.execution._map_method import MapExplanation, MapMethod, MapPlan
from shapeexec.execution._plan import Plan
from shapeexec.execution._row import GraphRow
from shapeexec.execution._stats import Stats
from shapeexec.execution._why import WhyNew
from shapeexec.execution.analysis._advice import Advice, AdviceLine
from shapeexec.execution.analysis._analysis import Analysis
from shapeexec.execution.analysis._uses import BucketUse, TrafficWindow
from shapeexec.execution.saving._load import load

__all__ = [
    "Advice",
    "AdviceLine",
    "Analysis",
    "BucketUse",
    "CacheLimits",
    "Compiling",
    "Event",
    "Exec",
    "Explanation",
    "GraphRow",
    "Graphs",
    "MapExplanation",
    "MapMethod",
    "MapPlan",
    "Padded",
    "Plan",
    "Sizes",
    "Specs",
    "Stats",
    "TrafficWindow",
    "WhyNew",
    "bucketed",
    "load",
    "pad_to_bucket",
    "unpad",
]
