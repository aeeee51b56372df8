"""``python -m bench`` compares every op, and says so and fails where it does not."""

from __future__ import annotations

import pytest

from bench import __main__ as main
from bench import coverage
from plan.models import mlp
from rangeops import REGISTRY
from rangeops.verify import Verdict

EQUAL = Verdict("ema", {}, 8, None, 0.0)
WRONG = Verdict("ema", {}, 8, "e[3] is 1.0, expected 2.0", 0.0)


@pytest.mark.parametrize("choice", [coverage.fullest, coverage.shown])
def test_every_op_has_a_variant_on_some_plan(choice):
    found = [case for _, some in coverage.cases(mlp((8, 8)), choice) for case in some]
    assert {case.op.name for case in found} == set(REGISTRY)
    assert len({case.name for case in found}) == len(found)


def test_the_fullest_variant_of_an_op_is_one():
    found = [c for _, some in coverage.cases(mlp((8, 8)), coverage.fullest) for c in some]
    assert len(found) == len(REGISTRY)
    (adamw,) = (case.name for case in found if case.op.name == "adamw")
    assert adamw == "adamw half_grad half_copy ema clear_grad"


def run(monkeypatch, verdicts):
    monkeypatch.setattr(coverage, "verdicts", lambda device, quick: iter(verdicts))
    return main.verify("cpu", quick=True, quiet=True)


def test_an_op_that_nothing_compared_fails(monkeypatch, capsys):
    verdicts = [Verdict(name, {}, 8, None, 0.0) for name in REGISTRY]
    assert run(monkeypatch, verdicts) == []
    (sentence,) = run(monkeypatch, verdicts[1:])
    assert sentence.startswith(f"{verdicts[0].op}: got 0 variants compared, expected 1")
    assert "NOT COMPARED" in capsys.readouterr().out


def test_an_op_that_differs_fails(monkeypatch, capsys):
    verdicts = [Verdict(name, {}, 8, None, 0.0) for name in REGISTRY]
    (sentence,) = run(monkeypatch, [*verdicts, WRONG])
    assert sentence == "ema: 1 of 2 variants differ; e[3] is 1.0, expected 2.0"
    assert "expected 2.0" in capsys.readouterr().out


def test_a_refusal_fails_with_its_sentence(monkeypatch, capsys):
    def verdicts():
        yield EQUAL
        raise ValueError("verify: no variant of copy was compared, expected one")

    assert run(monkeypatch, verdicts())[0].startswith("verify: no variant of copy")
    assert "ema" in capsys.readouterr().out
