"""A picture of the step times; matplotlib is imported only when one is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def steps(found: list[dict[str, Any]], file: Path) -> None:
    """Draw the whole-model steps as horizontal bars, one panel a model, to ``file``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [r for r in found if r["topic"].startswith("step")]
    models = list(dict.fromkeys(r["case"] for r in chosen))
    figure, panels = pyplot.subplots(len(models), 1, figsize=(8, 2.2 * len(models)), squeeze=False)
    for panel, model in zip(panels[:, 0], models, strict=True):
        some = [r for r in chosen if r["case"] == model][::-1]
        bars = panel.barh([r["subject"] for r in some], [r["ms"] for r in some])
        panel.bar_label(bars, fmt="%.3g ms", padding=3)
        panel.set_xscale("log")
        panel.set_title(f"{model}: one AdamW step (ms, log scale)", loc="left")
        panel.margins(x=0.25)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
