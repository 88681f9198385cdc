"""BERT for question answering against NumPy, transformers, torchmetrics and cases by hand."""

import copy
import hashlib
import json
import math
import random
import re
import string
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from helpers.errors import CheckpointError, DataError
from helpers.formats import Build, get
from helpers.measure.checks import difference
from helpers.models._arrays import concatenate
from helpers.models.bert import MODEL as bert
from helpers.models.bert import data, metric
from helpers.models.bert.answers import best_spans
from helpers.models.bert.checkpoint import load
from helpers.models.bert.data import QuestionSet
from helpers.models.bert.display import example as show_example
from helpers.models.bert.display import show_answers, show_features
from helpers.models.bert.features import Text, Window, WordPiece, windows
from helpers.models.bert.network import QuestionAnswering
from helpers.models.bert.sizes import SIZES
from helpers.models.bert.synthetic import fit
from helpers.models.bert.synthetic.fit import training_batch
from helpers.models.bert.synthetic.generate import vocabulary
from helpers.results import read
from tests.conftest import ONNX
from tests.models import builders
from tests.models.builders import config_of, published, refusal, said, tensors
from tests.pipeline.test_try_it import fitted_by_run

SMALL = config_of(variant="small")
INPUTS = ["input__0", "input__1", "input__2"]
OUTPUTS = ["output__0", "output__1"]


@pytest.fixture(scope="module")
def network():
    """Random weights, large enough for every part to matter, layer normalisation included."""
    torch.manual_seed(0)
    made = QuestionAnswering("small")
    for name, tensor in made.named_parameters():
        tensor.data.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.1)
    made.eval()
    return made


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    bert.prepare_dataset(SMALL, folder)
    return folder


@pytest.fixture(scope="module")
def dataset(generated):
    return bert.open_dataset(SMALL, generated)


def some_inputs(batch, length, seed=0):
    """Random tokens of random lengths, the first being the whole length, and of the padding."""
    rng = np.random.default_rng(seed)
    tokens = np.array([length, *rng.integers(20, length, batch - 1)])
    mask = (np.arange(length) < tokens[:, None]).astype(np.int32)
    segments = (np.arange(length) >= 9).astype(np.int32) * mask
    ids = rng.integers(0, SIZES["small"].rows, (batch, length), dtype=np.int32)
    return dict(zip(INPUTS, (ids, segments, mask), strict=True))


def run(network, inputs):
    with torch.inference_mode():
        logits = network(*(torch.from_numpy(array) for array in inputs.values()))
    return [each.float().numpy() for each in logits]


# The network


PUBLISHED = published("bert_large_qa")


def nvidia_names(state):
    return {
        name.replace("intermediate.dense.", "intermediate.dense_act."): tensor
        for name, tensor in state.items()
    }


@pytest.mark.slow
def test_the_large_network_has_the_tensors_of_nvidias_checkpoint_but_its_pooler():
    with torch.device("meta"):
        state = nvidia_names(QuestionAnswering("large").state_dict())
    theirs = {name: each for name, each in PUBLISHED.items() if ".pooler." not in name}
    assert tensors(state) == theirs
    assert sum(math.prod(shape) for _, shape in theirs.values()) == 334_100_482


def assert_near(found, expected, bound):
    for each, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, right, rtol=0, atol=bound)


def test_its_logits_equal_those_of_the_transformers_library(network):
    from transformers import BertConfig, BertForQuestionAnswering

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    sizes |= {"vocab_size": SIZES["small"].rows, "intermediate_size": 1024}
    theirs = BertForQuestionAnswering(BertConfig(**sizes, hidden_act="gelu_pytorch_tanh"))
    theirs.train(False)
    theirs.load_state_dict(network.state_dict())
    inputs = some_inputs(2, 384)
    ids, segments, mask = (torch.from_numpy(each).long() for each in inputs.values())
    with torch.inference_mode():
        expected = theirs(ids, attention_mask=mask, token_type_ids=segments)
    assert_near(run(network, inputs), (expected.start_logits, expected.end_logits), 1e-4)


# PyTorch has the first since 2.0 and the approximation of the second since 1.12; opset 13 neither
NEW_OPERATORS = {"scaled_dot_product_attention", "gelu"}


