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


def torch_optimizer(torch, x, p):
    """Return torch's optimizer with the state and hyper-parameters of a trial."""
    make = {
        "sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "nesterov": torch.optim.SGD,
        "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
    }[x.op.name]  # fmt: skip
    settings = {"lr": x.lr, "weight_decay": x.weight_decay, "maximize": x.on("maximize")}
    if make is torch.optim.SGD:
        if x.op.name != "sgd":
            settings |= {"momentum": x.momentum, "dampening": x.dampening}
            settings |= {"nesterov": x.op.name == "nesterov"}
        state = {"momentum_buffer": torch.tensor(x.m)} if x.op.name != "sgd" else {}
    else:
        settings |= {"betas": (x.beta1, x.beta2), "eps": x.eps}
        state = {"step": torch.tensor(float(x.t - 1)), "exp_avg": torch.tensor(x.m),
                 "exp_avg_sq": torch.tensor(x.v)}  # fmt: skip
    optimizer = make([p], **settings)
    optimizer.state[p].update(state)
    return optimizer


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam", "adamw"])
def test_agrees_with_torch(name, maximize):
    """On the same state in float64; torch has no groups of its own here, so all of it decays."""
    torch = pytest.importorskip("torch", reason="the second oracle is torch's optimizers")
    op = REGISTRY[name]
    own = {"dampening": 0.0} if name == "nesterov" else {}  # torch has no dampening with it
    x = Trial(op, next(iter(op.variants())), {"maximize": maximize}, **own).run()
    decays = x.decay > 0
    p = torch.nn.Parameter(torch.tensor(x.p))
    optimizer = torch_optimizer(torch, x, p)
    p.grad = torch.tensor(-x.g if maximize else x.g)
    optimizer.step()
    theirs = p.detach().numpy()
    largest = np.maximum(np.abs(x.p), np.abs(theirs))[decays]
    assert ulps(x.after["p"][decays], theirs[decays], largest) <= UPDATE_ULPS
