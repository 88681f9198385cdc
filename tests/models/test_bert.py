"""BERT for question answering against NumPy, transformers, torchmetrics and cases by hand."""

import copy
import json
import math
import random
import re
import string
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from helpers import models
from helpers.errors import CheckpointError, DataError
from helpers.formats import Build, get
from helpers.models import Tensor
from helpers.models._arrays import concatenate
from helpers.models.bert import MODEL as bert
from helpers.models.bert import metric
from helpers.models.bert.answers import best_spans
from helpers.models.bert.checkpoint import load
from helpers.models.bert.data import QuestionSet
from helpers.models.bert.display import example as show_example
from helpers.models.bert.display import show_answers, show_features
from helpers.models.bert.features import Text, Window, WordPiece, fullest, windows
from helpers.models.bert.network import QuestionAnswering
from helpers.models.bert.sizes import SIZES
from helpers.models.bert.synthetic.fit import training_batch
from helpers.models.bert.synthetic.generate import SETS, vocabulary, write
from tests.models.examples import said
from tests.pipeline.test_try_it import fitted_by_run

NAMES = Path(__file__).parent / "data" / "bert_large_qa.tsv"
SMALL = SimpleNamespace(
    dataset="generated-small",
    variant="small",
    max_seq_length=None,
    export_precision="fp32",
    opset=None,
)
INPUTS = ["input__0", "input__1", "input__2"]
OUTPUTS = ["output__0", "output__1"]

Floats = NDArray[Any]
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def network() -> QuestionAnswering:
    """Random weights, large enough for every part to matter, layer normalisation included."""
    torch.manual_seed(0)
    made = QuestionAnswering("small")
    for name, tensor in made.named_parameters():
        tensor.data.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.1)
    made.eval()
    return made


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    bert.prepare_dataset(SMALL, folder)
    return folder


@pytest.fixture(scope="module")
def dataset(generated: Path) -> QuestionSet:
    opened = bert.open_dataset(SMALL, generated)
    assert isinstance(opened, QuestionSet)
    return opened


def some_inputs(batch: int, length: int, seed: int = 0) -> dict[str, NDArray[np.int32]]:
    """Random tokens of random lengths, the first being the whole length."""
    rng = np.random.default_rng(seed)
    tokens = np.array([length, *rng.integers(20, length, batch - 1)])
    mask = (np.arange(length) < tokens[:, None]).astype(np.int32)
    segments = (np.arange(length) >= 9).astype(np.int32) * mask
    ids = rng.integers(0, SIZES["small"].rows, (batch, length), dtype=np.int32) * mask
    return dict(zip(INPUTS, (ids, segments, mask), strict=True))


def run(network: Any, inputs: dict[str, Any]) -> list[Floats]:
    with torch.inference_mode():
        logits = network(*(torch.from_numpy(array) for array in inputs.values()))
    return [each.float().numpy() for each in logits]


# The contract


def test_the_package_is_found_and_says_what_it_is() -> None:
    found = models.get("bert")
    assert (found.TITLE, found.FRAMEWORK) == ("BERT QA", "torch")
    assert found.VARIANTS == ("small", "base", "large")
    assert found.METRICS == {"f1": "higher", "exact_match": "higher"}
    assert tuple(SETS) == found.GENERATED
    assert set(found.TOLERANCES) == {"fp32", "bf16", "fp16", "int8"}


@pytest.mark.parametrize(("module", "heavy"), [("bert", {"tokenizers"}), ("bert.data", set())])
def test_importing_it_loads_neither_torch_nor_transformers(module: str, heavy: set[str]) -> None:
    heavy = heavy | {"torch", "transformers", "pandas"}
    code = f"import sys, helpers.models.{module}; print({heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", "float32"), ("bf16", "float32"), ("fp16", "float16")]
)
def test_inputs_are_int32_and_outputs_follow_the_export_precision(
    precision: str, dtype: str
) -> None:
    config = SimpleNamespace(export_precision=precision, max_seq_length=None)
    assert bert.inputs(config) == tuple(Tensor(name, "int32", (384,)) for name in INPUTS)
    assert bert.outputs(config) == tuple(Tensor(name, dtype, (384,)) for name in OUTPUTS)
    config.max_seq_length = 128
    assert {tensor.shape for tensor in bert.inputs(config) + bert.outputs(config)} == {(128,)}


# The network


def published() -> dict[str, list[int]]:
    rows = [line.split("\t") for line in NAMES.read_text().splitlines()]
    assert {dtype for *_, dtype in rows} == {"float32"}
    return {name: json.loads(shape) for name, shape, _ in rows}


def nvidia_names(state: State) -> State:
    return {
        name.replace("intermediate.dense.", "intermediate.dense_act."): tensor
        for name, tensor in state.items()
    }


@pytest.mark.slow
def test_the_large_network_has_the_tensors_of_nvidias_checkpoint_but_its_pooler() -> None:
    with torch.device("meta"):
        state = nvidia_names(QuestionAnswering("large").state_dict())
    own = {name: list(tensor.shape) for name, tensor in state.items()}
    theirs = {name: shape for name, shape in published().items() if ".pooler." not in name}
    assert own == theirs
    assert len(published()) == 393
    assert sum(math.prod(shape) for shape in own.values()) == 334_100_482


