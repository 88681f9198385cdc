"""The effect of a precision on a model's outputs: by how much they and the predictions change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from helpers.config import Value, artifact_folder
from helpers.display import COLOURS, canvas, legend_below, mark_decades, picture, short
from helpers.inference import open_dataset, require
from helpers.measure import Variant, check, outputs_of, reference_outputs
from helpers.results import ParityCheck
from helpers.store import Artifact, find_artifact
from helpers.triton import convert

if TYPE_CHECKING:
    from IPython.display import Image

MARKS = ("o", "s", "^", "D")


@dataclass(frozen=True)
class PrecisionResult:
    """A model in one precision compared with the reference in fp32, on 64 samples."""

    precision: str
    artifact: Artifact
    check: ParityCheck
    errors: NDArray[np.float64]  # of all outputs, in their standard deviations, sorted
    agreed: int  # predictions equal to the reference's
    gap: float  # the median over samples between the two highest outputs, in deviations

    @property
    def row(self) -> dict[str, Value]:
        """Return its row in a table."""
        return {
            "precision": self.precision,
            "result": "failed" if self.check.failure else "passed",
            "reason": self.check.note,
            "size_mb": self.artifact.size_mb,
            "median difference": f"{np.median(self.errors):.1e}",
            "largest difference": f"{self.errors[-1]:.1e}",
            "equal predictions": f"{self.agreed} of {self.check.samples}",
        }


def compare_precisions(variants: Sequence[Variant]) -> list[PrecisionResult]:
    """Compare each precision's outputs with the reference's; convert the missing ones.

    Differences are in standard deviations of the reference's outputs. Raises `ArtifactError` if the
    export or the reference is missing.
    """
    results = []
    for variant in variants:
        config = variant.config.model_copy(update={"stage": "convert"})
        if find_artifact(artifact_folder(config, "convert")) is None:
            convert(config)
        artifact = require(config, "convert")
        outputs, reference = outputs_of(config, artifact, config.device), reference_outputs(config)
        (name,) = reference  # a classifier has one output
        right, got = reference[name].astype(np.float64), outputs[name].astype(np.float64)
        deviation, highest = right.std(), np.sort(right, axis=1)
        decisions = open_dataset(config).decisions
        result = PrecisionResult(
            variant.name,
            artifact,
            check("converted", config, config.precision, outputs, reference),
            np.sort(np.abs(got - right).ravel()) / deviation,
            int((decisions(reference) == decisions(outputs)).sum()),
            float(np.median(highest[:, -1] - highest[:, -2]) / deviation),
        )
        results.append(result)
        print(f"{variant.name}: {artifact.size_mb:.0f} MB, {result.check.headline}")
    return results


def draw_errors(results: Sequence[PrecisionResult]) -> "Image":
    """Draw for each precision the share of outputs that differ by at most so much."""
    title = "Difference of outputs from the reference (fp32)"
    figure, axes = canvas(title, "difference in standard deviations, log scale", "share of outputs")
    shares = np.linspace(0.01, 1, 100)
    for result, colour, mark in zip(results, COLOURS, MARKS, strict=False):
        errors = np.quantile(result.errors, shares)
        errors[errors == 0] = np.nan  # which have no logarithm
        axes.plot(errors, shares, color=colour, marker=mark, markevery=12, label=result.precision)
    gap = "median gap between the two best classes"
    axes.axvline(results[0].gap, color=COLOURS[6], ls="--", label=gap)
    axes.set_xscale("log")
    mark_decades(axes.xaxis)
    axes.set_ylim(0, 1.02)
    legend_below(figure, axes)
    differences = ", ".join(
        f"{result.precision} {np.median(result.errors):.1e} and {result.errors[-1]:.1e}"
        for result in results
    )
    return picture(
        figure,
        f"Median and largest difference from the reference, in standard deviations: {differences}; "
        f"the median gap between an image's two best classes is {results[0].gap:.2g}.",
    )


def notice_outputs(results: Sequence[PrecisionResult]) -> list[str]:
    """Return the effects of the precisions on the outputs."""
    lines = []
    for result in results:
        errors, parity = result.errors, result.check
        lines.append(
            f"{result.precision}: the median difference is {np.median(errors):.1e} standard "
            f"deviations, the largest {errors[-1]:.1e}; {np.mean(errors > result.gap / 2):.1%} are "
            f"over half the median gap. {result.agreed} of {parity.samples} predictions are equal. "
            + (f"Failed: {parity.failure}." if parity.failure else "The parity check passed.")
            + (f" It was {parity.note}." if parity.note else "")
        )
    sizes = [f"{result.precision} {short(result.artifact.size_mb)} MB" for result in results]
    return [
        *lines,
        f"The median gap between an image's two best classes is {short(results[0].gap)} standard "
        "deviations. A prediction changes only where a difference is as large as the gap.",
        f"File sizes: {', '.join(sizes)}. A file may keep fp32 weights and compute in less.",
    ]