def test_with_operators_of_old_releases_and_in_fp16_it_is_the_same_network(network):
    inputs, basic = some_inputs(3, 128), QuestionAnswering("small", basic_operators=True).eval()
    basic.load_state_dict(network.state_dict())
    expected = run(network, inputs)
    assert_near(run(basic, inputs), expected, bert.TOLERANCES["fp32"][0] * np.std(expected[0]))
    assert_near(run(copy.deepcopy(network).half(), inputs), expected, 0.01)


@pytest.mark.slow
def test_for_an_old_release_its_files_have_operators_that_it_knows(network, tmp_path, caplog):
    import onnx

    path, script = saved(network.state_dict(), tmp_path), tmp_path / "model.pt"
    for opset in (None, 13):
        built = bert.build(config_of(variant="small", opset=opset), path)
        build = Build("fp32", some_inputs(2, 128), tuple(OUTPUTS), opset=opset)
        get("ts-trace").make(built, script, build)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated in PyTorch
            graph = torch.jit.load(script).inlined_graph
        kinds = {node.kind().removeprefix("aten::") for node in graph.nodes()}
        assert NEW_OPERATORS & kinds == (set() if opset else NEW_OPERATORS)
    assert caplog.messages == []  # of transformers

    get("onnx").make(built, path, build)

    model = onnx.load(path)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 13)]
    assert model.ir_version <= 7  # of ONNX Runtime 1.6
    more = some_inputs(5, 128, seed=1)
    expected, found = run(network, more), get("onnx").load(path, 1, "cpu").run(more)
    bound = bert.TOLERANCES["fp32"][0] * np.std(expected[0])
    assert_near([found[name] for name in OUTPUTS], expected, bound)


# The checkpoint


def saved(state, folder, name="c.pt"):
    torch.save(state, folder / name)
    return folder / name


def pooler(hidden, layer="dense_act"):
    name = f"bert.pooler.{layer}"
    return {f"{name}.weight": torch.zeros(hidden, hidden), f"{name}.bias": torch.zeros(hidden)}


SCHEMES = {
    "NVIDIA": lambda state: {"model": {**nvidia_names(state), **pooler(256)}},
    "Hugging Face": lambda state: state,
    "Hugging Face's.safetensors": lambda state: state,
    "Hugging Face of 2019": lambda state: {
        **state,
        **pooler(256, "dense"),
        "bert.embeddings.position_ids": torch.arange(512)[None],
    },
    "TensorFlow": lambda state: {
        re.sub(r"(?<=LayerNorm\.)\w+", lambda m: {"weight": "gamma", "bias": "beta"}[m[0]], name): t
        for name, t in state.items()
    },
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_naming_scheme_loads_to_the_same_tensors(network, tmp_path, scheme):
    state = dict(network.state_dict())
    path = tmp_path / scheme
    (save_file if path.suffix else torch.save)(SCHEMES[scheme](state), path)
    built = bert.build(SMALL, path)
    assert not built.training
    own = built.state_dict()
    assert own.keys() == state.keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in state.items())


def test_safetensors_that_are_cut_or_absent_are_refused(network, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(dict(network.state_dict()), path)
    path.write_bytes(path.read_bytes()[:5000])
    assert refused(path).startswith("is not a whole safetensors file: ")
    assert refused(tmp_path / "no.safetensors") == "is not a file. Use a checkpoint."


def refused(path):
    """Load the file into a network and give the error without the path in front."""
    text = refusal(CheckpointError, load, path, QuestionAnswering("small"), "small")
    assert text.startswith(str(path))
    return text.removeprefix(str(path)).lstrip(": ")


WORDS, POOLER = "bert.embeddings.word_embeddings.weight", "bert.pooler.dense"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({WORDS: torch.zeros(9, 256)}, f"does not fit BERT small: {WORDS} is [9, 256] and should "),
        ({f"{POOLER}.weight": torch.zeros(256, 256)}, "has an incomplete pooler: "),
        (pooler(128), f"{POOLER}.weight is [128, 128] and should be [256, 256]"),
    ],
)
def test_a_checkpoint_of_another_network_is_refused(change, text, network, tmp_path):
    assert refused(saved({**network.state_dict(), **change}, tmp_path)).startswith(text)


