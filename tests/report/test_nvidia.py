"""NVIDIA's rows are read as published, compared with ours with every reason against it, and can be
browsed without any run of ours, as can the fidelity of our experiments.
"""

import base64
import csv
import hashlib
import re
import shutil
from html import unescape
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from pandas import read_csv

from helpers import results
from helpers.__main__ import main
from helpers.config import PROTOCOLS
from helpers.display import table
from helpers.errors import DataError
from helpers.measure.analyzer import LoadPoint, arguments
from helpers.report import Answer, nvidia, site, text
from helpers.report.nvidia import fidelity, pages
from helpers.report.nvidia.comparison import choose_gpu, nearest, pair
from helpers.report.nvidia.rows import everything, gpus, published, read, violates_littles_law
from helpers.report.nvidia.rows import tables as published_tables
from helpers.report.nvidia.sources import sources
from helpers.results import Row
from helpers.store.hashing import file_digest
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT
from tests.comparisons import compared
from tests.report.builders import Page, fingerprint, measurement, report, result, texts

T4, A30, A100 = "NVIDIA T4", "NVIDIA A30", "NVIDIA DGX A100 (1x A100 80GB)"
BROKEN = [  # TFT with PyTorch on a T4: data set and clients, from NVIDIA's tables by hand
    *(("electricity", clients) for clients in (144, 168, 192, 216, 224, 256)),
    *(("traffic", clients) for clients in (168, 200, 216, 256)),
]


def raw(model):
    with (ROOT / f"params/published/{model}.csv").open() as file:
        return list(csv.DictReader(file))


def row_of(model, **named):
    return next(
        row
        for row in published(model)
        if all(getattr(row, name) == value for name, value in named.items())
    )


SAVED_MODEL = "TensorFlow SavedModel"
SPELLED = {"TensorRT": "trt", "NVIDIA TensorRT": "trt", "Automatic FP16": "amp"}
RELEASES = {"resnet50": "21.02", "bert": "21.10", "tft": "22.11", "widedeep": "22.02"}


def as_ours(row, **changes):
    """A row of `results.csv` as an experiment that repeats the published one would leave it."""
    fp32 = row.model == "tft" and row.backend == "PyTorch"
    online = row.model == "resnet50" and row.scenario == "online"
    same = row.model_dump() | {
        "backend_accelerator": SPELLED.get(row.backend_accelerator, ""),
        "precision": "FP32" if fp32 else row.precision,
        # NVIDIA captured TFT's, whatever its tables say
        "cuda_graph": bool(row.cuda_graph) or (row.model == "tft" and not fp32),
        "instances": 2 if online else row.instances,  # as the script started
        "dataset": "datasets/real",
        "variant": {"bert": "large", "dlrm": "T3", "dcnv2": "T3"}.get(row.model, row.dataset),
        "experiment": "mine",
        "quality": "stable",
    }
    if row.model in ("dlrm", "dcnv2"):
        same |= dict.fromkeys(("backend", "model_format"), "NVIDIA TensorRT")
    return Row(**same | changes)


def settings_of(row, **changes):
    memory = "none" if row.model == "resnet50" else "system"
    server = {"kind": "docker", "release": RELEASES.get(row.model, "23.02")}
    return {"server": server, "checkpoint": "a.pt", "shared_memory": memory} | changes


def pair_of(row, settings=None, **changes):
    settings = settings_of(row, **settings or {})
    return pair(as_ours(row, **changes), settings, published(row.model), row.gpu)


# The rows


@pytest.mark.parametrize("model", sources())
def test_every_cell_is_read_as_it_stands_in_the_file(model):
    for row, cells in zip(published(model), raw(model), strict=True):
        for name, value in row.model_dump().items():
            if isinstance(value, bool):
                assert cells[name] == str(value).lower()
            elif isinstance(value, int | float):
                assert float(cells[name]) == value
            else:
                assert cells[name] == (value or "")