def by_hand(state: dict[str, Floats], heads: int, inputs: dict[str, Any]) -> list[Floats]:
    """Compute BERT in NumPy and float64 as the paper and the published parameters say."""

    def linear(x: Floats, name: str) -> Floats:
        return np.asarray(x @ state[f"{name}.weight"].T + state[f"{name}.bias"])

    def normalised(x: Floats, name: str) -> Floats:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return np.asarray(x * state[f"{name}.LayerNorm.weight"] + state[f"{name}.LayerNorm.bias"])

    def split(x: Floats) -> Floats:
        return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    ids, segments, mask = inputs.values()
    table = "bert.embeddings.{}_embeddings.weight".format
    x = state[table("word")][ids] + state[table("token_type")][segments]
    x = normalised(x + state[table("position")][: ids.shape[1]], "bert.embeddings")
    layers = {match[1] for name in state if (match := re.search(r"layer\.(\d+)\.", name))}
    for layer in range(len(layers)):
        at = f"bert.encoder.layer.{layer}"
        q, k, v = (split(linear(x, f"{at}.attention.self.{n}")) for n in ("query", "key", "value"))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True)) * mask[:, None, None, :]
        weights /= weights.sum(-1, keepdims=True)
        mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = normalised(x + linear(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output")
        y = linear(x, f"{at}.intermediate.dense")
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = normalised(x + linear(y, f"{at}.output.dense"), f"{at}.output")
    logits = linear(x, "qa_outputs")
    return [logits[..., 0], logits[..., 1]]


def test_its_logits_equal_those_of_the_paper_in_numpy(network: QuestionAnswering) -> None:
    inputs = some_inputs(3, 96)
    state = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
    for own, expected in zip(run(network, inputs), by_hand(state, 4, inputs), strict=True):
        assert own.shape == (3, 96)
        np.testing.assert_allclose(own, expected, rtol=0, atol=2e-4 * expected.std())


def test_its_logits_equal_those_of_the_transformers_library(network: QuestionAnswering) -> None:
    from transformers import BertConfig, BertForQuestionAnswering

    config = BertConfig(
        vocab_size=SIZES["small"].rows,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_act="gelu_pytorch_tanh",
    )
    theirs = BertForQuestionAnswering(config)
    theirs.train(False)
    theirs.load_state_dict(network.state_dict())
    inputs = some_inputs(2, 384)
    ids, segments, mask = (torch.from_numpy(each).long() for each in inputs.values())
    with torch.inference_mode():
        expected = theirs(ids, attention_mask=mask, token_type_ids=segments)
    for own, logits in zip(
        run(network, inputs), (expected.start_logits, expected.end_logits), strict=True
    ):
        np.testing.assert_allclose(own, logits.numpy(), rtol=0, atol=1e-4)


def test_what_stands_in_the_padding_changes_nothing_before_it(network: QuestionAnswering) -> None:
    inputs = some_inputs(2, 128)
    inputs["input__2"][:, 50:] = 0
    other = {**inputs, "input__0": inputs["input__0"].copy()}
    other["input__0"][:, 50:] = 7
    for first, second in zip(run(network, inputs), run(network, other), strict=True):
        np.testing.assert_allclose(first[:, :50], second[:, :50], rtol=0, atol=1e-5)
        assert np.abs(first[:, 50:] - second[:, 50:]).max() > 0.1
    other["input__0"][:, 49] = 7
    assert np.abs(run(network, other)[0][:, :49] - run(network, inputs)[0][:, :49]).max() > 1e-3


@pytest.fixture(scope="module")
def basic(network: QuestionAnswering) -> QuestionAnswering:
    """The same network as it is built for old releases."""
    made = QuestionAnswering("small", basic_operators=True)
    made.load_state_dict(network.state_dict())
    made.eval()
    return made


# PyTorch has the first since 2.0 and the approximation of the second since 1.12; opset 13 neither
NEW_OPERATORS = ("scaled_dot_product_attention", "gelu")


def test_with_operators_of_old_releases_it_is_the_same_network(
    basic: QuestionAnswering, network: QuestionAnswering
) -> None:
    inputs, bound = some_inputs(3, 128), bert.TOLERANCES["fp32"][0]

    for found, right in zip(run(basic, inputs), run(network, inputs), strict=True):
        np.testing.assert_allclose(found, right, rtol=0, atol=bound * right.std())


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, None])
def test_for_an_old_release_its_torchscript_has_operators_that_its_pytorch_knows(
    opset: int | None,
    network: QuestionAnswering,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.save(network.state_dict(), tmp_path / "checkpoint")
    config = SimpleNamespace(**{**vars(SMALL), "opset": opset})
    built = bert.build(config, tmp_path / "checkpoint")
    path = tmp_path / "model.pt"

    get("ts-trace").make(built, path, Build("fp32", some_inputs(2, 128), tuple(OUTPUTS)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in PyTorch
        graph = torch.jit.load(path).inlined_graph
    kinds = {node.kind().removeprefix("aten::") for node in graph.nodes()}
    assert set(NEW_OPERATORS) & kinds == (set() if opset else set(NEW_OPERATORS))
    assert caplog.messages == []  # of transformers


@pytest.mark.slow
def test_for_an_old_release_it_is_exported_to_the_old_opset(
    basic: QuestionAnswering, network: QuestionAnswering, tmp_path: Path
) -> None:
    import onnx

    inputs, path = some_inputs(2, 128), tmp_path / "model.onnx"

    get("onnx").make(basic, path, Build("fp32", inputs, tuple(OUTPUTS), opset=13))

    model = onnx.load(path)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 13)]
    assert model.ir_version <= 7  # of ONNX Runtime 1.6
    more = some_inputs(5, 128, seed=1)
    found, right = get("onnx").load(path, 1, "cpu").run(more), run(network, more)
    for name, expected in zip(OUTPUTS, right, strict=True):
        bound = bert.TOLERANCES["fp32"][0] * expected.std()
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=bound)