@pytest.mark.slow
@pytest.mark.thorough
def test_nvidias_large_checkpoint_fits_and_googles_rows_are_padded(tmp_path):
    rows = 30522
    values = {name: float(place) for place, name in enumerate(PUBLISHED)}
    state = {name: torch.full(shape, values[name]) for name, (_, shape) in PUBLISHED.items()}
    state[WORDS] = torch.full((rows, 1024), 5.0)
    config = SimpleNamespace(variant="large", opset=None)
    built = bert.build(config, saved({"model": state}, tmp_path)).state_dict()
    assert built[WORDS].shape == (30528, 1024)
    assert (built[WORDS] == 5).sum() == rows * 1024
    assert (built[WORDS][rows:] == 0).all()
    for name, tensor in nvidia_names(built).items():
        if name != WORDS:
            assert tensor.flatten()[-1] == values[name]


# Features

VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "sent", "the", "##s", "letter", "ana", "new"),
    *("york", "caf", "##e", ".", ",", "?"),
]


def write_set(folder, paragraphs, tokens=VOCABULARY):
    """Write paragraphs, each a context and pairs of a question and its answers."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for place, (context, asked) in enumerate(paragraphs):
        entries.append({"context": context, "qas": []})
        for number, (question, texts) in enumerate(asked):
            answers = [{"text": text, "answer_start": context.find(text)} for text in texts]
            entry = {"id": f"{place}-{number}", "question": question, "answers": answers}
            entries[-1]["qas"].append(entry)
    document = {"version": "1.1", "data": [{"title": "t", "paragraphs": entries}]}
    (folder / "dev-v1.1.json").write_text(json.dumps(document))
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return folder


def opened(folder, length=384, rows=1280):
    return QuestionSet(folder, length, rows, INPUTS, OUTPUTS)


def test_a_sequence_is_laid_out_as_published_and_answers_are_cut_as_they_were_written(tmp_path):
    context = "Ana\u202fsent\nNEW  York the Cafés."
    write_set(tmp_path, [(context, [("Who sent letters?", ["Ana"])])])
    dataset = opened(tmp_path, length=24)
    (batch,) = dataset.batches(8)
    shown = "[CLS] who sent letter ##s ? [SEP] ana sent new york the caf ##e ##s . [SEP]"
    ids, segments, mask = (batch[name][0].tolist() for name in INPUTS)
    assert ids == [VOCABULARY.index(token) for token in shown.split(" ")] + [0] * 7
    assert segments == [0] * 7 + [1] * 10 + [0] * 7
    assert mask == [1] * 17 + [0] * 7
    assert dataset.windows == [Window(question=0, start=0, length=9, offset=7)]
    for first, last, text in ((0, 0, "Ana"), (2, 3, "NEW  York"), (5, 7, "Cafés"), (8, 8, ".")):
        assert dataset.answers(logits(24, [(7 + first, 7 + last)])) == {"0-0": text}


def logits(length, spans, score=9.0):
    """Give one window's outputs for each pair of a start and an end."""
    outputs = {name: np.zeros((len(spans), length), dtype=np.float32) for name in OUTPUTS}
    for row, places in enumerate(spans):
        for name, place in zip(OUTPUTS, places, strict=True):
            outputs[name][row, place] = score
    return outputs


@pytest.mark.parametrize(("query", "context"), [(5, 9), (12, 369), (12, 370), (90, 1000), (3, 700)])
def test_windows_equal_those_of_the_transformers_library(query, context):
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
    asked, passage = (
        Text(np.full(n, words[token], dtype=np.int32), np.zeros((n, 2), dtype=np.int32))
        for n, token in ((query, "q"), (context, "c"))
    )
    names = ("input_ids", "token_type_ids", "attention_mask")
    for place, window in enumerate(found):
        own = piece.sequence(asked, passage, window, 384)
        assert [array.tolist() for array in own] == [theirs[name][place] for name in names]
    assert len(found) == len(theirs["input_ids"])
    assert [window.start for window in found] == [128 * place for place in range(len(found))]
    assert found[-1].start + found[-1].length == context


def slow_fullest(slid, token):
    """Choose as the published code does, one window after the other."""
    best, chosen = -math.inf, -1
    for place, window in enumerate(slid):
        end = window.start + window.length - 1
        if window.start <= token <= end:
            score = min(token - window.start, end - token) + 0.01 * window.length
            if score > best:
                best, chosen = score, place
    return chosen


# Answers


def slow_spans(slid, start, end):
    """Search as the published code does: every pair, sorted by its sum, over all windows."""
    found = {}
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


def test_the_best_spans_equal_a_slow_search():
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


