"""Folders that `save_pretrained` of transformers wrote are deployed: ten architectures, tiny and
with random weights. transformers itself, called here, judges the answers.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.__main__ import main
from helpers.errors import CheckpointError, DataError, ParameterError
from helpers.models._own import Own, huggingface
from helpers.pipeline.own import origin
from tests.pipeline.own import builders
from tests.pipeline.own.builders import ARCHITECTURES, MAKING, TEXT, new, run, saved, serving

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    ["bert", "vit"]
    + [
        pytest.param(name, marks=pytest.mark.thorough)
        for name in ARCHITECTURES
        if name not in ("bert", "vit")
    ],
)
@pytest.mark.usefixtures("place")
def test_an_architecture_is_taken_with_a_free_batch(name, tmp_path, capsys):
    saved(name, tmp_path / name)
    capsys.readouterr()

    assert main(["new", f"tiny_{name}", "--from", f"hf:{name}"]) == 0

    said, errors = capsys.readouterr()
    (listed,) = (line for line in said.splitlines() if line.startswith("experiments: "))
    assert {"onnx-fp32", "openvino-fp32"} <= set(listed.removeprefix("experiments: ").split(", "))
    assert ("ts-trace-fp32" in listed) or name not in ("bert", "vit")
    assert "batch: one sample" not in said
    assert ("dimension tokens: 32" in said) == ("input_ids" in said)
    assert not errors


def test_the_number_of_tokens_may_be_chosen_and_ids_are_known(place, tmp_path, capsys):
    saved("bert", tmp_path / "bert")

    assert main(["new", "films", "--from", "hf:bert", "--dimension", "tokens=16"]) == 0

    assert "dimension tokens: 16" in capsys.readouterr().out
    ids, mask = Own.load(str(place / "helpers/models/films/x")).description.inputs
    assert (ids.name, ids.shape, ids.least, ids.below) == ("input_ids", ("tokens",), 0, 200)
    assert (mask.name, mask.below) == ("attention_mask", 2)


def test_texts_are_encoded_by_the_tokenizer_of_the_folder(place, tmp_path):
    builders.with_tokenizer(saved("bert", tmp_path / "bert"))
    (tmp_path / "texts.txt").write_text("a good film\n\na bad film\nfilm\n")

    assert main(["new", "films", "--from", "hf:bert", "--samples", "texts.txt"]) == 0

    with np.load(place / "helpers/models/films/samples.npz") as arrays:
        ids, mask = arrays["input_ids"], arrays["attention_mask"]
    assert ids[:, :4].tolist() == [[5, 2, 4, 0], [5, 3, 4, 0], [4, 0, 0, 0]]
    assert (mask == (ids > 0)).all()
    assert "helpers/models/films/samples.npz\n" in (place / "params/films.yaml").read_text()


def test_images_are_encoded_by_the_processor_of_the_folder(tmp_path):
    from PIL import Image
    from transformers import AutoImageProcessor

    folder = builders.with_processor(saved("vit", tmp_path / "vit"))
    (tmp_path / "pictures").mkdir()
    drawn = np.random.default_rng(0).integers(0, 256, (3, 40, 50, 3), np.uint8)
    for number, pixels in enumerate(drawn):
        Image.fromarray(pixels).save(tmp_path / f"pictures/{number}.png")

    encoder = huggingface.Encoder(folder, ["pixel_values"], 0)

    found = encoder.encode(huggingface.contents(tmp_path / "pictures"), "pictures")

    right = AutoImageProcessor.from_pretrained(folder)([*drawn], return_tensors="np")
    assert np.array_equal(found["pixel_values"], right["pixel_values"])
    (tmp_path / "pictures/4.png").write_bytes(b"no picture")
    with pytest.raises(CheckpointError, match="pictures cannot be encoded as image: Unidentified"):
        encoder.encode(huggingface.contents(tmp_path / "pictures"), "pictures")


def test_weights_without_the_head_are_refused(tmp_path):
    from transformers import BertConfig, BertModel

    BertModel(BertConfig(**TEXT)).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {"architectures": ["BertForSequenceClassification"]}
    path.write_text(json.dumps(config))

    with pytest.raises(CheckpointError, match="lacks weights of BertForSeq.*: classifier.bias and"):
        origin.read(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("{}", "is not a folder that transformers can read"),
        ("no json", "is not a folder that transformers can read"),
        ('{"model_type": "bert"}', "names the architecture '', which transformers"),
        ('{"model_type": "bert", "architectures": ["BertModel"]}', "has no weights of BertModel"),
    ],
)
def test_a_folder_that_is_no_model_is_one_line(config, line, tmp_path):
    (tmp_path / "config.json").write_text(config)

    with pytest.raises(CheckpointError, match=line) as caught:
        origin.read(f"hf:{tmp_path}")

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("T5ForConditionalGeneration", "is an encoder-decoder. Use --from module:function"),
        ("Wav2Vec2ForCTC", "takes input_values or more. Use --from module:function"),
        ("CLIPModel", "takes input_ids or more. Use --from module:function"),
    ],
)
def test_inputs_that_a_configuration_does_not_tell_are_refused(head, line, tmp_path):
    import transformers

    kind = getattr(transformers, head)
    network = SimpleNamespace(config=kind.config_class(), main_input_name=kind.main_input_name)
    network.forward = lambda input_ids: None

    with pytest.raises(CheckpointError, match=line):
        huggingface.example(tmp_path, network)


def test_a_name_of_the_hub_gives_the_line_that_downloads_it():
    with pytest.raises(ParameterError, match="hf download org/tiny-bert --local-dir tiny-bert"):
        origin.read("hf:org/tiny-bert")


def test_samples_that_cannot_be_encoded_are_one_line(tmp_path):
    folder = saved("bert", tmp_path / "bert")
    encoder = huggingface.Encoder(folder, ["input_ids"], 8)
    texts, empty = tmp_path / "texts.txt", tmp_path / "empty"
    empty.mkdir()

    for path, content, error, line in (
        (texts, b"a film\n", CheckpointError, "has no tokenizer. Use --samples"),
        (empty, b"", DataError, "has no images"),
        (texts, b"\xff\xfe\x00", DataError, "is not a text file"),
        (texts, b"\n", DataError, "has no lines of text"),
    ):
        texts.write_bytes(content)
        with pytest.raises(error, match=line):
            encoder.encode(huggingface.contents(path), path)


@pytest.mark.thorough
def test_ten_architectures_are_served_with_the_answers_of_transformers(fresh, tmp_path):
    import torch

    for name in ARCHITECTURES:
        saved(name, tmp_path / name)
        new(fresh, f"tiny_{name}", "--from", f"hf:{tmp_path / name}", keep=["onnx-fp32"])
    run(fresh, [f"tiny_{name}" for name in ARCHITECTURES], *MAKING)

    for name in ARCHITECTURES:
        network = huggingface.read(tmp_path / name)
        given = huggingface.example(tmp_path / name, network)
        if "attention_mask" in given:
            given["attention_mask"][1, 20:] = 0
        with torch.no_grad():
            right = network(**{key: torch.from_numpy(array) for key, array in given.items()})
        with serving(fresh, f"tiny_{name}") as ask:
            found = ask(given)("logits")
        assert np.allclose(found, right.logits.numpy(), rtol=1e-3, atol=1e-4), name