def test_fp16_gives_numbers(network: QuestionAnswering) -> None:
    from copy import deepcopy

    inputs = some_inputs(2, 128)
    half = run(deepcopy(network).half(), inputs)
    for found, expected in zip(half, run(network, inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.01)


# The checkpoint


def saved(state: Any, folder: Path, name: str = "c.pt") -> Path:
    torch.save(state, folder / name)
    return folder / name


def pooler(hidden: int, layer: str = "dense_act") -> State:
    return {
        f"bert.pooler.{layer}.weight": torch.zeros(hidden, hidden),
        f"bert.pooler.{layer}.bias": torch.zeros(hidden),
    }


SCHEMES: dict[str, Callable[[State], Any]] = {
    "NVIDIA": lambda state: {"model": {**nvidia_names(state), **pooler(256)}},
    "NVIDIA on several GPUs": lambda state: {
        "model": {f"module.{name}": tensor for name, tensor in nvidia_names(state).items()}
    },
    "Hugging Face": lambda state: state,
    "Hugging Face of 2019": lambda state: {
        **state,
        **pooler(256, "dense"),
        "bert.embeddings.position_ids": torch.arange(512)[None],
    },
    "TensorFlow": lambda state: {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in state.items()
    },
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_naming_scheme_loads_to_the_same_tensors(
    network: QuestionAnswering, tmp_path: Path, scheme: str
) -> None:
    state = dict(network.state_dict())
    path = saved(SCHEMES[scheme](state), tmp_path)
    built = bert.build(SMALL, path)
    assert not built.training
    own = built.state_dict()
    assert own.keys() == state.keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in state.items())


def test_safetensors_load_too(network: QuestionAnswering, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(dict(network.state_dict()), path)
    loaded = QuestionAnswering("small")
    load(path, loaded, "small")
    own = loaded.state_dict()
    assert all(torch.equal(each, own[name]) for name, each in network.state_dict().items())
    path.write_bytes(path.read_bytes()[:5000])
    assert refusal(path).startswith("is not a whole safetensors file: ")
    assert refusal(tmp_path / "no.safetensors") == "is not a file. Use a checkpoint."


def refusal(path: Path) -> str:
    """Load the file into a network and give the error, one line, without the path in front."""
    with pytest.raises(CheckpointError) as caught:
        load(path, QuestionAnswering("small"), "small")
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text.removeprefix(str(path)).lstrip(": ")


def test_a_missing_a_surplus_and_a_misshapen_tensor_are_named(
    network: QuestionAnswering, tmp_path: Path
) -> None:
    state = nvidia_names(dict(network.state_dict()))
    last = state.pop("bert.encoder.layer.3.intermediate.dense_act.bias")
    missing = "does not fit BERT small: missing bert.encoder.layer.3.intermediate.dense.bias [1024]"
    assert refusal(saved(state, tmp_path)) == missing
    state["bert.encoder.layer.3.intermediate.dense_act.bias"] = last
    surplus = {**state, "cls.predictions.bias": torch.zeros(1280)}
    assert refusal(saved({"model": surplus}, tmp_path)) == (
        "does not fit BERT small: surplus cls.predictions.bias [1280]"
    )
    state["qa_outputs.weight"] = torch.zeros(3, 256)
    assert refusal(saved(state, tmp_path)) == (
        "does not fit BERT small: qa_outputs.weight is [3, 256] and should be [2, 256]"
    )


def test_half_a_pooler_and_a_misshapen_one_are_refused(
    network: QuestionAnswering, tmp_path: Path
) -> None:
    state = {**network.state_dict(), **pooler(256)}
    del state["bert.pooler.dense_act.bias"]
    text = "has an incomplete pooler: bert.pooler.dense.bias [256] is missing"
    assert refusal(saved(state, tmp_path)) == text
    wrong = {**network.state_dict(), **pooler(128)}
    text = "bert.pooler.dense.weight is [128, 128] and should be [256, 256]"
    assert refusal(saved(wrong, tmp_path)) == text


@pytest.mark.slow
@pytest.mark.thorough
def test_nvidias_large_checkpoint_fits_and_googles_rows_are_padded(tmp_path: Path) -> None:
    rows = 30522
    values = {name: float(place) for place, name in enumerate(published())}
    state = {name: torch.full(shape, values[name]) for name, shape in published().items()}
    words = "bert.embeddings.word_embeddings.weight"
    state[words] = torch.full((rows, 1024), 5.0)
    config = SimpleNamespace(variant="large", opset=None)
    built = bert.build(config, saved({"model": state}, tmp_path)).state_dict()
    assert built[words].shape == (30528, 1024)
    assert (built[words] == 5).sum() == rows * 1024
    assert (built[words][rows:] == 0).all()
    for name, tensor in nvidia_names(built).items():
        if name != words:
            assert tensor.flatten()[-1] == values[name]


def test_other_numbers_of_words_are_refused(network: QuestionAnswering, tmp_path: Path) -> None:
    words = "bert.embeddings.word_embeddings.weight"
    state = {**network.state_dict(), words: torch.zeros(100, 256)}
    assert refusal(saved(state, tmp_path)) == (
        f"does not fit BERT small: {words} is [100, 256] and should be [1280, 256]"
    )


# Features

VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "sent", "the", "##s", "letter", "ana", "new"),
    *("york", "caf", "##e", ".", ",", "?"),
]