def test_a_question_without_any_allowed_span_has_an_empty_answer(tmp_path):
    dataset = opened(write_set(tmp_path, [("Ana sent", [("Who?", ["Ana"])])]), length=24)
    backwards = logits(24, [(5, 4)])
    backwards["output__0"][0, :] = np.nan
    assert dataset.answers(backwards) == {"0-0": ""}
    assert dataset.score(backwards) == {"f1": 0.0, "exact_match": 0.0}


@pytest.mark.filterwarnings("ignore")  # of the libraries that torchmetrics looks for
def test_the_metric_equals_that_of_torchmetrics():
    from torchmetrics.text import SQuAD

    rng = random.Random(0)
    words = [
        *("the", "The", "an", "a", "A.", "cat", "Cat", "dog,", "--", "U.S.", "naïve", "Ökonomie"),
        *("東京", "12,5", "", " ", "theatre", "'s", "«x»", "\u202f", "\t", *string.punctuation),
    ]
    pairs = []
    for _ in range(4_000):
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
    assert metric.score(pairs) == pytest.approx(expected, rel=1e-5)
    assert 1 < expected["exact_match"] < expected["f1"] < 95
    assert metric.score([("the", ["a"])]) == {"f1": 0.0, "exact_match": 100.0}


# The data set


def test_every_question_counts_and_both_metrics_are_given(tmp_path):
    asked = [("Who sent letters?", ["Ana"]), ("Who?", ["Ana sent"]), ("The letter?", ["York"])]
    dataset = opened(write_set(tmp_path, [("Ana sent New York", asked)]), length=24)
    outputs = logits(24, [(7, 7), (4, 4), (5, 5)])
    assert dataset.answers(outputs) == {"0-0": "Ana", "0-1": "Ana", "0-2": "Ana"}
    f1 = pytest.approx(100 * (1 + 2 / 3) / 3)
    assert dataset.score(outputs) == {"f1": f1, "exact_match": pytest.approx(100 / 3)}


ONE = [("Ana sent", [("Who?", ["Ana"])])]  # paragraph and question


def test_the_files_are_found_anywhere_below_the_folder(tmp_path):
    write_set(tmp_path / "data/squad/v1.1", ONE)
    other = tmp_path / "data/google_pretrained_weights/uncased_L-24_H-1024_A-16/vocab.txt"
    other.parent.mkdir(parents=True)
    (tmp_path / "data/squad/v1.1/vocab.txt").rename(other)
    found = bert.open_dataset(config_of(variant="large"), tmp_path).facts
    origin = "another file in SQuAD's format"
    assert found == {"paragraphs": 1, "questions": 1, "features": 1, "origin": origin}


def test_the_public_file_is_known_by_its_md5(tmp_path, monkeypatch):
    found = hashlib.md5((write_set(tmp_path, ONE) / "dev-v1.1.json").read_bytes()).hexdigest()
    monkeypatch.setattr(data, "PUBLISHED", found)
    assert opened(tmp_path).facts["origin"] == "SQuAD v1.1 dev set (md5 verified)"


def error(folder, rows=1280):
    return refusal(DataError, opened, folder, 384, rows).replace(str(folder), "F")


def test_folders_of_another_layout_are_errors_that_say_what_is_wrong(tmp_path):
    wanted = "Use one that has dev-v1.1.json and vocab.txt."
    assert error(tmp_path / "absent") == f"F is not a folder. {wanted}"
    assert error(tmp_path) == "F has no dev-v1.1.json, nor have its subfolders"
    (write_set(tmp_path, ONE) / "vocab.txt").unlink()
    assert error(tmp_path) == "F has no vocab.txt, nor have its subfolders"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vocab.txt").touch()
    text = "F has 2 files vocab.txt. Keep one of them: a/vocab.txt and b/vocab.txt"
    assert error(tmp_path) == text


def test_a_vocabulary_of_another_network_is_an_error(tmp_path):
    write_set(tmp_path, ONE, ["[PAD]", "[UNK]", "ana"])
    assert error(tmp_path) == "F/vocab.txt is not a BERT vocabulary: it lacks [CLS], [SEP]"
    write_set(tmp_path, ONE)
    assert opened(tmp_path, rows=17).facts["questions"] == 1
    assert error(tmp_path, 16) == "F/vocab.txt has 17 tokens, but the network has 16 rows"
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    assert error(tmp_path).startswith("F/vocab.txt is not UTF-8: ")


