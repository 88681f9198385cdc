"""Training of BERT on the generated questions, in less than a minute on two cores.

Only the first two layers, the embeddings and the last layer are fitted, in every variant: the
questions need no more. The other layers have small random weights that hardly change the answers.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers.models import Config
from helpers.models._synthetic import TrainingLog, lookup_recipe
from helpers.models._torch import state_dict
from helpers.models._torch.descent import mixed_precision, optimizer_step
from helpers.models.bert.data import VOCABULARY
from helpers.models.bert.features import Text, Window, WordPiece, windows
from helpers.models.bert.network import QuestionAnswering
from helpers.models.bert.sizes import SIZES
from helpers.models.bert.synthetic.generate import LONG_EVERY, Asked, write_paragraph

SEED = 0
TRAINING_SEED = 2
FITTED = 2  # layers
DAMPING = 0.05  # factor on the first output weights of the other layers
RECIPES = {  # steps and learning rate of the small network; a wider one has fewer and smaller
    "generated": (240, 1e-3),
    "generated-few": (280, 2e-3),
    "generated-small": (80, 2e-3),
}
WARM_UP = 0.1  # first part of the steps, in which the learning rate rises; then it falls to 0
BATCH_SIZE = 16
TOKENS = 384  # of a window
LARGEST_NORM = 1.0  # of a gradient


def fit(config: Config, dataset: Path, path: Path) -> None:
    """Fit the network to paragraphs that are not in `dataset`; write its state dict to `path`."""
    (steps, rate), size = lookup_recipe(config.dataset, RECIPES), SIZES[config.variant]
    scale = SIZES["small"].hidden / size.hidden
    tokenizer = WordPiece(dataset / VOCABULARY, size.rows)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = QuestionAnswering(config.variant)
    network.eval()  # there is no dropout: no question is seen twice
    encoder, layers = network.bert.encoder, network.bert.encoder.layer
    for layer in layers[FITTED:]:
        layer.attention.output.dense.weight.data *= DAMPING
        layer.output.dense.weight.data *= DAMPING
    encoder.layer = layers[:FITTED]
    _train(network, round(steps * scale), rate * scale**0.5, tokenizer)
    encoder.layer = layers
    state_dict.save(network, path)


def _train(
    network: QuestionAnswering, steps: int, learning_rate: float, tokenizer: WordPiece
) -> None:
    for module in network.modules():
        if isinstance(module, nn.LayerNorm):  # gain 1, bias 0: a second one changes nothing
            module.requires_grad_(False)
    learned = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, fused=True)
    progress = TrainingLog(steps)
    for step in range(1, steps + 1):
        *inputs, labels = training_batch(tokenizer, step)
        with mixed_precision():
            logits = network(*inputs)
        loss = sum(cross_entropy(part.float(), labels[:, i]) for i, part in enumerate(logits)) / 2
        done = step / (steps + 1)
        rate = learning_rate * min(done / WARM_UP, (1 - done) / (1 - WARM_UP))
        optimizer_step(optimizer, loss, rate, LARGEST_NORM)
        progress.say(step, loss.detach())


def training_batch(tokenizer: WordPiece, step: int) -> list[Tensor]:
    """Draw ids, segments and mask int32, and labels int64, for one step.

    As in the evaluation set, every seventh step has long paragraphs, a quarter as many. The labels
    are the indices of the answer's first and last token, or of [CLS] if the window lacks them.
    """
    rng = np.random.default_rng([TRAINING_SEED, step])
    long = step % LONG_EVERY == 0
    samples = []
    for _ in range(BATCH_SIZE // 4 if long else BATCH_SIZE):
        paragraph, every = write_paragraph(rng, long)
        qa = every[int(rng.integers(len(every)))]
        query, context = tokenizer.encode([qa.question, paragraph])
        slid = windows(0, len(query.ids), len(context.ids), TOKENS)
        window = slid[int(rng.integers(len(slid)))]
        sequence = tokenizer.sequence(query, context, window, TOKENS)
        samples.append((*sequence, _label(qa, context, window)))
    *arrays, labels = (np.stack(column) for column in zip(*samples, strict=True))
    shown = int(arrays[2].sum(axis=1).max())
    return [torch.from_numpy(array[:, :shown]) for array in arrays] + [torch.from_numpy(labels)]


def _label(qa: Asked, context: Text, window: Window) -> NDArray[np.int64]:
    first = int(np.searchsorted(context.spans[:, 0], qa.start)) - window.start
    last = int(np.searchsorted(context.spans[:, 1], qa.start + len(qa.answer))) - window.start
    inside = first >= 0 and last < window.length
    return np.array([first, last] if inside else [-window.offset] * 2) + window.offset