def write_set(folder: Path, paragraphs: list[Any], tokens: list[str] | None = None) -> Path:
    """Write paragraphs, each a context and pairs of a question and its answers."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for place, (context, asked) in enumerate(paragraphs):
        qas = [
            {
                "id": f"{place}-{number}",
                "question": question,
                "answers": [{"text": text, "answer_start": context.find(text)} for text in answers],
            }
            for number, (question, answers) in enumerate(asked)
        ]
        entries.append({"context": context, "qas": qas})
    document = {"version": "1.1", "data": [{"title": "t", "paragraphs": entries}]}
    (folder / "dev-v1.1.json").write_text(json.dumps(document))
    (folder / "vocab.txt").write_text("\n".join(tokens or VOCABULARY) + "\n")
    return folder


def opened(folder: Path, length: int = 384, rows: int = 1280) -> QuestionSet:
    return QuestionSet(folder, length, rows, INPUTS, OUTPUTS)


def test_a_sequence_is_laid_out_as_published(tmp_path: Path) -> None:
    context = "Ana\u202fsent\nNEW  York the Cafés."
    folder = write_set(tmp_path, [(context, [("Who sent letters?", ["Ana"])])])
    dataset = opened(folder, length=24)
    (batch,) = dataset.batches(8)
    shown = "[CLS] who sent letter ##s ? [SEP] ana sent new york the caf ##e ##s . [SEP]"
    tokens = re.split(" ", shown)
    ids, segments, mask = (batch[name][0].tolist() for name in INPUTS)
    assert ids == [VOCABULARY.index(token) for token in tokens] + [0] * 7
    assert segments == [0] * 7 + [1] * 10 + [0] * 7
    assert mask == [1] * 17 + [0] * 7
    assert {array.dtype.name for array in batch.values()} == {"int32"}


def test_an_answer_is_cut_out_of_the_paragraph_as_it_was_written(tmp_path: Path) -> None:
    context = "Ana\u202fsent\nNEW  York the Cafés."
    dataset = opened(write_set(tmp_path, [(context, [("Who?", ["Ana"])])]), length=24)
    assert dataset.windows == [Window(question=0, start=0, length=9, offset=4)]
    for first, last, text in ((0, 0, "Ana"), (2, 3, "NEW  York"), (5, 7, "Cafés"), (8, 8, ".")):
        assert dataset.answers(logits(24, [(4 + first, 4 + last)])) == {"0-0": text}


def logits(length: int, spans: list[tuple[int, int]], score: float = 9.0) -> dict[str, Floats]:
    """Give one window's outputs for each pair of a start and an end."""
    outputs = {name: np.zeros((len(spans), length), dtype=np.float32) for name in OUTPUTS}
    for row, places in enumerate(spans):
        for name, place in zip(OUTPUTS, places, strict=True):
            outputs[name][row, place] = score
    return outputs


@pytest.mark.parametrize(("query", "context"), [(5, 9), (12, 369), (12, 370), (90, 1000), (3, 700)])
def test_windows_equal_those_of_the_transformers_library(query: int, context: int) -> None:
    from transformers import BertTokenizer

    words = {token: row for row, token in enumerate([*VOCABULARY[:4], "[MASK]", "q", "c"])}
    tokenizer = BertTokenizer(vocab=words)
    room = 384 - min(query, 64) - 3
    theirs = tokenizer(
        " ".join("q" * min(query, 64)),
        " ".join("c" * context),
        max_length=384,
        truncation="only_second",
        stride=room - 128,  # there it is the overlap
        return_overflowing_tokens=True,
        padding="max_length",
    )
    found = windows(7, query, context, 384)
    piece = WordPiece.__new__(WordPiece)
    piece.pad, piece.cls, piece.sep = 0, 2, 3
    texts = [
        Text(np.full(n, row, dtype=np.int32), np.zeros((n, 2), dtype=np.int32))
        for n, row in ((query, words["q"]), (context, words["c"]))
    ]
    for place, window in enumerate(found):
        own = piece.sequence(texts[0], texts[1], window, 384)
        names = ("input_ids", "token_type_ids", "attention_mask")
        for array, name in zip(own, names, strict=True):
            assert array.tolist() == theirs[name][place]
    assert len(found) == len(theirs["input_ids"])
    assert [window.start for window in found] == [128 * place for place in range(len(found))]
    assert found[-1].start + found[-1].length == context


def test_the_fullest_window_of_a_token_is_that_with_most_on_both_sides() -> None:
    slid = [Window(0, 0, 5, 4), Window(0, 3, 5, 4), Window(0, 6, 3, 4)]
    # token 3 has 1 to its right in window 0 and none to its left in window 1; token 6 has 1 to its
    # right in window 1; token 7 has none there, and 1 and 1 in window 2
    assert fullest(slid).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2]


def slow_fullest(slid: list[Window], token: int) -> int:
    """Choose as the published code does, one window after the other."""
    best, chosen = -math.inf, -1
    for place, window in enumerate(slid):
        end = window.start + window.length - 1
        if window.start <= token <= end:
            score = min(token - window.start, end - token) + 0.01 * window.length
            if score > best:
                best, chosen = score, place
    return chosen


@pytest.mark.parametrize("context", [1, 380, 600, 1111])
def test_the_fullest_windows_equal_a_slow_choice(context: int) -> None:
    slid = windows(0, 10, context, 384)
    assert fullest(slid).tolist() == [slow_fullest(slid, token) for token in range(context)]


# Answers


def slow_spans(slid: list[Window], start: Floats, end: Floats) -> dict[int, Any]:
    """Search as the published code does: every pair, sorted by its sum, over all windows."""
    found: dict[int, list[Any]] = {}
    for row, window in enumerate(slid):
        siblings = [each for each in slid if each.question == window.question]
        starts, ends = (np.argsort(-each[row], kind="stable")[:20] for each in (start, end))
        candidates = found.setdefault(window.question, [])
        for left in starts:
            for right in ends:
                first, last = (int(x) - window.offset + window.start for x in (left, right))
                inside = all(0 <= int(x) - window.offset < window.length for x in (left, right))
                if not inside or siblings[slow_fullest(siblings, first)] is not window:
                    continue
                if right >= left and right - left + 1 <= 30:
                    candidates.append((float(start[row, left] + end[row, right]), first, last))
    return {
        question: max(each, key=lambda candidate: candidate[0])[1:] if each else None
        for question, each in found.items()
    }


def test_the_best_spans_equal_a_slow_search() -> None:
    rng = np.random.default_rng(0)
    slid = [
        window
        for question, context in enumerate([30, 700, 3, 400, 371, 1200, 12])
        for window in windows(question, 10, context, 384)
    ]
    for seed in range(20):
        start, end = rng.normal(0, 3, (2, len(slid), 384)).round(2)
        if seed % 2:  # a start and an end that lie near each other, in each window
            for row, window in enumerate(slid):
                left = window.offset + int(rng.integers(window.length))
                start[row, left] += 12
                end[row, min(left + int(rng.integers(40)), 383)] += 12
        assert best_spans(slid, start, end) == slow_spans(slid, start, end)


