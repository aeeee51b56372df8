"""Every op against float64, written from the formulas of papers and of torch (tests.ops.oracles).

References repeat a rule's order of rounding, so that kernels can equal them to the bit.  What does
not depend on that order is here, and holds the references to the right formula.
"""

from __future__ import annotations

import numpy as np
import pytest

from rangeops import REGISTRY
from tests.kernels.variants import OPS, extreme
from tests.ops import oracles, oracles_scalars  # noqa: F401
from tests.ops.expects import ORACLES
from tests.ops.own import GROUPS
from tests.ops.trial import Trial
from tests.tolerance import UPDATE_ULPS, ulps


def trials():
    """Return every op alone and with all it fuses, and alone with each option that it obeys."""
    found = []
    for op in OPS:
        for flags in op.variants():
            if not extreme(op, flags):
                continue
            options = [{}]
            if op.options:
                options += [{name: not op_default(op, name)} for name in op.options]
            for chosen in options:
                words = [n if v is True else str(v) for n, v in (flags | chosen).items() if v]
                words += [f"no {n}" for n, v in chosen.items() if not v]
                name = "-".join([op.name, *words])
                found.append(pytest.param(op, flags, chosen, id=name))
    return found


def op_default(op, name):
    return (op.settings or {}).get(name, name in ("bias_correction", "grad_averaging"))


def test_every_op_has_an_oracle():
    assert set(ORACLES) == {op.name for op in OPS}


@pytest.mark.parametrize(("op", "flags", "options"), trials())
def test_agrees_with_float64(op, flags, options):
    trial = Trial(op, flags, options).run()
    expected = list(ORACLES[op.name](trial))
    assert expected
    for each in expected:
        assert each.error() <= each.most, each.name


FAMILY = {"sgd": "SGD", "momentum": "SGD", "nesterov": "SGD", "adam": "Adam", "adamw": "AdamW"}


def torch_step(torch, x, name, where):
    """Return a tensor's weights after torch's step on the state and settings that it has."""
    own = x.own(name)
    p = torch.nn.Parameter(torch.tensor(x.p[where]))
    settings = {"lr": own.lr, "weight_decay": own.weight_decay, "maximize": own.on("maximize")}
    family = FAMILY[x.op.name]
    if family == "SGD":
        state = {}
        if x.op.name != "sgd":
            settings |= {"momentum": own.momentum, "dampening": own.dampening}
            settings |= {"nesterov": own.on("nesterov")}
            state = {"momentum_buffer": torch.tensor(x.m[where])} if own.t > 1 else {}
    else:
        family = "AdamW" if own.on("decoupled") else "Adam"
        settings |= {"betas": (own.beta1, own.beta2), "eps": own.eps}
        state = {"step": torch.tensor(float(own.t - 1)), "exp_avg": torch.tensor(x.m[where]),
                 "exp_avg_sq": torch.tensor(x.v[where])}  # fmt: skip
    optimizer = getattr(torch.optim, family)([p], **settings)
    optimizer.state[p].update(state)
    p.grad = torch.tensor(-x.g[where] if own.on("maximize") else x.g[where])
    optimizer.step()
    return p.detach().numpy()


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", FAMILY)
def test_agrees_with_torch(name, maximize):
    """On the same state in float64, every tensor with its group's settings and its own step."""
    torch = pytest.importorskip("torch", reason="the second oracle is torch's optimizers")
    op = REGISTRY[name]
    lacks = {"bias_correction", *(("decay",) if FAMILY[name] == "SGD" else ())}
    groups = {
        tensor: {key: value for key, value in its.items() if key not in lacks}
        for tensor, its in GROUPS.items()
    }
    own = {"dampening": 0.0} if name == "nesterov" else {}  # torch has no dampening with it
    x = Trial(op, next(iter(op.variants())), {"maximize": maximize}, groups, **own).run()
    for tensor, where in x.slices.items():
        theirs = torch_step(torch, x, tensor, where)
        largest = np.maximum(np.abs(x.p[where]), np.abs(theirs))
        inside = largest > 0  # but for the padding
        assert ulps(x.after["p"][where][inside], theirs[inside], largest[inside]) <= UPDATE_ULPS
