"""What takes a process of its own: nothing is compiled twice, JAX's own cache, several devices."""

import json
import os
import subprocess
import sys

import numpy as np

from tests.execution.saving.support import W, data, saved
from tests.processes import on_devices

SCRIPT = """
import json, sys
import jax, numpy as np
import shapeexec as sx
from tests.execution.saving.support import W, attend, data
events = []
jax.monitoring.register_event_duration_secs_listener(lambda name, seconds, **_: events.append(name))
run = sx.load(sys.argv[1], attend, trusted=True)
results = [np.asarray(run(W, data(*size))).tolist() for size in [(3, 5), (4, 7), (1, 1)]]
stats = run.stats
counts = stats.loads, stats.compiles, stats.hits
json.dump([results, events, counts, run.settings.in_shapes], sys.stdout)
"""


def test_a_second_process_compiles_and_lowers_nothing(tmp_path):
    run = saved(tmp_path, (3, 5), (1, 1))
    again = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    results, events, counts, in_shapes = json.loads(again.stdout)
    for result, size in zip(results, [(3, 5), (4, 7), (1, 1)], strict=True):
        np.testing.assert_array_equal(np.float32(result), run(W, data(*size)))
    assert counts == [2, 0, 0 + 1]
    assert not [name for name in events if "backend_compile" in name or "to_mlir" in name]
    assert in_shapes == [None, "b, s, 4"]


CACHED = """
import sys
import jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1] + "/jax")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
import shapeexec as sx
from tests.execution.saving.support import SPECS, W, attend, data, told
for number in range(2):
    jax.clear_caches()
    run = sx.Exec(attend, SPECS)
    run(W, data())
    with told() as texts:
        count = run.save(f"{sys.argv[1]}/{number}")
    print(count, *texts)
"""


def test_what_jax_had_in_its_own_cache_is_not_saved_from_a_cpu(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", CACHED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    first, second, *_ = run.stdout.splitlines()
    assert first == "1"
    assert second == (
        "0 shapeexec: 1 graphs are not saved: b=4, s=8: it came from JAX's own compilation cache"
    )


SEVERAL = """
import sys
import jax
import numpy as np
import shapeexec as sx
from tests.execution.saving.support import SPECS, W, attend, data
mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
places = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")), jax.devices()[3], None
run = sx.Exec(attend, SPECS)
xs = [data(4, 8) if place is None else jax.device_put(data(4, 8), place) for place in places]
expected = [run(W, x) for x in xs]
assert run.save(sys.argv[1]) == 3
again = sx.load(sys.argv[1], attend, trusted=True)
for _ in range(2):
    for x, wanted in zip(xs, expected, strict=True):
        result = again(W, x)
        np.testing.assert_array_equal(result, wanted)
        assert result.sharding == wanted.sharding
assert (again.stats.loads, again.stats.compiles, again.stats.hits) == (3, 0, 3)
"""


def test_graphs_of_several_devices_are_loaded(tmp_path):
    on_devices(4, "-c", SEVERAL, str(tmp_path))