def test_a_start_counts_only_in_its_fullest_window() -> None:
    slid = windows(0, 10, 490, 384)
    assert [window.start for window in slid] == [0, 128]
    # paragraph token 368 is the first window's last but two; the second shows more around it
    first, second = 12 + 368, 12 + 368 - 128
    weak = [(12 + 300, 12 + 301), (12 + 300 - 128, 12 + 301 - 128)]  # the second shows more, too
    for row, place, found in ((0, first, (300, 301)), (1, second, (368, 368))):
        outputs = logits(384, weak, 5)
        outputs["output__0"][row, place] = outputs["output__1"][row, place] = 9
        assert best_spans(slid, *outputs.values()) == {0: found}


@pytest.mark.parametrize(("tokens", "answer"), [(30, (0, 29)), (31, (0, 5))])
def test_an_answer_has_at_most_30_tokens(tokens: int, answer: tuple[int, int]) -> None:
    outputs = logits(384, [(12, 12 + tokens - 1)])
    outputs["output__0"][0, 17] = outputs["output__1"][0, 17] = 1
    outputs["output__0"][0, :12] = outputs["output__0"][0, 20:28] = 0.5  # 20 that lead nowhere
    outputs["output__1"][0, :11] = outputs["output__1"][0, 350:358] = 0.5
    one = [Window(0, 0, 369, 12)]
    assert best_spans(one, *outputs.values()) == {0: answer}


def test_a_question_without_any_allowed_span_has_an_empty_answer(tmp_path: Path) -> None:
    dataset = opened(write_set(tmp_path, [("Ana sent", [("Who?", ["Ana"])])]), length=24)
    backwards = logits(24, [(5, 4)])
    backwards["output__0"][0, :] = np.nan
    assert dataset.answers(backwards) == {"0-0": ""}
    assert dataset.score(backwards) == {"f1": 0.0, "exact_match": 0.0}


# The metric


@pytest.mark.filterwarnings("ignore")  # of the libraries that torchmetrics looks for
def test_the_metric_equals_that_of_torchmetrics() -> None:
    from torchmetrics.text import SQuAD

    rng = random.Random(0)
    words = [
        *("the", "The", "an", "a", "A.", "cat", "Cat", "dog,", "--", "U.S.", "naïve", "Ökonomie"),
        *("東京", "12,5", "", " ", "theatre", "'s", "«x»", "\u202f", "\t", *string.punctuation),
    ]
    pairs = []
    for _ in range(12_000):
        made = [" ".join(rng.choices(words, k=rng.randrange(6))) for _ in range(4)]
        pairs.append((made[0], made[1 : 2 + rng.randrange(3)]))
    pairs += [("", ["cat"]), ("cat", [""]), ("the", ["cat"]), ("a cat", ["the Cat."])]
    # of two texts without a word torchmetrics says 1, as the script of SQuAD 2.0, not of 1.1
    pairs = [pair for pair in pairs if metric.words(pair[0]) or all(map(metric.words, pair[1]))]
    theirs = SQuAD()
    theirs.update(
        [{"prediction_text": text, "id": str(i)} for i, (text, _) in enumerate(pairs)],
        [
            {"answers": {"text": answers, "answer_start": [0] * len(answers)}, "id": str(i)}
            for i, (_, answers) in enumerate(pairs)
        ],
    )
    expected = {name: float(value) for name, value in theirs.compute().items()}
    assert len(pairs) > 4000
    assert metric.score(pairs) == pytest.approx(expected, rel=1e-5)
    assert 1 < expected["exact_match"] < expected["f1"] < 95


def test_the_metric_by_hand() -> None:
    assert metric.score([("The Cat!", ["dog", "cat"])]) == {"f1": 100.0, "exact_match": 100.0}
    assert metric.score([("the", ["a"])]) == {"f1": 0.0, "exact_match": 100.0}  # no word in common
    half = metric.score([("in the park", ["park", "a zoo"]), ("x", ["y"])])
    assert half == {"f1": pytest.approx(100 / 3), "exact_match": 0.0}


# The data set


def test_every_window_comes_once_in_order_whatever_the_batch_size(dataset: QuestionSet) -> None:
    count = len(dataset)
    assert count == dataset.facts["features"]
    for size in (1, 8, count, count + 1):  # a divisor adds no batch
        batches = list(dataset.batches(size))
        assert [len(batch["input__0"]) for batch in batches] == [
            min(size, count - first) for first in range(0, count, size)
        ]
        joined = np.concatenate([batch["input__0"] for batch in batches])
        np.testing.assert_array_equal(joined, dataset.take(range(count))["input__0"])


