"""A folder as `save_pretrained` of transformers writes it: the network with the head that its
`config.json` names, and samples from the tokenizer or image preprocessor beside it.
"""

import io
import shutil
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from helpers.errors import CheckpointError, DataError, as_error
from helpers.models import Arrays, Network
from helpers.models._own.before import Preprocessing
from helpers.models._own.networks import explained

FILES = {
    "text": ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model"),
    "image": ("preprocessor_config.json", "processor_config.json"),
}
NOUNS = {"text": "tokenizer", "image": "image preprocessor"}
COPIED = (".json", ".txt", ".model")  # files of these
ENCODED = ("input_ids", "token_type_ids", "attention_mask", "pixel_values", "pixel_mask")
PROSE = Path(__file__).with_name("prose")
TEXTS = ("The river rose after the long rain.", "Two answers are better than one, she said.")
TOKENS, PIXELS, CHANNELS = 32, 224, 3  # of an example, where its files say nothing
INSTEAD = "Use --from module:function, which returns a module and example inputs."
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def read(folder: Path) -> Network:
    """Load the network in fp32.

    Raises CheckpointError if a file is missing or unreadable, or if the weights are not those of
    the head that `config.json` names.
    """
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # Attention as plain operators: the fused one of Swin cannot be exported to ONNX by PyTorch 2.13
    options = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    with explained(folder, "is not a folder that transformers can read"):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        head = next(iter(config.architectures or ()), "")
        network_class = getattr(transformers, head, None)
    if network_class is None:
        what = f"the architecture '{head}', which transformers {transformers.__version__} lacks"
        raise CheckpointError(f"{folder}/config.json names {what}. Use --from module:function.")
    with explained(folder, f"has no weights of {head} that transformers can read"):
        network, found = network_class.from_pretrained(
            folder, config=config, output_loading_info=True, **options
        )
    if missing := sorted(found["missing_keys"]):
        what = f"{missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else missing[0]
        raise CheckpointError(f"{folder} lacks weights of {head}: {what}. Save the whole model.")
    return network.eval()


def example(folder: Path, network: Network) -> Arrays:
    """Return two samples as the network takes them: by its tokenizer or image preprocessor, or
    drawn in the ranges of its configuration. Raises CheckpointError if nothing tells them.
    """
    if network.config.is_encoder_decoder:
        raise CheckpointError(f"{folder} is an encoder-decoder. {INSTEAD}")
    taken = signature(network.forward).parameters
    encoder = Encoder(folder, [name for name in ENCODED if name in taken], _longest(network))
    if encoder.has("text"):
        return encoder.encode(in_bytes("text", [text.encode() for text in TEXTS]), folder)
    config, draw = network.config, np.random.default_rng(0)
    size: Any = getattr(config, "image_size", None) or PIXELS
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    if encoder.has("image"):
        pixels = draw.integers(0, 256, (2, height, width, CHANNELS), np.uint8)
        return encoder.encode(in_bytes("image", [*map(_png, pixels)]), folder)
    if network.main_input_name == "pixel_values":
        shape = (2, getattr(config, "num_channels", CHANNELS), height, width)
        return {"pixel_values": draw.standard_normal(shape, np.float32)}
    if network.main_input_name != "input_ids" or not hasattr(config, "vocab_size"):
        raise CheckpointError(f"{folder} takes {network.main_input_name} or more. {INSTEAD}")
    ids = draw.integers(0, config.vocab_size, (2, _longest(network)))
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return {name: array for name, array in arrays.items() if name in taken}


class Encoder(NamedTuple):
    """The tokenizer or image preprocessor of a folder, for a network that takes arrays of some
    `names`, and texts of a `length` in tokens.
    """

    folder: Path
    names: Sequence[str]
    length: int

    def has(self, kind: str) -> bool:
        """Return whether the folder has what encodes a "text" or an "image"."""
        return any((self.folder / name).is_file() for name in FILES.get(kind, ()))

    def write(self, kind: str, target: Path) -> str:
        """Write a module that encodes, with the files that it reads, to a folder; return its
        function. Raises CheckpointError if there is no encoder.
        """
        if not self.has(kind):  # transformers would make an empty tokenizer
            what = NOUNS.get(kind, f"encoder of '{kind}'")
            raise CheckpointError(f"{self.folder} has no {what}. Use --samples with an .npz file.")
        for path in self.folder.iterdir():
            if path.suffix in COPIED and not path.name.endswith(".index.json"):
                shutil.copyfile(path, target / path.name)
        text = Template((PROSE / f"{kind}.py.txt").read_text())
        code = text.substitute(names=tuple(self.names), length=self.length)
        (target / "encode.py").write_text(code)
        return "encode:encode"

    def encode(self, sent: Arrays, origin: object) -> Arrays:
        """Encode texts or images as `in_bytes` returns them; raise CheckpointError if one or the
        encoder cannot be read.
        """
        (kind,) = sent
        with TemporaryDirectory() as place:
            function = self.write(kind, Path(place))
            with explained(self.folder, f"has no {NOUNS[kind]} that transformers can read"):
                session = Preprocessing(Path(place), function)
            with explained(origin, f"cannot be encoded as {kind}"):
                return session.run(sent)


def contents(samples: Path) -> Arrays:
    """Return the lines of a text file that are not blank, or the images of a folder in the order of
    their names, as `in_bytes` does. Raises DataError if there is none.
    """
    if samples.is_dir():
        paths = sorted(path for path in samples.iterdir() if path.suffix.lower() in IMAGES)
        if not paths:
            raise DataError(f"{samples} has no images: {', '.join(IMAGES)}")
        return in_bytes("image", [path.read_bytes() for path in paths])
    with as_error(DataError, f"{samples} is not a text file", 100):
        lines = [line for line in samples.read_text("utf-8").splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{samples} has no lines of text")
    return in_bytes("text", [line.encode() for line in lines])


def in_bytes(kind: str, samples: Sequence[bytes]) -> Arrays:
    """Return samples as rows of bytes, uint8 [samples, longest], padded with zeros."""
    longest = max(map(len, samples))
    rows = [np.frombuffer(sample.ljust(longest, b"\0"), np.uint8) for sample in samples]
    return {kind: np.stack(rows)}


def _png(pixels: Any) -> bytes:
    from PIL import Image

    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, "png")
        return file.getvalue()


def _longest(network: Network) -> int:
    """Return how many tokens an example has: some positions may be reserved, as RoBERTa's."""
    return int(min(TOKENS, getattr(network.config, "max_position_embeddings", 2 * TOKENS) // 2))
