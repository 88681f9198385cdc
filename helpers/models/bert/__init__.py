"""BERT for question answering: what is its own, behind the names of `helpers.models.Model`."""

from pathlib import Path
from typing import Any

from helpers.errors import ParameterError
from helpers.models import Dataset, Tensor
from helpers.models.bert.sizes import POSITIONS, SIZES

TITLE = "BERT QA"
VARIANTS = tuple(SIZES)
FRAMEWORK = "torch"
METRICS = {"f1": "higher", "exact_match": "higher"}  # in percent
# 3 to 4 times the largest differences measured with fitted checkpoints, over 64 windows ("base" and
# "large": 8), on a CPU with AVX-512 and bf16: ONNX Runtime and OpenVINO at fp32 1.3e-5 and 1.8e-6,
# OpenVINO and PyTorch at bf16 5.2e-2 and 8.8e-3, PyTorch at fp16 7.3e-3 and 1.1e-3
BOUNDS = {"fp32": (4.5e-5, 7e-6), "bf16": (0.18, 0.03), "fp16": (0.028, 0.004)}
GENERATED = ("generated", "generated-few", "generated-small")  # the second is for slow variants
RECIPE = ("sizes", "network", "features", "stories", "generate", "fit", "grow")
BATCH = 8

LENGTH = 384  # tokens of a window unless the experiment says otherwise
SHORTEST = 128  # tokens: a query has up to 64, and its paragraph needs room


def inputs(config: Any) -> tuple[Tensor, ...]:
    """Name the token ids, the segment ids and the input mask.

    Raises ParameterError if the sequence is too short for a question or longer than BERT's
    positions.
    """
    return tuple(Tensor(f"input__{place}", "int32", (_length(config),)) for place in range(3))


def outputs(config: Any) -> tuple[Tensor, ...]:
    """Name the logits of the answer's start and end."""
    dtype = "float16" if config.export_precision == "fp16" else "float32"
    return tuple(Tensor(f"output__{place}", dtype, (_length(config),)) for place in range(2))


def prepare_dataset(config: Any, folder: Path) -> None:
    """Generate the set `config.dataset` in `folder`; raise DataError if there is no such set."""
    from helpers.models.bert.generate import write_questions

    write_questions(config.dataset, folder)


def open_dataset(config: Any, folder: Path) -> Dataset:
    """Open a set that was made here or a folder that holds SQuAD's questions and a vocabulary;
    raise DataError for another layout.
    """
    from helpers.models.bert.data import QuestionSet

    names = [[tensor.name for tensor in inputs(config)], [f"output__{place}" for place in range(2)]]
    return QuestionSet(folder, _length(config), SIZES[config.variant].rows, *names)


def prepare_checkpoint(config: Any, dataset: Path, path: Path) -> None:
    """Fit a checkpoint to the set `config.dataset`, on paragraphs that are not in `dataset`.

    The larger variants compute what the fitted small network computes.
    """
    from helpers.models.bert.fit import fit

    fit(config.dataset, config.variant, dataset, path)


def build(config: Any, checkpoint: Path) -> Any:
    """Build the network in evaluation mode.

    Raises CheckpointError unless every tensor of `checkpoint` has its place.
    """
    from helpers.models.bert.checkpoint import load
    from helpers.models.bert.network import QuestionAnswering

    network = QuestionAnswering(config.variant)
    load(checkpoint, network, config.variant)
    network.eval()
    return network


def _length(config: Any) -> int:
    length = config.max_seq_length or LENGTH
    if not SHORTEST <= length <= POSITIONS:
        raise ParameterError(
            f"max_seq_length is {length}: BERT takes {SHORTEST} to {POSITIONS} tokens here"
        )
    return int(length)