def test_a_limit_is_spread_evenly_over_the_whole_set(dataset: QuestionSet) -> None:
    everything = dataset.take(range(len(dataset)))["input__1"]
    few = np.concatenate([batch["input__1"] for batch in dataset.batches(3, limit=7)])
    np.testing.assert_array_equal(few, everything[[i * len(dataset) // 7 for i in range(7)]])
    every = np.concatenate([batch["input__1"] for batch in dataset.batches(9, limit=10_000)])
    np.testing.assert_array_equal(every, everything)


def test_every_question_counts_and_both_metrics_are_given(tmp_path: Path) -> None:
    asked = [("Who sent letters?", ["Ana"]), ("Who?", ["Ana sent"]), ("The letter?", ["York"])]
    dataset = opened(write_set(tmp_path, [("Ana sent New York", asked)]), length=24)
    outputs = logits(24, [(7, 7), (4, 4), (5, 5)])
    assert dataset.answers(outputs) == {"0-0": "Ana", "0-1": "Ana", "0-2": "Ana"}
    score = dataset.score(outputs)
    assert score == {
        "f1": pytest.approx(100 * (1 + 2 / 3) / 3),
        "exact_match": pytest.approx(100 / 3),
    }


def test_outputs_of_another_shape_are_an_error(dataset: QuestionSet) -> None:
    count = len(dataset)
    for shape in ((count - 1, 384), (count, 383), (count,)):
        outputs = dict.fromkeys(OUTPUTS, np.zeros(shape, dtype=np.float32))
        text = rf"^output__0 is \[{', '.join(map(str, shape))}\] and should be \[{count}, 384\]$"
        with pytest.raises(DataError, match=text):
            dataset.score(outputs)


def test_the_files_are_found_anywhere_below_the_folder(tmp_path: Path) -> None:
    write_set(tmp_path / "data/squad/v1.1", [("Ana sent", [("Who?", ["Ana"])])])
    other = tmp_path / "data/google_pretrained_weights/uncased_L-24_H-1024_A-16/vocab.txt"
    other.parent.mkdir(parents=True)
    (tmp_path / "data/squad/v1.1/vocab.txt").rename(other)
    config = SimpleNamespace(variant="large", max_seq_length=None, export_precision="fp32")
    assert bert.open_dataset(config, tmp_path).facts == {
        "paragraphs": 1,
        "questions": 1,
        "features": 1,
        "origin": "another file in SQuAD's format",
    }


def test_the_public_file_is_known_by_its_md5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    from helpers.models.bert import data

    assert data.PUBLISHED == "3e85deb501d4e538b6bc56f786231552"
    folder = write_set(tmp_path, [("Ana sent", [("Who?", ["Ana"])])])
    found = hashlib.md5((folder / "dev-v1.1.json").read_bytes()).hexdigest()
    monkeypatch.setattr(data, "PUBLISHED", found)
    assert opened(folder).facts["origin"] == "SQuAD v1.1 dev set (md5 verified)"


def error(folder: Path, rows: int = 1280) -> str:
    with pytest.raises(DataError) as caught:
        opened(folder, rows=rows)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(folder), "F")


def test_folders_of_another_layout_are_errors_that_say_what_is_wrong(tmp_path: Path) -> None:
    wanted = "Use one that has dev-v1.1.json and vocab.txt."
    assert error(tmp_path / "absent") == f"F is not a folder. {wanted}"
    assert error(tmp_path) == "F has no dev-v1.1.json, nor have its subfolders"
    paragraphs = [("Ana sent", [("Who?", ["Ana"])])]
    write_set(tmp_path, paragraphs)
    (tmp_path / "vocab.txt").unlink()
    assert error(tmp_path) == "F has no vocab.txt, nor have its subfolders"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").touch()
    assert error(tmp_path) == (
        "F has 2 files vocab.txt. Keep one of them: a/vocab.txt and b/vocab.txt"
    )


def test_a_vocabulary_of_another_network_is_an_error(tmp_path: Path) -> None:
    paragraphs = [("Ana sent", [("Who?", ["Ana"])])]
    write_set(tmp_path, paragraphs, ["[PAD]", "[UNK]", "ana"])
    assert error(tmp_path) == "F/vocab.txt is not a BERT vocabulary: it lacks [CLS], [SEP]"
    write_set(tmp_path, paragraphs, VOCABULARY)
    count = len(VOCABULARY)
    assert opened(tmp_path, rows=count).facts["questions"] == 1
    assert (
        error(tmp_path, count - 1)
        == f"F/vocab.txt has {count} tokens, but the network has {count - 1} rows"
    )
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    assert error(tmp_path).startswith("F/vocab.txt is not UTF-8: ")


GOOD = {"id": "q", "question": "Who?", "answers": [{"text": "Ana", "answer_start": 0}]}


def document(*qas: Any) -> Any:
    return {"data": [{"paragraphs": [{"context": "Ana sent", "qas": list(qas)}]}]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is not in SQuAD's format: Invalid JSON: EOF while parsing"),
        ([], "is not in SQuAD's format: Input should be an object"),
        ({}, "is not in SQuAD's format: data: Field required"),
        ({"data": {}}, "is not in SQuAD's format: data: Input should be a valid array"),
        ({"data": [3]}, "is not in SQuAD's format: data[0]: Input should be an object"),
        (
            {"data": [{"paragraphs": [{"qas": []}]}]},
            "is not in SQuAD's format: data[0].paragraphs[0].context: Field required",
        ),
        (document(), "is not in SQuAD's format: it has no question"),
        (
            document(GOOD, {**GOOD, "id": 7}),
            "is not in SQuAD's format: data[0].paragraphs[0].qas[1].id: Input should be a valid",
        ),
        (
            document(GOOD, GOOD),
            "is not in SQuAD's format: id 'q' occurs twice",
        ),
        (
            document({**GOOD, "answers": []}),
            "is not in SQuAD's format: data[0].paragraphs[0].qas[0].answers: List should have",
        ),
        (
            document({"id": "q", "question": "Who?"}),
            "is not in SQuAD's format: data[0].paragraphs[0].qas[0].answers: Field required",
        ),
        (
            document({**GOOD, "answers": [{"answer_start": 0}]}),
            "is not in SQuAD's format: data[0].paragraphs[0].qas[0].answers[0].text: Field",
        ),
    ],
)
def test_a_file_that_is_not_squads_names_the_place(tmp_path: Path, content: Any, text: str) -> None:
    write_set(tmp_path, [])
    whole = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "dev-v1.1.json").write_text(whole)
    assert error(tmp_path).startswith(f"F/dev-v1.1.json {text}")


@pytest.mark.slow
def test_ten_thousand_questions_take_seconds(tmp_path: Path) -> None:
    import time

    words = ["ana", "sent", "new", "york", "the", "letter", "letters", "who", "cafe"]
    rng = random.Random(0)
    paragraphs = [
        (" ".join(rng.choices(words, k=rng.randrange(80, 500))), [("Who sent?", ["ana"])] * 5)
        for _ in range(2100)
    ]
    started = time.process_time()
    dataset = opened(write_set(tmp_path, paragraphs))
    count = len(dataset)
    assert dataset.facts["questions"] == 10_500
    noise = np.random.default_rng(0).standard_normal((count, 384), dtype=np.float32)
    assert dataset.score(dict.fromkeys(OUTPUTS, noise))["f1"] > 0
    assert time.process_time() - started < 60