GOOD = {"id": "q", "question": "Who?", "answers": [{"text": "Ana", "answer_start": 0}]}
QAS = "data[0].paragraphs[0].qas"


def document(*qas):
    return {"data": [{"paragraphs": [{"context": "Ana sent", "qas": list(qas)}]}]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "Invalid JSON: EOF while parsing"),
        ([], "Input should be an object"),
        ({}, "data: Field required"),
        ({"data": {}}, "data: Input should be a valid array"),
        ({"data": [3]}, "data[0]: Input should be an object"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "data[0].paragraphs[0].context: Field req"),
        (document(), "it has no question"),
        (document(GOOD, {**GOOD, "id": 7}), f"{QAS}[1].id: Input should be a valid"),
        (document(GOOD, GOOD), "id 'q' occurs twice"),
        (document({**GOOD, "answers": []}), f"{QAS}[0].answers: List should have"),
        (document({"id": "q", "question": "Who?"}), f"{QAS}[0].answers: Field required"),
        (document({**GOOD, "answers": [{"answer_start": 0}]}), f"{QAS}[0].answers[0].text: Field"),
    ],
)
def test_a_file_that_is_not_squads_names_the_place(tmp_path, content, text):
    write_set(tmp_path, [])
    whole = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "dev-v1.1.json").write_text(whole)
    assert error(tmp_path).startswith(f"F/dev-v1.1.json is not in SQuAD's format: {text}")


