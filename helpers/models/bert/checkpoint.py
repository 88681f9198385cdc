"""BERT checkpoints on disk: file types, naming schemes and unused tensors."""

from pathlib import Path

from torch import Tensor, nn

from helpers.errors import CheckpointError, as_error
from helpers.models._torch import state_dict
from helpers.models.bert.sizes import SIZES

WORDS = "bert.embeddings.word_embeddings.weight"
PUBLISHED_ROWS = 30522  # of Google's vocabulary; NVIDIA pads the embedding with zeros
RENAMED = {
    r"\.dense_act\.": ".dense.",  # NVIDIA's name of a linear layer fused with its activation
    r"LayerNorm\.gamma$": "LayerNorm.weight",  # as in files converted from TensorFlow
    r"LayerNorm\.beta$": "LayerNorm.bias",
}
UNUSED = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")  # 0, 1, 2...; zeros


def load(path: Path, network: nn.Module, variant: str) -> None:
    """Copy the tensors of the file `path` into `network`.

    The file is `.safetensors`, a state dict, or a dict with one under "model" or "state_dict". Its
    names are those of NVIDIA, of Hugging Face or of a conversion from TensorFlow. A pooler, which
    question answering does not use, must be whole if it is there. Raises CheckpointError.
    """
    content = _safetensors(path) if path.suffix == ".safetensors" else state_dict.read(path)
    tensors = state_dict.unwrap(content, path)
    for pattern, replacement in RENAMED.items():
        tensors = state_dict.rename(tensors, pattern, replacement, path)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in UNUSED}
    embeddings = tensors.get(WORDS)
    rows, hidden = SIZES[variant].rows, SIZES[variant].hidden
    if embeddings is not None and tuple(embeddings.shape) == (PUBLISHED_ROWS, hidden):
        tensors[WORDS] = nn.functional.pad(embeddings, (0, 0, 0, rows - PUBLISHED_ROWS))
    _take_pooler(tensors, hidden, path)
    state_dict.place(tensors, network, path, f"BERT {variant}")


def _take_pooler(tensors: dict[str, Tensor], hidden: int, path: Path) -> None:
    """Remove a whole pooler; raise CheckpointError for an incomplete or misshapen one."""
    shapes = {"bert.pooler.dense.weight": [hidden, hidden], "bert.pooler.dense.bias": [hidden]}
    actual = {name: list(tensors.pop(name).shape) for name in shapes if name in tensors}
    for name, shape in shapes.items():
        if actual and name not in actual:
            raise CheckpointError(f"{path} has an incomplete pooler: {name} {shape} is missing")
        if actual and actual[name] != shape:
            raise CheckpointError(f"{path}: {name} is {actual[name]} and should be {shape}")


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if not path.is_file():
        raise CheckpointError(f"{path} is not a file. Use a checkpoint.")
    with as_error(CheckpointError, f"{path} is not a whole safetensors file", 120):
        tensors: dict[str, Tensor] = load_file(path)
    return tensors
