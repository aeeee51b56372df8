"""``python -m plan``: the drawing of a layout."""

import sys

import pytest

from plan.__main__ import draw, main
from tests.helpers import small_plan


def test_a_drawing_has_a_line_for_every_region_in_use():
    plan = small_plan("lamb", half="fp16", ema=True)
    lines = list(draw(plan))
    used = [r.name for r in dict.fromkeys(t.region for t in plan)]
    assert [line.split()[0] for line in lines] == ["region", *used, "total"]
    assert f"{plan.total_bytes:,}" in lines[-1]


def test_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["plan", "mlp", "--half", "fp16", "--optimizer", "lars"])
    main()
    said = capsys.readouterr().out
    assert said.startswith("mlp: 6 tensors, 535,818 parameters, lars, half=fp16, ema=False")
    monkeypatch.setattr(sys, "argv", ["plan", "mlp", "--optimizer", "adamax"])
    with pytest.raises(SystemExit):
        main()
    assert "invalid choice: 'adamax'" in capsys.readouterr().err