def test_questions_can_be_shown_with_their_answers(dataset):
    def infer(batch):
        assert [array.shape for array in batch.values()] == [(1, 384)] * 3
        first = int(batch["input__1"][0].argmax())
        return logits(384, [(first, first)])

    rows = show_answers(dataset, infer, count=4)
    questions = dataset.questions
    chosen = [questions[i * len(questions) // 4] for i in range(4)]
    for row, each in zip(rows, chosen, strict=True):
        context = dataset.contexts[each.context]
        assert (row["question"], row["expected"]) == (each.text, each.answers[0])
        assert row["answer"]
        assert context.startswith(row["answer"])
        assert row["context"].strip("… ") in context
        assert row["expected"] in row["context"]
        assert len(row["context"]) < len(row["expected"]) + 130
    assert len(show_answers(dataset, infer, count=1000)) == len(questions)
    everything = concatenate(infer(dataset.take([place])) for place in range(len(dataset)))
    assert show_answers(dataset, everything, count=4) == rows


@pytest.mark.parametrize("times", [1, 40])
def test_a_client_reads_the_answer_out_of_the_passage(tmp_path, times):
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


def test_features_can_be_shown(tmp_path):
    folder = write_set(tmp_path, [("Ana sent " * 30, [("Who sent letters?", ["Ana", "x"])])])
    (row,) = show_features(opened(folder, length=40))
    assert [*row.values()] == ["Who sent letters?", "who sent letter ##s ?", 60, 2, "Ana"]


# The generated questions


def test_the_generated_questions_need_windows_and_have_their_answers_in_place(tmp_path):
    config = config_of(variant="small", dataset="generated")
    bert.prepare_dataset(config, tmp_path)
    dataset = bert.open_dataset(config, tmp_path)
    assert dataset.facts["questions"] == 240
    places = []
    for article in json.loads((tmp_path / "dev-v1.1.json").read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for answer in (each for entry in paragraph["qas"] for each in entry["answers"]):
                start, text = answer["answer_start"], answer["text"]
                assert paragraph["context"][start : start + len(text)] == text
                places.append(start / len(paragraph["context"]))
    assert np.histogram(places, bins=5, range=(0, 1))[0].min() > len(places) / 20
    several = {window.question for window in dataset.windows if window.start}
    assert 0.1 < len(several) / 240 < 0.2
    unknown = dataset.tokenizer.encode((*dataset.contexts, "Xyzzy 123."))
    assert all(1 not in text.ids for text in unknown)


def test_the_vocabulary_fits_every_variant():
    tokens = vocabulary()
    assert len(tokens) == len(set(tokens)) <= SIZES["small"].rows
    assert all(size.rows % 8 == 0 for size in SIZES.values())


def test_training_never_sees_a_paragraph_of_the_evaluation_set(dataset):
    seen = dataset.take(range(len(dataset)))["input__0"].tolist()
    for step, count in ((1, 16), (7, 4)):  # the second has long paragraphs
        ids, segments, mask, labels = training_batch(dataset.tokenizer, step)
        assert (ids.dtype, labels.shape) == (torch.int32, (count, 2))
        assert ids.shape == segments.shape == mask.shape
        for row in ids.tolist():
            assert row + [0] * (384 - len(row)) not in seen


def test_the_labels_of_training_mark_the_answers_or_the_first_token(dataset):
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


# The fitted checkpoint and the tolerances


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["small", "base"])
def test_layers_that_are_not_fitted_change_little(generated, tmp_path, monkeypatch, variant):
    monkeypatch.setattr(fit, "RECIPES", {"generated-small": (6, 2e-3)})  # two steps for base
    config = config_of(variant=variant)
    bert.prepare_checkpoint(config, generated, tmp_path / "checkpoint")
    built = bert.build(config, tmp_path / "checkpoint")
    assert len(built.bert.embeddings.word_embeddings.weight) == SIZES[variant].rows
    inputs = some_inputs(2, 128)
    every_layer = run(built, inputs)
    built.bert.encoder.layer = built.bert.encoder.layer[: fit.FITTED]
    for logits, fitted_alone in zip(every_layer, run(built, inputs), strict=True):
        assert not np.array_equal(logits, fitted_alone)
        assert difference("", logits, fitted_alone, (0.2, 0.2)).ok


@pytest.fixture(scope="module")
def fitted(shared, tmp_path_factory):
    """The network that a run of all stages fitted, and the small set."""
    config, dataset, checkpoint = fitted_by_run("bert", shared, tmp_path_factory.mktemp("run"))
    return bert.build(config, checkpoint), bert.open_dataset(config, dataset)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_bounds_tell_a_rounding_from_a_wrong_output(fitted):
    built, dataset = copy.deepcopy(fitted[0]), fitted[1]
    (inputs,) = dataset.batches(64, limit=32)
    reference = run(built, inputs)
    ids, segments, mask = inputs.values()
    swapped = dict(zip(INPUTS, (ids, mask, segments), strict=True))
    wrong = {"start and end": reference[::-1], "segments and mask": run(built, swapped)}
    builders.assert_bounds_tell(bert.TOLERANCES, reference, wrong)
    for pair in zip(run(built.bfloat16(), inputs), reference, strict=True):
        assert difference("", *pair, bert.TOLERANCES["bf16"]).ok


@pytest.mark.slow
@pytest.mark.thorough
def test_the_small_set_is_fitted_well_above_chance(fitted):
    built, dataset = fitted
    parts = [run(built, batch) for batch in dataset.batches(8)]
    outputs = dict(zip(OUTPUTS, map(np.concatenate, zip(*parts, strict=True)), strict=True))
    noise = np.random.default_rng(0).standard_normal(outputs[OUTPUTS[0]].shape)
    assert dataset.score(outputs)["f1"] > 15
    assert dataset.score(dict.fromkeys(OUTPUTS, noise))["f1"] < 10


# What the formats ask of it


@pytest.mark.slow
def test_every_format_equals_the_network_at_other_batch_sizes(network, tmp_path):
    batches = [some_inputs(2, 128, seed=1), *(some_inputs(size, 128, seed=2) for size in (1, 3))]
    made = {"onnx": "", "ts-trace": "", "openvino": "onnx"}
    builders.assert_formats_equal(bert, network, run, made, tuple(OUTPUTS), tmp_path, *batches)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_checkpoint_and_questions_that_a_parameter_file_names_are_exported(network, fresh):
    """NVIDIA's names, another vocabulary, and no questions to train with."""
    state = {f"module.{name}": t for name, t in nvidia_names(network.state_dict()).items()}
    path = saved({"model": state}, fresh.root)
    fields = {"checkpoint": str(path), "dataset": str(write_set(fresh.root / "squad", ONE * 3))}
    fields |= {"export_format": "ts-trace", "format": "ts-trace", "variant": "small"}
    models = {"bert": {"experiments": {"mine": ONNX | fields | {"max_seq_length": 128}}}}
    content = {"gpu": "CPU (mine)", "device": "cpu", "models": models}
    (fresh.root / "params/mine.yaml").write_text(yaml.safe_dump(content))

    answer = fresh.run("run", "params/mine.yaml", "--stage", "export")

    assert answer.code == 0, answer.output
    (path,) = (fresh.root / "outputs/mine").glob("*/mine/export.json")
    assert not read(path).checks[0].failure
