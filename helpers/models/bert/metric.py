"""Metrics of answers: SQuAD v1.1's exact match and F1.

Rajpurkar et al., section 6.1: texts are compared in lower case, without punctuation, articles and
extra white space. Of several accepted answers the best counts.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def score(pairs: Iterable[tuple[str, Sequence[str]]]) -> dict[str, float]:
    """Return mean F1 and exact match, in percent, of predictions and their accepted answers."""
    every = [
        (
            max(f1(prediction, answer) for answer in answers),
            max(words(prediction) == words(answer) for answer in answers),
        )
        for prediction, answers in pairs
    ]
    return {
        "f1": 100 * sum(overlap for overlap, _ in every) / len(every),
        "exact_match": 100 * sum(exact for _, exact in every) / len(every),
    }


def f1(prediction: str, answer: str) -> float:
    """Return the harmonic mean of precision and recall of the common words; 0 if none."""
    ours, theirs = words(prediction), words(answer)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def words(text: str) -> list[str]:
    """Normalise a text and split it at white space."""
    return ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split()
