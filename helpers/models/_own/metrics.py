"""Scores of the user's model by labels: scikit-learn's metrics by their names."""

import numpy as np

from helpers.errors import DataError
from helpers.models._own import Array

HALF = 0.5  # above it, a probability of one class means that class


def classes(scores: Array) -> Array:
    """Decide a class for each sample: the largest score of several, or a probability above half."""
    flat = scores.reshape(len(scores), -1)
    if flat.dtype.kind != "f":
        return np.asarray(flat[:, 0])
    return np.asarray(flat.argmax(1) if flat.shape[1] > 1 else (flat[:, 0] > HALF).astype(int))


def accuracy(scores: Array, labels: Array) -> float:
    from sklearn.metrics import accuracy_score  # type: ignore[import-untyped, unused-ignore]

    return float(accuracy_score(labels, classes(scores)))


def f1(scores: Array, labels: Array) -> float:
    """Return the F1 score: the mean over the classes if the model scores more than two."""
    from sklearn.metrics import f1_score

    predicted = classes(scores)
    has_two_scores = scores.reshape(len(scores), -1).shape[1] <= 2
    is_binary = has_two_scores and {*np.unique(labels), *np.unique(predicted)} <= {0, 1}
    average = "binary" if is_binary else "macro"
    return float(f1_score(labels, predicted, average=average, zero_division=0))


def auc(scores: Array, labels: Array) -> float:
    """Score by the area under the ROC curve, one class against the rest where there are several."""
    from scipy.special import softmax
    from sklearn.metrics import roc_auc_score

    flat = scores.reshape(len(scores), -1).astype(np.float64)
    if flat.shape[1] <= 2:
        ranked = flat[:, 0] if flat.shape[1] == 1 else flat[:, 1] - flat[:, 0]
        return float(roc_auc_score(labels, ranked))
    present = np.unique(labels)
    places = present.astype(int)
    if (places != present).any() or places.min() < 0 or places.max() >= flat.shape[1]:
        strange = next(label for label in present if label not in range(flat.shape[1]))
        known = f"0 to {flat.shape[1] - 1}"
        raise DataError(
            f"auc: there is a label {strange}, but the model has scores of classes {known}"
        )
    shares = softmax(flat[:, places], axis=1)
    return float(roc_auc_score(labels, shares, multi_class="ovr", labels=present))


def mae(scores: Array, labels: Array) -> float:
    from sklearn.metrics import mean_absolute_error

    rows = len(labels)
    return float(mean_absolute_error(labels.reshape(rows, -1), scores.reshape(rows, -1)))


NAMES = {"accuracy": accuracy, "f1": f1, "auc": auc, "mae": mae}
LOWER = ("mae",)  # is better
