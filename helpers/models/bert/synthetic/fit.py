"""How a small BERT is fitted to the generated questions in about a minute on two cores."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers.models._synthetic import FitProgress, recipe_of
from helpers.models._torch import state_dict
from helpers.models._torch.descent import descend
from helpers.models.bert.data import VOCABULARY
from helpers.models.bert.features import WordPiece, windows
from helpers.models.bert.network import QuestionAnswering
from helpers.models.bert.sizes import POSITIONS, SIZES
from helpers.models.bert.synthetic.expand_checkpoint import expanded
from helpers.models.bert.synthetic.generate import LONG, TRAINING_SEED
from helpers.models.bert.synthetic.synthetic_qa import KINDS, write_paragraph

SEED = 0
LEARNING_RATE = 1e-3
WARM_UP = 30  # steps
COOL_DOWN = 0.9  # last part of the steps, in which the learning rate falls to 0
EASY = 0.4  # first part of the steps, which see two or three facts and nothing else
HARDER = 0.3  # part of the steps after it, over which paragraphs become as in the evaluation set
SPREAD = {"linear": 0.05, "embedding": 0.02, "position": 0.01}  # deviation of the first weights
PERIOD, HARMONICS = 32, 8  # of the waves that tell a token's place
HINTED = 1  # layer whose output also tells the kind of fact, which makes it learn in time
TOKENS = 384  # of a window
LONG_EVERY = 6  # steps, once it is no longer easy
BATCH_SIZE = 16
LARGEST_NORM = 1.0  # of a gradient
STEPS = {"generated": 280, "generated-few": 280, "generated-small": 80}


def fit(name: str, variant: str, dataset: Path, path: Path) -> None:
    """Fit the small network to the set `name`, expand it to `variant` and save it at `path`.

    Prints a line every 20 steps. Raises DataError if there is no recipe for the set.
    """
    steps = recipe_of(name, STEPS)
    tokenizer = WordPiece(dataset / VOCABULARY, SIZES["small"].rows)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = fresh_network()
        _train(network, steps, tokenizer)
        state_dict.save(network if variant == "small" else expanded(network, variant), path)


def fresh_network() -> QuestionAnswering:
    """Initialise with small random weights, but positions as waves (Vaswani et al., 2017, section
    3.5) that repeat every PERIOD tokens and stay: what is learned in short paragraphs then holds at
    any place of a long one.

    Layer normalisation keeps gain 1 and bias 0, which makes it idempotent: expanding needs that.
    """
    network = QuestionAnswering("small")
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=SPREAD["linear"])
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=SPREAD["embedding"])
        elif isinstance(module, nn.LayerNorm):
            module.requires_grad_(False)
    table = network.bert.embeddings.position_embeddings.weight.requires_grad_(False)
    turns = torch.arange(POSITIONS)[:, None] * (1 + torch.arange(table.shape[1] // 2) % HARMONICS)
    angles = 2 * torch.pi * turns / PERIOD
    table.data = torch.cat([angles.sin(), angles.cos()], 1) * SPREAD["position"]
    return network


def _train(network: QuestionAnswering, steps: int, tokenizer: WordPiece) -> None:
    width = network.qa_outputs.in_features
    hint = nn.Linear(width, len(KINDS) + 1)
    nn.init.zeros_(hint.weight)
    hidden: list[Tensor] = []
    layer = network.bert.encoder.layer[HINTED]
    hook = layer.register_forward_hook(lambda _, __, output: hidden.append(output))
    learned = [each for each in network.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW([*learned, *hint.parameters()], lr=LEARNING_RATE, fused=True)
    network.eval()  # there is no dropout: no question is seen twice
    progress = FitProgress(steps)
    for step in range(1, steps + 1):
        *inputs, kinds, labels = training_batch(tokenizer, step, steps)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = network(*inputs)
            guessed = hint(hidden.pop())
        shown = inputs[2] > 0
        answer = [cross_entropy(each.float(), labels[:, i]) for i, each in enumerate(logits)]
        loss = sum(answer) / 2 + cross_entropy(guessed[shown].float(), kinds[shown])
        left = (steps - step + 1) / steps
        rate = LEARNING_RATE * min(step / WARM_UP, 1, left / COOL_DOWN)
        descend(optimizer, loss, rate, LARGEST_NORM)
        progress.say(step, loss.detach())
    hook.remove()


def training_batch(tokenizer: WordPiece, step: int, steps: int) -> list[Tensor]:
    """Draw ids, segments and mask int32, kinds and labels int64, for one step.

    The first steps see few facts; then paragraphs grow, and every sixth step sees long ones, a
    quarter as many. A token of the question or of any answer has the number of its kind of fact,
    others 0. A label is the place of the answer's first and last token, or of [CLS] if the window
    lacks them.
    """
    rng = np.random.default_rng([TRAINING_SEED, step])
    hard = min(max((step / steps - EASY) / HARDER, 0.0), 1.0)
    long = hard > 0 and step % LONG_EVERY == 0
    count = BATCH_SIZE // 4 if long else BATCH_SIZE
    samples = [_sample(tokenizer, rng, hard, long) for _ in range(count)]
    *arrays, labels = (np.stack(each) for each in zip(*samples, strict=True))
    shown = int(arrays[2].sum(axis=1).max())
    return [torch.from_numpy(each[:, :shown]) for each in arrays] + [torch.from_numpy(labels)]


def _sample(
    tokenizer: WordPiece, rng: np.random.Generator, hard: float, long: bool
) -> tuple[NDArray[Any], ...]:
    facts = int(rng.integers(2, 4 + round(2 * hard)))
    fillers = int(rng.integers(*LONG)) if long else int(rng.integers(2 + round(4 * hard)))
    paragraph = write_paragraph(rng, facts, fillers)
    chosen = paragraph.asked[int(rng.integers(len(paragraph.asked)))]
    query, context = tokenizer.encode([chosen.question, paragraph.context])
    every = windows(0, len(query.ids), len(context.ids), TOKENS)
    window = every[int(rng.integers(len(every)))]
    sequence = tokenizer.sequence(query, context, window, TOKENS)
    kinds = np.zeros(TOKENS, dtype=np.int64)
    kinds[1 : window.offset - 1] = chosen.kind + 1
    label = np.zeros(2, dtype=np.int64)
    for asked in paragraph.asked:
        end = asked.start + len(asked.answer)
        inside = (context.spans[:, 0] >= asked.start) & (context.spans[:, 1] <= end)
        first, last = np.flatnonzero(inside)[[0, -1]] - window.start
        if first >= 0 and last < window.length:
            kinds[window.offset + first : window.offset + last + 1] = asked.kind + 1
            if asked is chosen:
                label += (window.offset + first, window.offset + last)
    return *sequence, kinds, label
