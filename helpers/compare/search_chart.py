"""A search as a chart: the gain of each trial with its 95% CI."""

from collections import Counter
from typing import TYPE_CHECKING

from helpers.compare.evaluation import Tuning
from helpers.display import COLOURS, canvas, legend_below, picture

if TYPE_CHECKING:
    from IPython.display import Image

MARKS = {"faster": "D", "measured": "o", "ended early": "v", "over budget": "x", "failed": "+"}


def draw_search(tuning: Tuning) -> "Image":
    """Draw each trial's throughput relative to trial 0, and the fastest so far."""
    figure, axes = canvas("The search", "trial", "throughput relative to trial 0")
    for (state, mark), colour in zip(MARKS.items(), COLOURS, strict=False):
        some = [trial for trial in tuning.trials if trial.state == state and trial.gain]
        for trial in some:
            unit = (trial.gain or 1) / (trial.ratio or 1)
            bounds = [unit * bound for bound in (trial.low, trial.high) if bound]
            axes.plot([trial.number] * len(bounds), bounds, color=colour, linewidth=1)
        if some:
            numbers, gains = [trial.number for trial in some], [trial.gain or 0 for trial in some]
            axes.plot(numbers, gains, mark, color=colour, label=state, linestyle="none")
    best = [trial for trial in tuning.trials if trial.state == "faster"]
    ends = [*(trial.number for trial in best), len(tuning.trials)]
    gains = [trial.gain or 1 for trial in best]
    axes.stairs(gains, ends, baseline=None, color=COLOURS[6], linewidth=1)
    legend_below(figure, axes)
    counts = Counter[str](trial.state for trial in tuning.trials)
    states = ", ".join(f"{counts[state]} {state}" for state in MARKS if counts[state])
    trials = f"Throughput of {len(tuning.trials)} trials relative to trial 0: {states}"
    return picture(figure, f"{trials}; the fastest reaches {max(gains, default=1):.2f}×.")
