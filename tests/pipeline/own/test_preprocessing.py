"""`new --before`: what a client sends goes through a function on the server, before the network.
ONNX Runtime and transformers, called here, judge the answers.
"""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.__main__ import main
from helpers.models._own import Description, Own, TensorSpec
from helpers.models._own.data import Samples
from helpers.models._own.display import show_answers
from helpers.models._own.preprocessing import imports
from helpers.results import read
from tests.pipeline.own import refusals
from tests.pipeline.own.builders import new, run, saved, serving, with_processor, with_tokenizer


@pytest.mark.slow
def test_a_function_becomes_the_first_step(place, tmp_path, capsys):
    refusals.steps()(tmp_path)

    assert main(["new", "mine", "--from", "model.onnx", *refusals.GIVEN]) == 0

    assert "request features: uint8, 16" in capsys.readouterr().out
    package = place / "helpers/models/mine"
    assert (package / "preprocessing/steps.py").read_text() == refusals.STEPS
    model = Own.load(str(package / "__init__.py"))
    (sent,), (taken,) = model.description.requests, model.description.inputs
    assert (sent.name, sent.dtype, sent.shape) == ("features", "uint8", (16,))
    assert (taken.name, taken.dtype) == ("features", "float32")
    assert 'COMPANIONS = ("model.yaml", "preprocessing")' in (package / "__init__.py").read_text()


def test_a_repository_lists_what_the_module_imports(tmp_path):
    code = "import json, PIL.Image\nfrom sklearn import metrics\nfrom pathlib import Path\n"
    (tmp_path / "steps.py").write_text(f"{code}def f():\n    import numpy\n")

    assert imports(tmp_path / "steps.py") == ("pillow", "numpy", "scikit-learn")


def test_texts_and_classes_are_shown_in_words(tmp_path):
    sent = np.stack([np.frombuffer(b"a good film\0\0", np.uint8)] * 2)
    np.savez(tmp_path / "samples.npz", text=sent)
    described = Description(
        source="onnx",
        framework="onnxruntime",
        inputs=(TensorSpec("text", "uint8", (13,)),),
        outputs=(),
        classes=("bad", "good"),
    )
    config = SimpleNamespace(labels="", dimensions={})
    dataset = Samples(Own("films", described), config, tmp_path / "samples.npz", True)

    scores = {"logits": np.array([[0.25, 2.5]], np.float32)}
    shown = show_answers(dataset, lambda _: scores, 1).html

    assert "a good film" in shown
    assert "0.25, 2.5 (largest 2.5 at good)" in shown


def pictures_in(folder, draw):
    from PIL import Image

    folder.mkdir()
    for number in range(40):
        pixels = Image.fromarray(draw.integers(0, 256, (6, 7, 3), np.uint8)).resize((70, 60))
        pixels.save(folder / f"{number:02}.jpg")
    return [Image.open(path) for path in sorted(folder.iterdir())]


@pytest.mark.thorough
def test_texts_and_images_are_encoded_on_the_server_as_transformers_does(fresh, tmp_path):
    import torch
    from transformers import AutoImageProcessor, AutoTokenizer

    from helpers.models._own import huggingface

    draw, project = np.random.default_rng(0), fresh
    texts = [" ".join(draw.choice(["good", "bad", "film", "a"], 5)) for _ in range(40)]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    animals = dict(enumerate(["tabby", "beagle", "otter", "heron", "carp"]))
    bert = with_tokenizer(saved("bert", tmp_path / "bert"))
    vit = with_processor(saved("vit", tmp_path / "vit", id2label=animals))
    images = pictures_in(tmp_path / "pictures", draw)
    tokenizer, scaler = AutoTokenizer.from_pretrained(bert), AutoImageProcessor.from_pretrained(vit)
    size = {"padding": "max_length", "max_length": 32}
    encoded = {
        "films": (bert, "texts.txt", tokenizer(texts, return_tensors="pt", **size)),
        "pictures": (vit, "pictures", scaler(images, return_tensors="pt")),
    }
    for name, (folder, samples, _) in encoded.items():
        step = ("--before", "preprocessor", "--samples", str(tmp_path / samples))
        new(project, name, "--from", f"hf:{folder}", *step, keep=["onnx-fp32"])
    run(project, encoded)

    for name, (folder, _, tensors) in encoded.items():
        network = huggingface.read(folder)
        taken = {"input_ids", "attention_mask", "pixel_values"}
        with torch.no_grad():
            right = network(**{key: array for key, array in tensors.items() if key in taken}).logits
        with np.load(project.root / f"helpers/models/{name}/samples.npz") as arrays:
            ((key, sent),) = arrays.items()
        with serving(project, name) as ask:
            found = [ask({key: row[None]})("logits")[0] for row in sent]
        assert np.allclose(found, right.numpy(), rtol=1e-3, atol=1e-4), name
        results = project.root / f"outputs/{name}/{name}"
        deployed = read(results / "onnx-fp32/deploy.json")
        assert [score.served for score in deployed.scores] == [1.0]
        (row,) = read(results / "onnx-fp32/perf_online.json").measurement.rows
        assert set(row.models_ms) == {f"{name}_preprocessing", f"{name}_network"}
        assert 0 < sum(row.models_ms.values()) <= 1.05 * row.avg_latency_ms
        assert "takes most" in (results / "report.html").read_text()
    page = (project.root / "outputs/pictures/pictures/onnx-fp32/export.html").read_text()
    assert re.search("largest [0-9.e-]+ at (tabby|beagle|otter|heron|carp)", page)