def test_questions_can_be_shown_with_their_answers(dataset: QuestionSet) -> None:
    def infer(batch: dict[str, Any]) -> dict[str, Any]:
        assert [array.shape for array in batch.values()] == [(1, 384)] * 3
        seen.append(batch["input__0"])
        first = int(batch["input__1"][0].argmax())
        return logits(384, [(first, first)])

    seen: list[Any] = []
    rows = show_answers(dataset, infer, count=4)
    questions = dataset.questions
    chosen = [questions[i * len(questions) // 4] for i in range(4)]
    assert [row["question"] for row in rows] == [each.text for each in chosen]
    assert [row["expected"] for row in rows] == [each.answers[0] for each in chosen]
    assert len(seen) == sum(row["windows"] for row in show_features(dataset, count=4))
    for row, each in zip(rows, chosen, strict=True):
        context = dataset.contexts[each.context]
        assert context.startswith(row["answer"])
        assert row["answer"]
        assert row["context"].strip("… ") in context
        assert row["expected"] in row["context"]
        assert len(row["context"]) < len(row["expected"]) + 130
    assert len(show_answers(dataset, infer, count=1000)) == len(questions)
    everything = concatenate(infer(dataset.take([place])) for place in range(len(dataset)))
    assert show_answers(dataset, everything, count=4) == rows


@pytest.mark.parametrize("times", [1, 40])
def test_a_client_reads_the_answer_out_of_the_passage(tmp_path: Path, times: int) -> None:
    """Also where several windows are needed, of which not every one has the answer."""
    text = "Many letters came. " * times + "Ana\u202fsent the Cafés."
    dataset = opened(write_set(tmp_path, [(text, [("Who sent letters?", ["Ana"])])]), length=40)

    example = show_example(dataset, 1)

    place = example.beside["characters"][:, 0].tolist().index(text.index("Ana"))
    first = int(example.beside["passage"][0]) + place
    found = logits(40, [(first, first)])
    assert len(dataset) == 1 if times == 1 else len(dataset) > 1
    assert said(example, found) == ["Who sent letters?", "answer: Ana", "expected: Ana"]
    assert [example.batch[name].shape for name in INPUTS] == [(1, 40)] * 3


def test_features_can_be_shown(tmp_path: Path) -> None:
    folder = write_set(tmp_path, [("Ana sent " * 30, [("Who sent letters?", ["Ana", "x"])])])
    assert show_features(opened(folder, length=40)) == [
        {
            "question": "Who sent letters?",
            "tokens": "who sent letter ##s ?",
            "paragraph tokens": 60,
            "windows": 2,
            "answer": "Ana",
        }
    ]


# The generated questions


def test_the_generated_questions_are_the_same_every_time(generated: Path, tmp_path: Path) -> None:
    write(SMALL, tmp_path)
    names = ["dev-v1.1.json", "generated.json", "train-v1.1.json", "vocab.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (generated / name).read_bytes()


def test_the_generated_questions_need_windows_and_have_their_answers_in_place(
    tmp_path: Path,
) -> None:
    config = SimpleNamespace(**{**vars(SMALL), "dataset": "generated"})
    bert.prepare_dataset(config, tmp_path)
    dataset = bert.open_dataset(config, tmp_path)
    assert isinstance(dataset, QuestionSet)
    facts = dataset.facts
    assert facts["origin"] == "generated"
    assert facts["questions"] == 240
    document = json.loads((tmp_path / "dev-v1.1.json").read_text())
    places = []
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                for answer in entry["answers"]:
                    start, text = answer["answer_start"], answer["text"]
                    assert paragraph["context"][start : start + len(text)] == text
                    places.append(start / len(paragraph["context"]))
    assert np.histogram(places, bins=5, range=(0, 1))[0].min() > len(places) / 20
    several = {window.question for window in dataset.windows if window.start}
    assert 0.1 < len(several) / int(facts["questions"]) < 0.2
    unknown = dataset.tokenizer.encode((*dataset.contexts, "Xyzzy 123."))
    assert all(1 not in text.ids for text in unknown)


def test_the_vocabulary_fits_every_variant() -> None:
    tokens = vocabulary()
    assert len(tokens) == len(set(tokens)) <= SIZES["small"].rows
    assert all(size.rows % 8 == 0 for size in SIZES.values())


def test_training_never_sees_a_paragraph_of_the_evaluation_set(dataset: QuestionSet) -> None:
    seen = dataset.take(range(len(dataset)))["input__0"].tolist()
    for step, count in ((1, 16), (7, 4)):  # the second has long paragraphs
        ids, segments, mask, labels = training_batch(dataset.tokenizer, step)
        assert (ids.dtype, labels.shape) == (torch.int32, (count, 2))
        assert ids.shape == segments.shape == mask.shape
        for row in ids.tolist():
            assert row + [0] * (384 - len(row)) not in seen


def test_the_labels_of_training_mark_the_answers_or_the_first_token(dataset: QuestionSet) -> None:
    patterns = {
        "where": "[a-z]+ ##[a-z]+",
        "when": r"\d+ [a-z]+ 1[789] ##\d\d",
        "what": "[a-z]+ (baker|banker|carpenter|chemist|judge|mason|painter|pilot|surgeon|weaver)",
        "which": "[a-z]+ (camera|clock|compass|engine|kite|lamp|loom|organ|pump|telescope)",
        "how": "[a-z]+",
        "[CLS]": r"\[CLS\]",  # the window lacks the answer
    }
    seen = set()
    for step in (1, 7, 14):
        ids, segments, _, labels = training_batch(dataset.tokenizer, step)
        for row, places, (first, last) in zip(ids, segments, labels.tolist(), strict=True):
            _, query, *_ = tokens = dataset.tokenizer.tokens(Text(row.numpy(), np.empty((0, 2))))
            kind = query if places[first : last + 1].all() else "[CLS]"
            assert re.fullmatch(patterns[kind], " ".join(tokens[first : last + 1])), kind
            seen.add(kind)
    assert seen == patterns.keys()


def test_an_unknown_generated_set_is_an_error(tmp_path: Path) -> None:
    config = SimpleNamespace(**{**vars(SMALL), "dataset": "generated-huge"})
    with pytest.raises(DataError, match=r"^Unknown data set 'generated-huge'. Use one of "):
        bert.prepare_dataset(config, tmp_path)
    with pytest.raises(DataError, match=r"^No checkpoint can be fitted to 'generated-huge'"):
        bert.prepare_checkpoint(config, tmp_path, tmp_path / "c.pt")
    assert list(tmp_path.iterdir()) == []


# The fitted checkpoint and the tolerances


def differences(reference: Floats, output: Floats) -> tuple[float, float]:
    """Largest and mean absolute difference, per deviation of the reference."""
    apart = np.abs(output - reference) / reference.std()
    return float(apart.max()), float(apart.mean())


def within(reference: list[Floats], found: list[Floats], precision: str) -> bool:
    pairs = [differences(*each) for each in zip(reference, found, strict=True)]
    tolerances = bert.TOLERANCES[precision]
    return all(largest <= tolerances[0] and mean <= tolerances[1] for largest, mean in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["small", "base"])
def test_fitting_leaves_torch_as_it_was_and_the_other_layers_change_little(
    generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    from helpers.models.bert.synthetic import fit

    monkeypatch.setattr(fit, "STEPS", {"generated-small": 6})  # two for base
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    config = SimpleNamespace(**{**vars(SMALL), "variant": variant})
    bert.prepare_checkpoint(config, generated, tmp_path / "checkpoint")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert list(tmp_path.iterdir()) == [tmp_path / "checkpoint"]
    built = bert.build(config, tmp_path / "checkpoint")
    rows = len(built.bert.embeddings.word_embeddings.weight)
    assert rows == SIZES[variant].rows
    inputs = some_inputs(2, 128)
    every_layer = run(built, inputs)
    built.bert.encoder.layer = built.bert.encoder.layer[: fit.FITTED]
    for logits, fitted_alone in zip(every_layer, run(built, inputs), strict=True):
        assert not np.array_equal(logits, fitted_alone)
        assert differences(fitted_alone, logits)[0] < 0.2


@pytest.fixture(scope="module")
def fitted(
    shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[QuestionAnswering, QuestionSet]:
    """The network that a run of all stages fitted, and the small set."""
    config, dataset, checkpoint = fitted_by_run("bert", shared, tmp_path_factory.mktemp("run"))
    opened = bert.open_dataset(config, dataset)
    assert isinstance(opened, QuestionSet)
    return bert.build(config, checkpoint), opened


@pytest.mark.slow
@pytest.mark.thorough
def test_the_bounds_tell_a_rounding_from_a_wrong_output(
    fitted: tuple[QuestionAnswering, QuestionSet],
) -> None:
    built, dataset = copy.deepcopy(fitted[0]), fitted[1]
    (inputs,) = dataset.batches(64, limit=32)
    reference = run(built, inputs)
    rng = np.random.default_rng(4)
    wrong = {
        "random": [rng.normal(x.mean(), x.std(), x.shape).astype(np.float32) for x in reference],
        "zero": [np.zeros_like(x) for x in reference],
        "start and end swapped": reference[::-1],
    }
    for first, second in ((0, 1), (0, 31), (15, 16)):
        order = np.arange(32)
        order[[first, second]] = second, first
        wrong[f"{first} and {second} swapped"] = [x[order] for x in reference]
    ids, segments, mask = inputs.values()
    swapped = dict(zip(INPUTS, (ids, mask, segments), strict=True))
    wrong["segments and mask swapped"] = run(built, swapped)
    assert within(reference, run(built.bfloat16(), inputs), "bf16")
    for precision in bert.TOLERANCES:
        assert [name for name in wrong if within(reference, wrong[name], precision)] == []


@pytest.mark.slow
@pytest.mark.thorough
def test_the_small_set_is_fitted_well_above_chance(
    fitted: tuple[QuestionAnswering, QuestionSet],
) -> None:
    built, dataset = fitted
    parts = [run(built, batch) for batch in dataset.batches(8)]
    outputs = dict(zip(OUTPUTS, map(np.concatenate, zip(*parts, strict=True)), strict=True))
    noise = np.random.default_rng(0).standard_normal(outputs[OUTPUTS[0]].shape)
    assert dataset.score(outputs)["f1"] > 15
    assert dataset.score(dict.fromkeys(OUTPUTS, noise))["f1"] < 10


# What the formats ask of it


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "ts_trace", "openvino"])
def test_it_exports_at_one_batch_size_and_runs_at_others(
    network: QuestionAnswering, tmp_path: Path, form: str
) -> None:
    from helpers import formats

    example = some_inputs(2, 128, seed=1)
    source: Any = network
    for name in ("onnx", "openvino") if form == "openvino" else (form,):
        maker = formats.get(name.replace("_", "-"))
        path = tmp_path / maker.FILE
        maker.make(source, path, formats.Build("fp32", example, tuple(OUTPUTS)))
        source = path
    session = maker.load(path, 2, "cpu")
    for batch in (1, 3):
        inputs = some_inputs(batch, 128, seed=2)
        found = session.run(inputs)
        for name, expected in zip(OUTPUTS, run(network, inputs), strict=True):
            np.testing.assert_allclose(found[name], expected, rtol=0, atol=2e-3 * expected.std())
