"""A picture of step times and sweeps; matplotlib is imported only when one is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SWEEPS = {"tensor-sweep": "tensors, 25.6 M parameters in all", "size-sweep": "parameters"}
"""Topic -> the axis of its panel."""


def check(file: Path) -> None:
    """Refuse a file that no picture can be written to, before anything is measured.

    Raises:
        ValueError: no such folder, or an ending that matplotlib does not know.

    """
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if not file.parent.is_dir() or file.suffix.removeprefix(".") not in known:
        raise ValueError(
            f"--plot: got {file}, expected a file in a folder that is there, with one of the "
            f"endings {', '.join(sorted(known))}"
        )


def draw(found: list[dict[str, Any]], file: Path) -> None:
    """Draw whole-model steps as bars, a panel a model, and the sweeps as lines, to ``file``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [r for r in found if r["topic"].startswith("step")]
    models = list(dict.fromkeys(r["case"] for r in chosen))
    sweeps = [t for t in SWEEPS if any(r["topic"] == t for r in found)]
    count = len(models) + len(sweeps)
    figure, panels = pyplot.subplots(count, 1, figsize=(8, 2.6 * count), squeeze=False)
    for panel, model in zip(panels[:, 0], models, strict=False):
        _bars(panel, model, [r for r in chosen if r["case"] == model][::-1])
    for panel, topic in zip(panels[len(models) :, 0], sweeps, strict=True):
        _lines(panel, SWEEPS[topic], [r for r in found if r["topic"] == topic])
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _bars(panel: Any, model: str, rows: list[dict[str, Any]]) -> None:
    bars = panel.barh([r["subject"] for r in rows], [r["ms"] for r in rows])
    panel.bar_label(bars, fmt="%.3g ms", padding=3)
    panel.set_xscale("log")
    panel.set_title(f"{model}: one AdamW step (ms, log scale)", loc="left")
    panel.margins(x=0.25)


def _lines(panel: Any, axis: str, rows: list[dict[str, Any]]) -> None:
    for subject in dict.fromkeys(r["subject"] for r in rows):
        some = [r for r in rows if r["subject"] == subject]
        cases = [int(r["case"].replace(",", "")) for r in some]
        panel.plot(cases, [r["ms"] for r in some], marker="o", label=subject)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel(axis)
    panel.set_ylabel("ms")
    panel.legend(fontsize=7)
