"""How clicks are scored: by the order of the predictions, and by their probabilities."""

import numpy as np
from numpy.typing import NDArray


def auc(clicks: NDArray[np.bool_], logits: NDArray[np.float64]) -> float:
    """Give the share of pairs of a click and none that `logits` order rightly; ties count half.

    This is the exact area under the ROC curve; NVIDIA's code approximates it with 8,000 thresholds
    (Keras's AUC). Both arrays are [samples]; a logit that is not a number makes it NaN. `clicks`
    has to hold both kinds.
    """
    from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped, unused-ignore]

    return float(roc_auc_score(clicks, logits)) if np.isfinite(logits).all() else float("nan")


def cross_entropy(clicks: NDArray[np.bool_], logits: NDArray[np.float64]) -> float:
    """Give the mean of -log of the probability that a logit gives to what happened (nats)."""
    with np.errstate(invalid="ignore"):  # what is not a number stays so
        return float(np.logaddexp(0, np.where(clicks, -logits, logits)).mean())
