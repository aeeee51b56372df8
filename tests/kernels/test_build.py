"""Every kernel variant builds for every GPU, without a GPU, and the machine code is as meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARES = 4
ROOT = Path(__file__).parents[2]


def without_simulator(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python process in which numba compiles."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment | {"PYTHONPATH": f"{ROOT}{os.pathsep}{environment.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("share", range(SHARES))
def test_every_variant_for_every_architecture(share):
    done = without_simulator("-m", "tests.kernels.inspect_builds", str(share), str(SHARES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) >= 15


CACHE = """
import sys
from rangeops import ops
from rangeops.kernels import build
key = (("clip", False), ("half", None), ("half_grad", False))
first = build.native(ops.check_nan.kernel, key, "sm_90")
print(len(first), "numba" in sys.modules, build.cache_key(ops.check_nan.kernel, key, "sm_90"))
"""


def test_the_disk_cache_is_warm_without_numba_and_survives_damage(tmp_path, monkeypatch):
    monkeypatch.setenv("RANGEOPS_CACHE_DIR", str(tmp_path))
    cold, warm = (without_simulator("-c", CACHE).stdout.split() for _ in range(2))
    assert cold[1] == "True" and warm[1] == "False"
    assert cold[0] == warm[0] and cold[2] == warm[2]
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    again = without_simulator("-c", CACHE).stdout.split()
    assert again[1] == "True" and again[0] == cold[0]


def test_the_cache_key_follows_sources_flags_and_architecture(monkeypatch):
    from rangeops import ops
    from rangeops.device import linker
    from rangeops.kernels import build, cache

    kernel = ops.sema_switch.kernel
    key = build.cache_key(kernel, (("swap", True),), "sm_90")
    assert build.cache_key(kernel, (("swap", False),), "sm_90") != key
    assert build.cache_key(kernel, (("swap", True),), "sm_80") != key
    assert build.cache_key(ops.ema.kernel, (("swap", True),), "sm_90") != key
    monkeypatch.setattr(cache, "package_sources", lambda: b"another source")
    assert build.cache_key(kernel, (("swap", True),), "sm_90") != key
    monkeypatch.undo()
    monkeypatch.setattr(cache, "versions", lambda: "numba 0.0")
    assert build.cache_key(kernel, (("swap", True),), "sm_90") != key
    monkeypatch.undo()
    monkeypatch.setattr(linker, "LINK_OPTIONS", ("-lto",))
    assert build.cache_key(kernel, (("swap", True),), "sm_90") != key


def test_a_read_only_cache_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("RANGEOPS_CACHE_DIR", "/proc/none")
    done = without_simulator("-c", CACHE)
    assert done.returncode == 0 and int(done.stdout.split()[0]) > 1000


FIRST_STEP = """
import sys
from plan.models import mlp, plan_model
from rangeops import Arena, OptimizerStep, PlanConfig
arena = Arena(plan_model(mlp((64, 32)), PlanConfig("adamw", half="fp16", ema=True)), device="cpu")
step = OptimizerStep(arena, lr=1e-3, loss_scale=1024.0, clip_norm=1.0)
step()
print(arena.scalars.step, "numba" in sys.modules)
"""


def test_a_warm_process_takes_a_step_on_the_cpu_without_numba(tmp_path, monkeypatch):
    monkeypatch.setenv("RANGEOPS_CACHE_DIR", str(tmp_path))
    cold, warm = (without_simulator("-c", FIRST_STEP).stdout.split() for _ in range(2))
    assert cold == ["1", "True"] and warm == ["1", "False"]


def test_ops_that_share_a_kernel_share_its_code(tmp_path, monkeypatch):
    from rangeops import ops
    from rangeops.kernels import build

    monkeypatch.setenv("RANGEOPS_CACHE_DIR", str(tmp_path))
    assert ops.adam.kernel is ops.adamw.kernel
    flags = tuple(sorted(next(ops.adam.variants()).items()))
    assert build.cpu_object(ops.adam.kernel, flags) == build.cpu_object(ops.adamw.kernel, flags)
    assert len(list(tmp_path.glob("*.o"))) == 1