def test_a_row_has_types_and_a_document():
    row = row_of("resnet50", gpu=T4, scenario="offline", batch_size=8)

    assert (row.throughput, row.instances, row.client_send_ms) == (888.0, 1, None)
    assert row.served == "ONNX with TensorRT, FP16"
    assert row.setup.path == "PyTorch/Classification/ConvNets/triton/resnet50/README.md"
    assert (published("dummy"), gpus(())) == ((), [])


def test_exactly_ten_rows_break_littles_law():
    broken = [row for row in everything() if violates_littles_law(row)]

    assert [(row.dataset, row.concurrency) for row in broken] == BROKEN
    kinds = {(row.model, row.gpu, row.scenario, row.backend) for row in broken}
    assert kinds == {("tft", T4, "online", "PyTorch")}
    # 2,952 samples/s x 842.9 ms over 16 samples x 216 clients
    worst = min(broken, key=lambda row: row.littles_law or 1)
    assert worst.littles_law == pytest.approx(2952 * 0.8429 / (16 * 216))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("332.4", "fast", "line 2: throughput: Input should be a valid number"),
        ("332.4", "nan", "line 2: throughput: Input should be a finite number"),
        ("3.189", "-1", "line 2: p99_latency_ms: Value error, is negative"),
        ("332.4", "", "line 2: throughput: Input should be a valid number"),
        (",1.0,1,1,", ",1.5,1,1,", "line 2: instances: Input should be a valid integer"),
        (",1.0,1,1,", ",1.0,0,1,", "line 2: batch_size: Input should be greater than or equal"),
        ("throughput", "speed", "line 1: not the columns of the published tables"),
        ("NVIDIA T4,resnet50", "resnet50", "line 2: "),
        ("000_5151", "more,000_5151", "line 1: "),
        ("", b"", "holds no row"),
        ("", b"gpu,model\n", "holds no row"),
        ("", b"\xff\xfe\x00\x01", "cannot be read as CSV"),
        ("", None, "cannot be read as CSV"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_the_place(old, new, words, tmp_path):
    lines = (ROOT / "params/published/resnet50.csv").read_text().splitlines()
    path, text = tmp_path / "rows.csv", f"{lines[0]}\n{lines[25]}\n"
    assert old in text
    if new is not None:
        path.write_bytes(text.replace(old, new).encode() if old else new)

    with pytest.raises(DataError, match=f"rows.csv: {re.escape(words)}") as caught:
        read(path)
    assert "\n" not in str(caught.value)


# Ours compared with theirs


RANDOM = "samples sent: ours samples of a data set, NVIDIA's random values"
LOOKUP = (
    "embedding lookup: ours in memory, NVIDIA's hierarchical parameter server with a GPU cache "
)
LOOKUP += "of 10% of the rows (NVIDIA's HPS is now deprecated)"
INHERENT = {
    "resnet50": {RANDOM},
    "bert": {"protocol: ours HTTP, NVIDIA's gRPC"},
    "tft": {"samples sent: ours samples of a data set, NVIDIA's one example over and over"},
    "widedeep": {
        "samples sent: ours samples of a data set, NVIDIA's random ids (most of NVIDIA's ids are "
        "outside the embedding tables, so a GPU looks up nothing)"
    },
    "dlrm": {LOOKUP},
    "dcnv2": {LOOKUP},
}
# What has fp32 arithmetic, on the GPUs that have TF32: its format and precision by NVIDIA's label
WITH_TF32 = {
    ("tft", "TorchScript Trace, FP16"),
    ("widedeep", f"{SAVED_MODEL} with Automatic FP16, FP32"),
    ("dlrm", "Triton Ensemble (Merlin HPS + TensorRT), FP32"),
    ("dcnv2", "Triton Ensemble (Merlin HPS + TensorRT), FP32"),
}
TF32 = "NVIDIA's fp32 presumably ran in TF32, its runtime's default"


@pytest.mark.parametrize("model", sources())
def test_who_repeats_a_published_row_finds_it_with_no_reason_but_nvidias_own(model):
    for row in published(model):
        found = pair_of(row)
        said = {text for text in found.reasons if "Little's" not in text and "label" not in text}

        assert (found.published, found.ratio) == (row, 1)
        has_tf32 = row.gpu in (A30, A100) and (model, row.served) in WITH_TF32
        assert said == INHERENT[model] | ({TF32} if has_tf32 else set())
        is_torch = row.backend == "PyTorch" and model == "tft"
        assert ("labelled FP16" in str(found.reasons)) == is_torch
        assert ("Little's" in str(found.reasons)) == violates_littles_law(row)


OFFLINE, ONLINE = {"scenario": "offline"}, {"scenario": "online"}
TENSORRT, TORCH = {"backend": "NVIDIA TensorRT"}, {"backend": "PyTorch"}
WORST = TORCH | {"concurrency": 216, "dataset": "electricity"}
DENSE = {"batch_size": 256, "precision": "FP16"}
NEAREST = "(the nearest published)"
GRAPHS, SERVER = {"cuda_graph": False}, {"kind": "docker", "release": "24.10"}
EMBEDDED = {"kind": "embedded", "release": "21.02"}
ADAPTER = {"backend": "ONNX Runtime (Triton Python backend)"}
DIFFERENCES = {  # what differs -> the reason, for a row of each model
    ("resnet50", "offline"): [
        ({"gpu": "CPU"}, "GPU: ours CPU, NVIDIA's T4"),
        ({"server": SERVER}, "Triton release: ours 24.10"),
        ({"server": EMBEDDED}, "Triton release: ours 24.10"),
        ({"shared_memory": "system"}, "tensors: ours in shared memory, NVIDIA's in the request"),
        (ADAPTER, "backend: ours Python backend, NVIDIA's ONNX Runtime"),
        ({"model_format": "OpenVINO IR"}, "format: ours OpenVINO IR, NVIDIA's ONNX"),
        ({"precision": "BF16"}, "precision: ours BF16, NVIDIA's FP16"),
        ({"backend_accelerator": ""}, "accelerator: ours none, NVIDIA's TensorRT"),
        ({"batch_size": 11}, f"batch size: ours 11, NVIDIA's 8 {NEAREST}"),
        ({"concurrency": 2}, f"clients: ours 2, NVIDIA's 1 {NEAREST}"),
        ({"instances": 2}, "instances: ours 2, NVIDIA's 1"),
        ({"cuda_graph": True}, "CUDA graphs: ours captured, NVIDIA's not captured"),
        ({"checkpoint": "fitted"}, "our checkpoint is trained on generated data"),
        ({"quality": "noisy"}, "our measurement is noisy"),
        ({"crop_size": 64}, "image size (pixels): ours 64, NVIDIA's 224"),
        ({"crop_size": 224}, ""),
    ],
    ("resnet50", "online"): [({"instances": 1}, "instances: ours 1, NVIDIA's 2 (NVIDIA's ")],
    ("bert", ""): [
        ({"max_seq_length": 128}, "sequence length: ours 128, NVIDIA's 384"),
        ({"max_seq_length": 384}, ""),
        ({"variant": "small"}, "variant of the network: ours small, "),
    ],
    ("widedeep", "tensorrt"): [(GRAPHS, "CUDA graphs: ours not captured, NVIDIA's captured")],
    ("tft", "tensorrt"): [(GRAPHS, "CUDA graphs: ours not captured, NVIDIA's captured")],
    ("tft", "torch"): [({"precision": "FP16"}, "precision: ours FP16, NVIDIA's FP32")],
    ("tft", "worst"): [({}, "NVIDIA's row contradicts Little's law (ratio 0.72)")],
    ("tft", "online"): [({"shared_memory": "none"}, "")],
    ("dlrm", "dense"): [
        ({"table_precision": "int8"}, "precision of embedding tables: ours int8, NVIDIA's fp32"),
        ({"lookup": "hps"}, "embedding lookup: ours this package's parameter server, "),
    ],
}
ROWS = {"offline": OFFLINE | {"batch_size": 8}, "online": ONLINE, "tensorrt": TENSORRT, "": {}}
ROWS |= {"torch": TORCH, "worst": WORST, "dense": DENSE}


@pytest.mark.parametrize(
    ("model", "row", "changes", "reason"),
    [(*key, *each) for key, differences in DIFFERENCES.items() for each in differences],
)
def test_each_difference_is_a_reason(model, row, changes, reason):
    ours = {name: value for name, value in changes.items() if name in Row.model_fields}
    settings = {name: value for name, value in changes.items() if name not in ours}

    found = pair_of(row_of(model, gpu=T4, **ROWS[row]), settings, **ours).reasons

    said = [text for text in found if text not in INHERENT[model] and "label" not in text]
    assert len(said) == bool(reason)
    assert "".join(said).startswith(reason)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_our_protocol_is_the_one_that_the_load_is_made_with(protocol):
    load = LoadPoint("m", Path("d"), [], protocol=protocol)
    line = arguments(load, "127.0.0.1:1", Path("f"))

    assert line[line.index("-i") + 1].upper() == PROTOCOLS[protocol].upper()


def test_a_gpu_without_published_rows_is_compared_with_the_slowest_or_the_fastest():
    given = [(A30, "gpu"), ("CPU", "cpu"), ("NVIDIA H200", "gpu")]

    assert [choose_gpu(published("bert"), *each) for each in given] == [A30, T4, A100]
    assert choose_gpu((), "CPU", "cpu") == ""


TRAFFIC = TENSORRT | {"dataset": "traffic", "batch_size": 64}


@pytest.mark.parametrize(
    ("model", "ours", "theirs"),
    [
        # the same format, then precision, then accelerator
        ("bert", ("ONNX", "FP32", ""), "ONNX, FP16"),
        ("bert", ("ONNX", "FP32", "trt"), "ONNX with TensorRT, FP16"),
        ("widedeep", ("OpenVINO IR", "FP16", ""), "TensorRT, FP16"),
        ("widedeep", ("OpenVINO IR", "FP32", ""), f"{SAVED_MODEL} with Automatic FP16, FP32"),
        # none of NVIDIA's: its fastest table
        ("bert", ("OpenVINO IR", "BF16", ""), "TensorRT, FP16"),
    ],
)
def test_the_nearest_row_is_of_the_nearest_table(model, ours, theirs):
    names = ("model_format", "precision", "backend_accelerator")
    row = as_ours(row_of(model, gpu=T4), **dict(zip(names, ours, strict=True)))

    assert nearest(row, published(model), T4).served == theirs


@pytest.mark.parametrize(("ours", "theirs"), [(90, 64), (92, 128)])
def test_the_nearest_batch_is_that_by_factor_of_one_data_set(ours, theirs):
    row = as_ours(row_of("tft", gpu=T4, **TRAFFIC), batch_size=ours)

    found = nearest(row, published("tft"), T4)

    assert (found.batch_size, found.dataset) == (theirs, "traffic")


def test_what_was_not_measured_or_not_published_or_is_repeated_has_no_pair():
    row = row_of("bert", gpu=T4)
    rows, settings = published("bert"), settings_of(row)

    for changes in ({"throughput": None}, {"scenario": "online"}):
        assert pair(as_ours(row, **changes), settings, rows, T4) is None
    ours = as_ours(row)
    assert pair(ours, settings, (), "") is None
    repeated = measured("bert", T4, ours, ours.model_copy(update={"repeated": True}))
    assert [found.measured for found in repeated.pairs] == [ours]


# What a report says


def measured(model, gpu, *rows, **settings):
    """The comparison for some rows of one experiment on a target."""
    config = report(model, target="t", gpu=gpu)
    made_from = fingerprint(**settings_of(row_of(model)) | settings)
    found = {"fingerprint": made_from, "measurement": measurement(*rows)}
    return nvidia.compare(config, {"mine": {"perf_offline": result("perf_offline", **found)}})


@pytest.fixture
def on_a_processor():
    """BERT-small of ours in ONNX with two batch sizes, compared with NVIDIA's T4."""
    one, eight = (row_of("bert", gpu=T4, batch_size=size) for size in (1, 8))
    adapter = {"gpu": "CPU", "backend": "ONNX Runtime (Triton Python backend)", "variant": "small"}
    rows = (
        as_ours(one, **adapter, throughput=10.0, p99_latency_ms=50.0),
        as_ours(eight, **adapter, throughput=22.2, batch_size=7, quality="imprecise"),
        as_ours(one, **adapter, throughput=None, quality="failed", batch_size=16),
    )
    return measured("bert", "CPU", *rows, checkpoint="fitted")


def text_of(comparison):
    return str(nvidia.summary(comparison).data)


def test_a_report_says_the_ratio_and_first_what_is_unfair_to_all(on_a_processor):
    text = text_of(on_a_processor)

    for said in (
        *(
            "NVIDIA published no rows of bert for CPU, so",
            "ours are compared with its rows for ",
        ),
        "(../../published.html#model=bert&gpu=NVIDIA+T4)",
        "0.25× to 0.5× NVIDIA's (median of 2 measurements: 0.375×)",  # 10/40 and 22.2/44.4
        *("- **mine**, compared with ONNX, FP16\n", "NVIDIA published no online rows of bert."),
    ):
        assert said in text
    for reason in ("ours CPU, NVIDIA's T4", "backend: ours Python backend", "trained on", "gRPC"):
        assert text.count(reason) == 1
    assert NEAREST not in text  # it concerns one row


def test_its_table_holds_each_pair_and_what_is_unfair_to_it_alone(on_a_processor):
    html = unescape(nvidia.as_table(on_a_processor).html)

    assert html.count("<tr>") == 3
    said = f"batch size: ours 7, NVIDIA's 8 {NEAREST}"
    for part in (">7 × 1<", ">8 × 1<", ">0.25<", said, "quality-imprecise"):
        assert part in html
    assert "GPU: ours" not in html


def test_without_a_row_of_ours_the_gpus_published_rows_are_shown():
    comparison = measured("tft", T4)

    html = unescape(nvidia.as_table(comparison).html)
    assert "Nothing was measured on NVIDIA T4, so only" in text_of(comparison)
    assert (html.count("<tr>"), html.count("contradicts Little's law")) == (1 + 172, 10)
    assert len(comparison.drawn("online")) == 4 * 32
    assert "ours was not measured." in nvidia.describe(comparison, "online")


def test_a_model_without_published_rows_says_so_and_draws_nothing():
    comparison = nvidia.compare(report("resnet50", model="dummy"), {})

    assert text_of(comparison) == "NVIDIA published nothing for dummy."
    assert comparison.scenarios == []
    assert "<td" not in nvidia.as_table(comparison).html


def test_the_figure_has_a_log_scale_ours_and_the_tables_of_every_gpu(on_a_processor):
    figure = nvidia.draw(on_a_processor, "offline")

    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "throughput (samples/s), log scale"
    legend = texts(figure.legends[0])
    assert legend[:2] == ["mine", T4]
    assert set(legend[1:5]) == set(gpus(published("bert")))
    grey = [list(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "--"]
    assert [40.0, 44.4, 45.3] in grey
    assert len(grey) == 4


def test_on_nvidias_own_gpu_the_figure_names_the_tables():
    row = row_of("bert", gpu=A30, backend="PyTorch", batch_size=8)
    comparison = measured("bert", A30, as_ours(row))

    names = ["mine", "NVIDIA's TorchScript Trace, FP16"]
    assert texts(nvidia.draw(comparison, "offline").legends[0]) == names
    assert "Compared with NVIDIA's rows for NVIDIA A30." in text_of(comparison)
    said = "ours is 1× to 1× the nearest rows of NVIDIA A30."
    assert said in nvidia.describe(comparison, "offline")
    assert comparison.scenarios == ["offline"]
    assert nvidia.describe(comparison, "online").startswith("NVIDIA published no online rows")
    (text,) = nvidia.draw(comparison, "online").axes[0].texts
    assert text.get_text() == "Nothing was measured."


def test_the_data_of_a_figure_are_the_pairs_and_what_else_is_drawn(on_a_processor):
    data = nvidia.data(on_a_processor, "offline")

    assert list(data["throughput"].dropna()) == [10.0, 22.2]
    assert len(data) == len(on_a_processor.drawn("offline"))  # both pairs are among them
    first = data.iloc[0]
    assert first[["nvidia_gpu", "nvidia_throughput", "throughput_ratio"]].tolist() == [T4, 40, 0.25]
    assert first["p99_latency_ratio"] == pytest.approx(50 / first["nvidia_p99_latency_ms"])
    assert "GPU: ours CPU, NVIDIA's T4" in first["reasons"]


def test_a_report_depends_on_the_published_rows():
    inputs = results.fingerprint(report("bert", target="none")).inputs
    path = "params/published/bert.csv"

    assert inputs == {path: file_digest(ROOT / path)}


HOSTILE = "</title><script>run()</script><meta http-equiv='refresh'> *b* `c` [d](e) $f$ a_b_c | g"


def test_text_from_parameters_and_data_is_shown_as_it_is_and_is_never_markup(tmp_path):
    bounds = {"throughput_low": 39.0, "throughput_high": 41.0}
    row = as_ours(row_of("bert", gpu=T4), gpu=HOSTILE, experiment=HOSTILE, **bounds)
    comparison = measured("bert", HOSTILE, row)
    config = report("bert", target="t", gpu=HOSTILE)
    failed = {HOSTILE: {"deploy": result("deploy", state="failed", reason=HOSTILE)}}
    tables = [
        nvidia.as_table(comparison),
        table(config.summary(), HOSTILE),
        text.what_to_deploy(config, [Answer(compared(**{HOSTILE: 1.0}))]),
    ]
    shown = [{"text/html": each.html} for each in tables]
    for each in (nvidia.summary(comparison), text.details(config, failed, comparison.measured)):
        shown.append({"text/markdown": each.data})
    outputs = [new_output("display_data", data=each) for each in shown]
    cells = [new_code_cell("x", outputs=[each]) for each in outputs]
    nbformat.write(new_notebook(cells=cells), tmp_path / "report.ipynb")

    page = Page(site.page(tmp_path / "report.ipynb", tmp_path / "report.html").read_text())

    tags = [name for name, _ in page.tags]
    assert not {"script", "em"} & set(tags)
    assert tags.count("meta") == 4  # the page's own
    (link,) = page.all("a")
    assert str(link["href"]).startswith("../../published.html#model=bert&gpu=NVIDIA")
    for what in (
        *(f"no rows of bert for {HOSTILE}, so ours", f"{HOSTILE} , compared with ONNX, FP16"),
        *(f"Deploy {HOSTILE}: no other experiment", f"Failed: {HOSTILE} ({HOSTILE})."),
    ):
        assert what in page.text


# The pages of all rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An outputs folder with a target of which nothing has run, published."""
    path = tmp_path_factory.mktemp("outputs")
    (path / "smoke").mkdir()
    shutil.copyfile(ROOT / "params/smoke.yaml", path / "smoke/parameters.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(path))
        assert main(["publish", "--outputs", str(path)]) == 0
    return path


def body(page):
    return re.findall(r"<tr.*?</tr>", page.rpartition("<tbody>")[2], re.DOTALL)


def cells(row):
    return [unescape(text) for text in re.findall(r"<td>(.*?)</td>", row)]


def test_publishing_without_a_run_writes_every_row_and_links_them(folder):
    page = (folder / "published.html").read_text()
    index = (folder / "index.html").read_text()

    assert re.findall('href="([^d][^"]*)"', index) == [
        *("published.html", "fidelity.html", "glossary.html", "smoke/index.html")
    ]
    assert [*re.findall('href="fidelity.html#(.*?)"', page)] == [*sources()]
    assert 'href="documentation-params-published-widedeep.html"' in page
    assert 'href="index.html"' in page
    assert "1,218 rows from 84 tables" in page
    assert len(body(page)) == 1218
    assert cells(body(page)[0]) == [
        *("resnet50", "NVIDIA A40", "offline", "–", "ONNX with TensorRT", "FP16"),
        *("1", "1", "1", "491.5", "–", "2.111", "2.126", "2.031", "0.998"),
    ]
    marked = [cells(row) for row in body(page) if "broken" in row]
    assert [(row[3], int(row[8])) for row in marked] == BROKEN
    assert all(row[-1].endswith("✗") for row in marked)  # by word and colour
    table = read_csv(folder / "published.csv", keep_default_na=False, dtype=str)
    assert (list(table), len(table)) == ([*raw("tft")[0], "littles_law"], 1218)
    assert float(table["littles_law"].replace("", "1").astype(float).min()) == 0.72


def test_the_page_of_fidelity_has_a_table_for_each_and_its_csv_every_setting(folder):
    text = (folder / "fidelity.html").read_text()
    found = read_csv(folder / "fidelity.csv", keep_default_na=False, dtype=str)

    page, first = Page(text), [table[0] for table in published_tables(everything())]
    assert [tag["id"] for tag in page.all("div")] == [row.slug for row in first]
    assert len(page.all("details")) == len(page.all("summary")) == 84
    assert [str(tag["href"]) for tag in page.all("a")] == [
        *("index.html", "published.html", *(link.href for link in site.background())),
        *("fidelity.csv", *(f"#{model}" for model in sources())),
    ]
    assert {*sources()} <= {str(tag.get("id")) for tag in page.all("h2")}
    summaries = [unescape(each) for each in re.findall(r"<summary>(.*?)</summary>", text, re.S)]
    assert "also differs: ONNX opset" in summaries[0]
    assert len(found.drop_duplicates(["model", "gpu", "scenario", "dataset", "served"])) == 84
    assert {*found["comparison"]} == {"same", "differs", "unknown"}
    assert dict(found[found["setting"] == "ONNX opset"].iloc[0]) == {
        **{"model": "resnet50", "gpu": "NVIDIA A40", "scenario": "offline", "dataset": ""},
        **{"served": "ONNX with TensorRT, FP16", "experiments": "onnx-trt-fp16"},
        **{"setting": "ONNX opset", "nvidia": "11", "ours": "13"},
        **{"comparison": "differs", "note": ""},
    }


@pytest.mark.parametrize("name", ["published", "fidelity"])
def test_a_page_loads_nothing_and_runs_at_most_its_own_script(folder, name):
    page = (folder / f"{name}.html").read_text()

    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()) for each in scripts]
    assert re.findall("script-src '(.*?)'", page) == [f"sha256-{x.decode()}" for x in hashes]
    assert len(scripts) == (name == "published")
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|url\(", page)
    assert all(src.startswith("data:") for src in re.findall(r'src="([^"]*)"', page))


def test_a_page_is_written_again_only_when_it_is_another(folder, tmp_path, monkeypatch):
    names = ("published.html", "published.csv", "fidelity.html", "fidelity.csv")
    rows, _, settings, _ = (Path(shutil.copy2(folder / name, tmp_path)) for name in names)
    content, before = rows.read_bytes(), (rows.stat().st_ino, settings.stat().st_ino)

    nvidia.write_pages(tmp_path)
    assert (rows.stat().st_ino, settings.stat().st_ino) == before
    monkeypatch.setattr(pages, "ROOT", tmp_path)  # other parameter files: none
    monkeypatch.setattr(fidelity, "fidelities", list)
    nvidia.write_pages(tmp_path)
    assert rows.stat().st_ino == before[0]
    assert settings.stat().st_ino != before[1]
    rows.write_text("an older one")
    nvidia.write_pages(tmp_path)
    assert rows.read_bytes() == content


@pytest.mark.slow
def test_a_link_to_a_table_opens_it_in_a_browser(folder, browser):
    slug = published_tables(everything())[40][0].slug

    browser.open(f"{(folder / 'fidelity.html').as_uri()}#{slug}")

    opened = "[...document.querySelectorAll('details[open].table')].map((e) => e.innerHTML)"
    (table,) = browser.evaluate(opened)
    assert f'<div id="{slug}"' in table
    assert browser.console == []


SHOWN = """[...document.querySelectorAll(".rows tbody tr")].filter((row) => !row.hidden)
    .map((row) => [...row.cells].map((cell) => cell.textContent))"""
CHANGE = """(() => {{
    const field = document.querySelector("[name={name}]");
    if (field.type === "checkbox") field.checked = true; else field.value = "{value}";
    field.dispatchEvent(new Event("change", {{ bubbles: true }}));
}})()"""
BY_AVERAGE = """[...document.querySelectorAll("thead button")]
    .find((button) => button.textContent === "average (ms)").click()"""


@pytest.mark.slow
def test_a_link_into_it_filters_and_sorts_also_as_a_file(folder, browser):
    chosen = "model=tft&gpu=NVIDIA+T4&scenario=offline&sort=-throughput+(samples/s)"

    browser.open(f"{(folder / 'published.html').as_uri()}#{chosen}")

    found, page = browser.evaluate(SHOWN), browser.evaluate("document.body.innerHTML")
    expected = [
        float(r["throughput"]) for r in raw("tft") if r["gpu"] == T4 and r["scenario"] == "offline"
    ]
    assert {tuple(row[:3]) for row in found} == {("tft", T4, "offline")}
    assert [float(row[9].replace(",", "")) for row in found] == sorted(expected, reverse=True)
    assert ">44 of 1,218 rows<" in page
    assert 'aria-sort="descending"' in page
    assert browser.console == []


@pytest.mark.slow
def test_its_fields_filter_its_headers_sort_and_the_address_says_what_is_chosen(folder, browser):
    deep = [float(r["avg_latency_ms"]) for r in raw("widedeep") if r["precision"] == "FP32"]
    fp32 = [r for m in sources() for r in raw(m) if r["precision"] == "FP32"]
    chosen = "#model=widedeep&precision=FP32"
    browser.open((folder / "published.html").as_uri())

    for action, count, address, first in (
        (CHANGE.format(name="precision", value="FP32"), len(fp32), "#precision=FP32", None),
        (CHANGE.format(name="model", value="widedeep"), len(deep), chosen, None),
        (BY_AVERAGE, len(deep), f"{chosen}&sort=average+%28ms%29", min(deep)),
        (BY_AVERAGE, len(deep), f"{chosen}&sort=-average+%28ms%29", max(deep)),
        ("document.querySelector('form button').click()", 1218, "", None),
        (CHANGE.format(name="broken", value=""), 10, "#broken=", None),
    ):
        browser.evaluate(action)
        rows = browser.evaluate(SHOWN)
        assert (len(rows), browser.evaluate("location.hash")) == (count, address)
        assert first is None or float(rows[0][13].replace(",", "")) == first
    assert browser.console == []
