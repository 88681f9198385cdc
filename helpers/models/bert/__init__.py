"""BERT for question answering."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from helpers.models import Config, Dataset, Model, SampleSize, Split, Tensor, float_type
from helpers.models._rounding import tolerances_for
from helpers.models.bert.sizes import POSITIONS, SIZES

if TYPE_CHECKING:
    from torch import nn

LENGTH = 384  # tokens of a window unless the experiment says otherwise
INPUTS = (
    "token ids: rows of the vocabulary",
    "segment ids: 0 for the question, 1 for the paragraph",
    "mask: 1 for tokens, 0 for padding",
)
OUTPUTS = [f"a logit for each token: the {end} of the answer" for end in ("start", "end")]
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
    BATCH = 8
    TOLERANCES = tolerances_for(_SUMS)

    def inputs(self, config: Config) -> tuple[Tensor, ...]:
        """Describe the token ids, the segment ids and the input mask."""
        shape = (config.max_seq_length or LENGTH,)
        return tuple(Tensor(f"input__{n}", "int32", shape, text) for n, text in enumerate(INPUTS))

    def outputs(self, config: Config) -> tuple[Tensor, ...]:
        """Describe the logits of the answer's start and end."""
        dtype, shape = float_type(config), (config.max_seq_length or LENGTH,)
        return tuple(Tensor(f"output__{n}", dtype, shape, text) for n, text in enumerate(OUTPUTS))

    def open_dataset(self, config: Config, folder: Path, split: Split = "test") -> Dataset:
        from helpers.models.bert.data import QuestionSet
        from helpers.models.bert.squad import FILES

        inputs, outputs = ([t.name for t in of(config)] for of in (self.inputs, self.outputs))
        length, rows = config.max_seq_length or LENGTH, SIZES[config.variant].rows
        return QuestionSet(folder, length, rows, inputs, outputs, FILES[split])

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
