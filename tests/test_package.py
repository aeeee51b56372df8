"""What ``import rangeops`` gives, and what it says beside somebody else's ``plan``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import plan
import rangeops

ROOT = Path(__file__).parent.parent


def imported(folder: Path, script: str = "import rangeops", **also: str) -> str:
    """Run a script that lies in ``folder`` beside further files and return its last line."""
    for name, text in {"script.py": script, **also}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run(
        [sys.executable, str(folder / "script.py")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        cwd=folder,
    )
    return (done.stderr or done.stdout).strip().splitlines()[-1]


def test_all_of_plan_is_reachable_from_rangeops():
    for name in plan.__all__:
        assert getattr(rangeops, name) is getattr(plan, name) and name in rangeops.__all__
    model = rangeops.plan_model(rangeops.models.mlp((4, 3)), rangeops.PlanConfig("sgd"))
    assert isinstance(model, rangeops.MemoryPlan)


def test_everything_public_exists_and_is_listed_in_order():
    assert all(hasattr(rangeops, name) for name in rangeops.__all__)
    constants, classes, functions = (
        [n for n in rangeops.__all__ if kind(n)]
        for kind in (
            str.isupper,
            lambda n: n[0].isupper() and not n.isupper(),
            lambda n: n[0].islower(),
        )
    )
    assert rangeops.__all__ == [*sorted(constants), *sorted(classes), *sorted(functions)]


def test_rangeops_beside_no_other_plan(tmp_path):
    assert imported(tmp_path, "import rangeops; print(rangeops.DType.FP32)") == "DType.FP32"


def test_a_folder_named_plan_without_a_package_is_no_matter(tmp_path):
    (tmp_path / "plan").mkdir()
    assert imported(tmp_path, "import rangeops; print(rangeops.DType.FP32)") == "DType.FP32"


@pytest.mark.parametrize("text", ["steps = 3", "raise RuntimeError('ran')", "no Python at all"])
def test_a_plan_file_beside_the_script_is_one_sentence(tmp_path, text):
    said = imported(tmp_path, **{"plan.py": text})
    assert said == (
        f"ImportError: rangeops: import plan finds {tmp_path}/plan.py, expected rangeops' own "
        f"package {ROOT}/plan/__init__.py; rename it"
    )


def test_a_script_that_is_itself_named_plan_is_one_sentence(tmp_path):
    script = tmp_path / "plan.py"
    said = imported(tmp_path, "import runpy; runpy.run_path('plan.py', run_name='__main__')",
                    **{"plan.py": "import rangeops"})  # fmt: skip
    assert f"import plan finds {script}, expected" in said and said.endswith("; rename it")


@pytest.mark.parametrize("text", ["class PlanError(Exception): ...", "raise RuntimeError('ran')"])
def test_a_plan_package_earlier_on_the_path_is_one_sentence(tmp_path, text):
    site = tmp_path / "site"
    said = imported(tmp_path, f"import sys; sys.path.insert(0, {str(site)!r}); import rangeops",
                    **{"site/plan/__init__.py": text})  # fmt: skip
    assert f"import plan finds {site}/plan/__init__.py, expected" in said
    assert said.startswith("ImportError: ") and said.endswith("; uninstall or rename that package")


def test_a_foreign_plan_imported_before_is_one_sentence(tmp_path):
    said = imported(tmp_path, "import plan, rangeops", **{"plan.py": "steps = 3"})
    assert f"import plan finds {tmp_path}/plan.py, expected" in said


def test_an_overwritten_plan_is_one_sentence(tmp_path):
    """Of two distributions with a package ``plan`` in one environment the later one wins."""
    copy = (ROOT / "rangeops" / "__init__.py").read_text()
    said = imported(tmp_path, **{
        "rangeops/__init__.py": copy, "plan/__init__.py": "from .core import Plan",
    })  # fmt: skip
    assert f"has overwritten {tmp_path}/plan/__init__.py, expected" in said
    assert "pip uninstall plan" in said
