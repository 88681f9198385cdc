"""Windows of WordPiece tokens from a question and its paragraph.

Devlin et al., section 4.2 and appendix; the constants are those of the published SQuAD scripts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError

QUERY_TOKENS = 64
STRIDE = 128
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Text:
    """A text's tokens: ids int32 [tokens], first and past-last character int32 [tokens, 2]."""

    ids: Ints
    spans: Ints


@dataclass(frozen=True)
class Window:
    """A part of a question's paragraph: `length` tokens from `start`, at `offset` in a sequence."""

    question: int
    start: int
    length: int
    offset: int


class WordPiece:
    """The lower-case tokenizer of a vocabulary file, whose tokens get the ids of their lines.

    White space is Unicode's, so U+202F too. Raises DataError if a special token is missing or if
    the vocabulary has more than `rows` tokens.
    """

    def __init__(self, path: Path, rows: int) -> None:
        from tokenizers import BertWordPieceTokenizer

        try:
            tokens = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8: {error}") from None
        vocabulary = {token.rstrip("\r"): row for row, token in enumerate(tokens) if token.strip()}
        if missing := [token for token in SPECIAL if token not in vocabulary]:
            raise DataError(f"{path} is not a BERT vocabulary: it lacks {', '.join(missing)}")
        if max(vocabulary.values()) >= rows:
            raise DataError(f"{path} has {len(vocabulary)} tokens, but the network has {rows} rows")
        self._tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=True)
        self.pad, _, self.cls, self.sep = (vocabulary[token] for token in SPECIAL)

    def encode(self, texts: Sequence[str]) -> list[Text]:
        """Tokenize texts, with no special tokens around them."""
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [
            Text(np.array(text.ids, np.int32), np.array(text.offsets, np.int32).reshape(-1, 2))
            for text in encoded
        ]

    def tokens(self, text: Text) -> list[str]:
        """Return the tokens of an encoded text."""
        return [str(self._tokenizer.id_to_token(token)) for token in text.ids.tolist()]

    def sequence(
        self, query: Text, context: Text, window: Window, length: int
    ) -> tuple[Ints, Ints, Ints]:
        """Lay out [CLS] query [SEP] window [SEP] [PAD]: ids, segments, mask, int32 [length]."""
        end = window.offset + window.length
        ids = np.full(length, self.pad, dtype=np.int32)
        ids[0], ids[window.offset - 1], ids[end] = self.cls, self.sep, self.sep
        ids[1 : window.offset - 1] = query.ids[:QUERY_TOKENS]
        ids[window.offset : end] = context.ids[window.start : window.start + window.length]
        places = np.arange(length)
        segments = (places >= window.offset) & (places <= end)
        return ids, segments.astype(np.int32), (places <= end).astype(np.int32)


def windows(question: int, query: int, context: int, length: int) -> list[Window]:
    """Slide over a paragraph; `query`, `context` and the sequences' `length` count tokens."""
    offset = min(query, QUERY_TOKENS) + 2
    room = length - offset - 1
    parts, start = [], 0
    while True:
        size = min(room, context - start)
        parts.append(Window(question, start, size, offset))
        if start + size >= context:
            return parts
        start += min(size, STRIDE)


def fullest(windows: Sequence[Window]) -> Ints:
    """Return for each token of a paragraph the index of the window with most context on both sides.

    A window's score for a token is the smaller number of tokens to its left and right, plus 0.01
    for each token of the window. The first of equal windows wins. int32 [tokens].
    """
    total = windows[-1].start + windows[-1].length
    scores = np.full((len(windows), total), -1.0)
    for index, window in enumerate(windows):
        left = np.arange(window.length)
        score = np.minimum(left, left[::-1]) + 0.01 * window.length
        scores[index, window.start : window.start + window.length] = score
    return np.asarray(scores.argmax(axis=0), dtype=np.int32)
