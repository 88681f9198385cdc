"""BERT for question answering."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from helpers.models import Arrays, Config, Dataset, Example, Model, SampleSize, Tensor, float_type
from helpers.models._rounding import bounds
from helpers.models.bert.sizes import POSITIONS, SIZES

if TYPE_CHECKING:
    from torch import nn

    from helpers.models.bert.data import QuestionSet

LENGTH = 384  # tokens of a window unless the experiment says otherwise
INPUTS = (
    "token ids: rows of the vocabulary",
    "segment ids: 0 for the question, 1 for the paragraph",
    "mask: 1 for tokens, 0 for padding",
)
SHORTEST = 128  # tokens: a query has up to 64, and its paragraph needs room
# terms of an output of: query, scores, attention, projection and two more layers; the last layer
_LARGE = SIZES["large"]
_LAYER = [_LARGE.hidden, _LARGE.hidden // _LARGE.heads, LENGTH, *[_LARGE.hidden] * 2]
_SUMS = [*_LARGE.layers * [*_LAYER, 4 * _LARGE.hidden], _LARGE.hidden]


class BERT(Model):
    TITLE = "BERT QA"
    FRAMEWORK = "torch"
    PACKAGES = ("transformers.models.bert.modeling_bert", "tokenizers", "safetensors")
    METRICS: ClassVar = {"f1": "higher", "exact_match": "higher"}  # in percent
    VARIANTS = tuple(SIZES)
    GENERATED = ("generated", "generated-few", "generated-small")  # the second for slow variants
    SAMPLE_SIZES: ClassVar = {"max_seq_length": SampleSize(SHORTEST, POSITIONS, LENGTH, "tokens")}
    RECIPE = (
        *("sizes", "network", "features", "_torch/descent"),
        *("synthetic/generate", "synthetic/fit"),
    )
    BATCH = 8
    BOUNDS = bounds(_SUMS)

    def inputs(self, config: Config) -> tuple[Tensor, ...]:
        """Name the token ids, the segment ids and the input mask."""
        shape = (config.max_seq_length or LENGTH,)
        return tuple(
            Tensor(f"input__{place}", "int32", shape, meaning)
            for place, meaning in enumerate(INPUTS)
        )

    def outputs(self, config: Config) -> tuple[Tensor, ...]:
        """Name the logits of the answer's start and end."""
        dtype, shape = float_type(config), (config.max_seq_length or LENGTH,)
        return tuple(
            Tensor(
                f"output__{place}", dtype, shape, f"a logit for each token: the {end} of the answer"
            )
            for place, end in enumerate(("start", "end"))
        )

    def prepare_dataset(self, config: Config, folder: Path) -> None:
        from helpers.models.bert.synthetic.generate import write_questions

        write_questions(config.dataset, folder)

    def open_dataset(self, config: Config, folder: Path) -> Dataset:
        from helpers.models.bert.squad import FILE

        return self._questions(config, folder, FILE)

    def training_samples(self, config: Config, folder: Path, count: int, seed: int) -> Arrays:
        """Draw windows over the questions of `train-v1.1.json`."""
        from helpers.models._arrays import draw
        from helpers.models.bert.squad import TRAINING

        questions = self._questions(config, folder, TRAINING)
        return questions.batch(draw(len(questions), count, seed).tolist())

    def _questions(self, config: Config, folder: Path, file: str) -> "QuestionSet":
        from helpers.models.bert.data import QuestionSet

        inputs, outputs = (
            [tensor.name for tensor in tensors(config)] for tensors in (self.inputs, self.outputs)
        )
        rows = SIZES[config.variant].rows
        return QuestionSet(folder, config.max_seq_length or LENGTH, rows, inputs, outputs, file)

    def prepare_checkpoint(self, config: Config, dataset: Path, path: Path) -> None:
        """Fit the network to paragraphs that are not in `dataset`."""
        from helpers.models.bert.synthetic.fit import fit

        fit(config.dataset, config.variant, dataset, path)

    def example(self, config: Config, dataset: Dataset, most: int) -> Example:
        from helpers.models.bert.data import QuestionSet
        from helpers.models.bert.display import example

        assert isinstance(dataset, QuestionSet)
        return example(dataset, [tensor.name for tensor in self.outputs(config)])

    def build(self, config: Config, checkpoint: Path) -> "nn.Module":
        from transformers.initialization import no_init_weights

        from helpers.models.bert.checkpoint import load
        from helpers.models.bert.network import QuestionAnswering

        with no_init_weights():  # a checkpoint has all; random ones of BERT-large take 7 s
            # opset 13 has no scaled_dot_product_attention, nor does PyTorch before 2.0
            network = QuestionAnswering(config.variant, basic_operators=config.opset is not None)
        load(checkpoint, network, config.variant)
        return network.eval()


MODEL = BERT()
