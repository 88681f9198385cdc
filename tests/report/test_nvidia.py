"""NVIDIA's rows are read as published, compared with ours with every reason against it, and can be
browsed without any run of ours.
"""

import base64
import csv
import hashlib
import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import nbformat
import pytest
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_notebook, new_output
from pandas import read_csv

from helpers import results
from helpers.__main__ import main
from helpers.config.loading import resolve
from helpers.display import table
from helpers.errors import DataError
from helpers.measure.analyzer import LoadPoint, arguments
from helpers.report import nvidia, site, text
from helpers.report.nvidia.comparison import Comparison, Pair, choose_gpu, nearest, pair
from helpers.report.nvidia.rows import (
    PublishedRow,
    everything,
    gpus,
    published,
    read,
    violates_littles_law,
)
from helpers.report.nvidia.settings import PROTOCOL
from helpers.report.nvidia.sources import sources
from helpers.results import Measurement, Result, Row
from helpers.results.types import Fingerprint
from helpers.store.hashing import file_digest
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT
from tests.conftest import BROWSER, browse, opened
from tests.report.test_publish import Page

T4, A30, A100 = "NVIDIA T4", "NVIDIA A30", "NVIDIA DGX A100 (1x A100 80GB)"
BROKEN = [  # TFT with PyTorch on a T4: data set and clients, from NVIDIA's tables by hand
    *(("electricity", clients) for clients in (144, 168, 192, 216, 224, 256)),
    *(("traffic", clients) for clients in (168, 200, 216, 256)),
]
needs_browser = pytest.mark.skipif(not BROWSER, reason="chromium: none on PATH")


def raw(model: str) -> list[dict[str, str]]:
    with (ROOT / f"params/published/{model}.csv").open() as file:
        return list(csv.DictReader(file))


def row_of(model: str, **named: Any) -> PublishedRow:
    """The first published row with these values."""
    return next(
        row
        for row in published(model)
        if all(getattr(row, name) == value for name, value in named.items())
    )


TENSORRT, TORCH = {"backend": "NVIDIA TensorRT"}, {"backend": "PyTorch"}
WORST = {"gpu": T4, "concurrency": 216, "dataset": "electricity"}
SAVED_MODEL = "TensorFlow SavedModel"
SPELLED = {"TensorRT": "trt", "NVIDIA TensorRT": "trt", "Automatic FP16": "amp"}


def as_ours(row: PublishedRow, **changes: Any) -> Row:
    """A row of `results.csv` as an experiment that repeats the published one would leave it."""
    dense = row.model in ("dlrm", "dcnv2")
    fp32 = row.model == "tft" and row.backend == "PyTorch"
    online = row.model == "resnet50" and row.scenario == "online"
    same = row.model_dump() | {
        "backend": "NVIDIA TensorRT" if dense else row.backend,
        "backend_accelerator": SPELLED.get(row.backend_accelerator, ""),
        "model_format": "NVIDIA TensorRT" if dense else row.model_format,
        "precision": "FP32" if fp32 else row.precision,
        # NVIDIA captured TFT's, whatever its tables say
        "cuda_graph": bool(row.cuda_graph) or (row.model == "tft" and not fp32),
        "instances": 2 if online else row.instances,  # as the script started
        "dataset": "datasets/real",
        "variant": {"bert": "large", "dlrm": "T3", "dcnv2": "T3"}.get(row.model, row.dataset),
        "experiment": "mine",
        "quality": "stable",
    }
    return Row(**same | changes)


def settings_of(row: PublishedRow, **changes: Any) -> dict[str, Any]:
    """The configuration of such an experiment."""
    memory = "none" if row.model == "resnet50" else "system"
    releases = {"resnet50": "21.02", "bert": "21.10", "tft": "22.11", "widedeep": "22.02"}
    server = {"kind": "docker", "release": releases.get(row.model, "23.02")}
    return {"server": server, "checkpoint": "a.pt", "shared_memory": memory} | changes


def pair_of(row: PublishedRow, settings: dict[str, Any] | None = None, **changes: Any) -> Pair:
    found = pair(
        as_ours(row, **changes), settings or settings_of(row), published(row.model), row.gpu
    )
    assert found
    return found


# The rows


@pytest.mark.parametrize("model", sources())
def test_every_cell_is_read_as_it_stands_in_the_file(model: str) -> None:
    for row, cells in zip(published(model), raw(model), strict=True):
        for name, value in row.model_dump().items():
            text = cells[name]
            if isinstance(value, bool):
                assert text == str(value).lower()
            elif isinstance(value, int | float):
                assert float(text) == value
            else:
                assert text == (value or "")


def test_a_row_has_types_and_a_document() -> None:
    row = row_of("resnet50", gpu=T4, scenario="offline", batch_size=8)

    assert (row.throughput, row.p99_latency_ms, row.instances) == (888.0, 9.065, 1)
    assert (row.client_send_ms, row.cuda_graph, row.dataset) == (None, None, "")
    assert row.served == "ONNX with TensorRT, FP16"
    assert row.setup.path == "PyTorch/Classification/ConvNets/triton/resnet50/README.md"
    assert row_of("widedeep", backend="NVIDIA TensorRT").cuda_graph is True
    assert (published("dummy"), gpus(())) == ((), [])


def test_exactly_ten_rows_break_littles_law() -> None:
    broken = [row for row in everything() if violates_littles_law(row)]

    assert [(row.dataset, row.concurrency) for row in broken] == BROKEN
    assert {(row.model, row.gpu, row.scenario, row.backend) for row in broken} == {
        ("tft", T4, "online", "PyTorch")
    }
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
    ],
)
def test_a_damaged_file_is_one_line_that_names_the_place(
    old: str, new: str, words: str, tmp_path: Path
) -> None:
    lines = (ROOT / "params/published/resnet50.csv").read_text().splitlines()
    text = f"{lines[0]}\n{lines[25]}\n"
    assert old in text
    path = tmp_path / "rows.csv"
    path.write_text(text.replace(old, new))

    with pytest.raises(DataError, match=f"rows.csv: {re.escape(words)}") as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"gpu,model\n", b"\xff\xfe\x00\x01"])
def test_a_file_without_rows_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)

    with pytest.raises(DataError, match=r"rows.csv: (holds no row|cannot be read as CSV)"):
        read(path)
    with pytest.raises(DataError, match="cannot be read as CSV"):
        read(tmp_path / "none.csv")


# Ours compared with theirs


RANDOM = "samples sent: ours samples of a data set, NVIDIA's random values"
HPS = "hierarchical parameter server with a GPU cache of 10% of the rows"
DEPRECATED = f"{HPS} (NVIDIA's HPS is now deprecated)"
LOOKUP = f"embedding lookup: ours in memory, NVIDIA's {DEPRECATED}"
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
def test_who_repeats_a_published_row_finds_it_with_no_reason_but_nvidias_own(model: str) -> None:
    for row in published(model):
        found = pair_of(row)
        said = {text for text in found.reasons if "Little's" not in text and "label" not in text}

        assert (found.published, found.ratio) == (row, 1)
        has_tf32 = row.gpu in (A30, A100) and (model, row.served) in WITH_TF32
        assert said == INHERENT[model] | ({TF32} if has_tf32 else set())
        assert ("labelled FP16" in str(found.reasons)) == (
            row.backend == "PyTorch" and model == "tft"
        )
        assert ("Little's" in str(found.reasons)) == violates_littles_law(row)


def test_a_parameter_server_of_ours_is_said_not_to_be_nvidias() -> None:
    row = row_of("dlrm", gpu=T4, batch_size=256, precision="FP16")

    (reason,) = pair_of(row, settings_of(row, lookup="hps")).reasons

    assert reason == (
        f"embedding lookup: ours this package's parameter server, NVIDIA's {DEPRECATED}"
    )


def test_tables_of_another_precision_than_nvidias_are_a_reason() -> None:
    row = row_of("dlrm", gpu=T4, batch_size=256, precision="FP16")

    reasons = pair_of(row, settings_of(row, table_precision="int8")).reasons

    assert set(reasons) - INHERENT["dlrm"] == {
        "precision of embedding tables: ours int8, NVIDIA's fp32"
    }


@pytest.mark.parametrize(
    ("model", "field", "same", "other", "reason"),
    [
        ("resnet50", "crop_size", 224, 64, "image size (pixels): ours 64, NVIDIA's 224"),
        ("bert", "max_seq_length", 384, 128, "sequence length: ours 128, NVIDIA's 384"),
    ],
)
def test_smaller_samples_than_nvidias_are_a_reason(
    model: str, field: str, same: int, other: int, reason: str
) -> None:
    row = row_of(model, gpu=T4)

    def reasons(**given: int) -> set[str]:
        return set(pair_of(row, settings_of(row, **given)).reasons)

    assert reasons(**{field: other}) - reasons() == {reason}
    assert reasons(**{field: same}) == reasons()


@pytest.mark.parametrize(
    ("ours", "settings", "reason"),
    [
        ({"gpu": "CPU"}, {}, "GPU: ours CPU, NVIDIA's T4"),
        ({}, {"kind": "docker", "release": "24.10"}, "Triton release: ours 24.10"),
        ({}, {"kind": "embedded", "release": "21.02"}, "Triton release: ours 24.10"),
        ({}, "system", "tensors: ours in shared memory, NVIDIA's in the request"),
        (
            {"backend": "ONNX Runtime (Triton Python backend)"},
            {},
            "backend: ours Python backend, NVIDIA's ONNX Runtime",
        ),
        ({"model_format": "OpenVINO IR"}, {}, "format: ours OpenVINO IR, NVIDIA's ONNX"),
        ({"precision": "BF16"}, {}, "precision: ours BF16, NVIDIA's FP16"),
        ({"backend_accelerator": ""}, {}, "accelerator: ours none, NVIDIA's TensorRT"),
        ({"batch_size": 11}, {}, "batch size: ours 11, NVIDIA's 8 (the nearest published)"),
        ({"concurrency": 2}, {}, "clients: ours 2, NVIDIA's 1 (the nearest published)"),
        ({"instances": 2}, {}, "instances: ours 2, NVIDIA's 1"),
        ({"cuda_graph": True}, {}, "CUDA graphs: ours captured, NVIDIA's not captured"),
        ({}, "fitted", "our checkpoint is trained on generated data"),
        ({"quality": "noisy"}, {}, "our measurement is noisy"),
    ],
)
def test_each_difference_is_a_reason(ours: dict[str, Any], settings: Any, reason: str) -> None:
    row = row_of("resnet50", gpu=T4, scenario="offline", batch_size=8)  # 888 per s
    named = {"system": "shared_memory", "fitted": "checkpoint"}.get(str(settings), "server")

    found = pair_of(row, settings_of(row, **({named: settings} if settings else {})), **ours)

    (said,) = (text for text in found.reasons if text != RANDOM)
    assert said.startswith(reason)


@pytest.mark.parametrize(
    ("model", "named", "changes", "reason"),
    [
        ("bert", {}, {"variant": "small"}, "variant of the network: ours small, "),
        (
            "resnet50",
            {"scenario": "online"},
            {"instances": 1},
            "instances: ours 1, NVIDIA's 2 (NVIDIA's table says 1, ",
        ),
        (
            "widedeep",
            TENSORRT,
            {"cuda_graph": False},
            "CUDA graphs: ours not captured, NVIDIA's captured",
        ),
        (
            "tft",
            TENSORRT,
            {"cuda_graph": False},
            "CUDA graphs: ours not captured, NVIDIA's captured",
        ),
        ("tft", TORCH | WORST, {}, "NVIDIA's row contradicts Little's law (ratio 0.72)"),
        ("tft", TORCH, {"precision": "FP16"}, "precision: ours FP16, NVIDIA's FP32"),
    ],
)
def test_what_is_particular_about_a_table_is_a_reason(
    model: str, named: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    assert reason in "; ".join(pair_of(row_of(model, **named), **changes).reasons)


def test_our_protocol_is_the_one_that_the_load_is_made_with() -> None:
    line = arguments(LoadPoint("m", Path("d"), []), "127.0.0.1:1", Path("f"))

    assert line[line.index("-i") + 1].upper() == PROTOCOL


def test_online_rows_are_not_compared_by_shared_memory() -> None:
    row = row_of("tft", scenario="online")
    settings = settings_of(row, shared_memory="none")

    assert not any("memory" in text for text in pair_of(row, settings).reasons)


def test_a_gpu_without_published_rows_is_compared_with_the_slowest_or_the_fastest() -> None:
    rows = published("bert")

    assert choose_gpu(rows, A30, "gpu") == A30
    assert choose_gpu(rows, "CPU", "cpu") == T4
    assert choose_gpu(rows, "NVIDIA H200", "gpu") == A100
    assert choose_gpu((), "CPU", "cpu") == ""


@pytest.mark.parametrize(
    ("model", "changes", "served"),
    [
        ("bert", ("ONNX", "FP32", ""), "ONNX, FP16"),
        ("bert", ("ONNX", "FP32", "trt"), "ONNX with TensorRT, FP16"),
        ("widedeep", ("OpenVINO IR", "FP16", ""), "TensorRT, FP16"),
        ("widedeep", ("OpenVINO IR", "FP32", ""), f"{SAVED_MODEL} with Automatic FP16, FP32"),
        # no format, precision or accelerator of NVIDIA's: its fastest table
        ("bert", ("OpenVINO IR", "BF16", ""), "TensorRT, FP16"),
    ],
)
def test_the_nearest_table_is_of_the_same_format_then_precision_then_accelerator(
    model: str, changes: tuple[str, str, str], served: str
) -> None:
    names = ("model_format", "precision", "backend_accelerator")
    ours = as_ours(row_of(model, gpu=T4), **dict(zip(names, changes, strict=True)))

    found = nearest(ours, published(model), T4)

    assert found
    assert found.served == served


@pytest.mark.parametrize(("batch_size", "theirs"), [(90, 64), (92, 128)])
def test_the_nearest_batch_is_nearest_by_factor_and_of_one_data_set(
    batch_size: int, theirs: int
) -> None:
    row = row_of("tft", gpu=T4, backend="NVIDIA TensorRT", dataset="traffic", batch_size=64)

    found = nearest(as_ours(row, batch_size=batch_size), published("tft"), T4)

    assert found
    assert (found.batch_size, found.dataset) == (theirs, "traffic")


def test_what_was_not_measured_or_not_published_has_no_pair() -> None:
    row = row_of("bert", gpu=T4)
    rows, settings = published("bert"), settings_of(row)

    assert pair(as_ours(row, throughput=None), settings, rows, T4) is None
    assert pair(as_ours(row, scenario="online"), settings, rows, T4) is None
    assert pair(as_ours(row), settings, (), "") is None


def test_a_repeated_batch_has_no_pair_because_no_figure_draws_it() -> None:
    row = as_ours(row_of("dlrm"))

    comparison = measured("dlrm", row.gpu, row, row.model_copy(update={"repeated": True}))

    assert [found.measured for found in comparison.pairs] == [row]


# What a report says


def measured(model: str, gpu: str, *rows: Row, **settings: Any) -> Comparison:
    """The comparison for some rows of one experiment on a target."""
    config = resolve(model, "report").model_copy(update={"target": "t", "gpu": gpu})
    kept = settings_of(row_of(model)) | settings
    result = Result(
        model=model,
        experiment="mine",
        stage="perf_offline",
        gpu=gpu,
        state="done",
        fingerprint=Fingerprint(config=kept, notebook="", versions={}, inputs={}),
        measurement=Measurement(rows=rows, distinct_rows=1, background_before=None),
    )
    return nvidia.compare(config, {"mine": {"perf_offline": result}} if rows else {})


@pytest.fixture
def on_a_processor() -> Comparison:
    """BERT-small of ours in ONNX with two batch sizes, compared with NVIDIA's T4."""
    one, eight = (row_of("bert", gpu=T4, batch_size=size) for size in (1, 8))
    adapter = {"gpu": "CPU", "backend": "ONNX Runtime (Triton Python backend)", "variant": "small"}
    rows = (
        as_ours(one, **adapter, throughput=10.0, p99_latency_ms=50.0),
        as_ours(eight, **adapter, throughput=22.2, batch_size=7, quality="imprecise"),
        as_ours(one, **adapter, throughput=None, quality="failed", batch_size=16),
    )
    return measured("bert", "CPU", *rows, checkpoint="fitted")


def text_of(comparison: Comparison) -> str:
    return str(nvidia.summary(comparison).data)  # type: ignore[attr-defined]


def test_a_report_says_the_ratio_and_first_what_is_unfair_to_all(
    on_a_processor: Comparison,
) -> None:
    text = text_of(on_a_processor)

    assert "NVIDIA published no rows of bert for CPU, so" in text
    assert "ours are compared with its rows for NVIDIA T4" in text
    assert "(../../published.html#model=bert&gpu=NVIDIA+T4)" in text
    # 10/40 and 22.2/44.4
    assert "0.25× to 0.5× NVIDIA's (median of 2 measurements: 0.375×)" in text
    for reason in ("ours CPU, NVIDIA's T4", "backend: ours Python backend", "trained on", "gRPC"):
        assert text.count(reason) == 1
    assert "- **mine**, compared with ONNX, FP16\n" in text
    assert "NVIDIA published no online rows of bert." in text
    assert "the nearest published" not in text  # it concerns one row


def test_its_table_holds_each_pair_and_what_is_unfair_to_it_alone(
    on_a_processor: Comparison,
) -> None:
    html = unescape(nvidia.as_table(on_a_processor).html)

    assert html.count("<tr>") == 3
    assert ">7 × 1<" in html
    assert ">8 × 1<" in html
    assert ">0.25<" in html
    assert "batch size: ours 7, NVIDIA's 8 (the nearest published)" in html
    assert "quality-imprecise" in html
    assert "GPU: ours" not in html


def test_without_a_row_of_ours_the_gpus_published_rows_are_shown() -> None:
    comparison = measured("tft", T4)
    html = unescape(nvidia.as_table(comparison).html)

    assert "Nothing was measured on NVIDIA T4, so only" in text_of(comparison)
    assert html.count("<tr>") == 1 + 172
    assert html.count("contradicts Little's law") == 10
    assert ">caveat<" in html
    assert ">TensorRT, FP16<" in html
    assert len(comparison.drawn("online")) == 4 * 32
    assert "ours was not measured." in nvidia.describe(comparison, "online")


def test_a_model_without_published_rows_says_so_and_draws_nothing() -> None:
    config = resolve("resnet50", "report").model_copy(update={"model": "dummy"})
    comparison = nvidia.compare(config, {})

    assert text_of(comparison) == "NVIDIA published nothing for dummy."
    assert comparison.scenarios == []
    assert "<td" not in nvidia.as_table(comparison).html


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_figure_has_a_log_scale_ours_and_the_tables_of_every_gpu(
    on_a_processor: Comparison,
) -> None:
    figure = nvidia.draw(on_a_processor, "offline")
    axes = figure.axes[0]

    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "throughput (samples/s), log scale"
    assert legend(figure)[:2] == ["mine", T4]
    assert set(legend(figure)[1:5]) == set(gpus(published("bert")))
    grey = [list(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "--"]  # type: ignore[arg-type]
    assert [40.0, 44.4, 45.3] in grey
    assert len(grey) == 4


def test_on_nvidias_own_gpu_the_figure_names_the_tables() -> None:
    row = row_of("bert", gpu=A30, backend="PyTorch", batch_size=8)
    comparison = measured("bert", A30, as_ours(row))

    assert legend(nvidia.draw(comparison, "offline")) == [
        "mine",
        "NVIDIA's TorchScript Trace, FP16",
    ]
    assert "Compared with NVIDIA's rows for NVIDIA A30." in text_of(comparison)
    assert "ours is 1× to 1× the nearest rows of NVIDIA A30." in nvidia.describe(
        comparison, "offline"
    )


def test_a_scenario_without_published_rows_is_said_and_not_drawn() -> None:
    comparison = measured("bert", T4)

    assert comparison.scenarios == ["offline"]
    assert nvidia.describe(comparison, "online").startswith("NVIDIA published no online rows")
    (text,) = nvidia.draw(comparison, "online").axes[0].texts
    assert text.get_text() == "Nothing was measured."


def test_the_data_of_a_figure_are_the_pairs_and_what_else_is_drawn(
    on_a_processor: Comparison,
) -> None:
    data = nvidia.data(on_a_processor, "offline")

    assert list(data["throughput"].dropna()) == [10.0, 22.2]
    assert len(data) == len(on_a_processor.drawn("offline"))  # both pairs are among them
    first = data.iloc[0]
    assert (first["nvidia_gpu"], first["nvidia_throughput"]) == (T4, 40.0)
    assert first["throughput_ratio"] == 0.25
    assert first["p99_latency_ratio"] == pytest.approx(50 / first["nvidia_p99_latency_ms"])
    assert "GPU: ours CPU, NVIDIA's T4" in first["reasons"]


def test_a_report_depends_on_the_published_rows() -> None:
    inputs = results.fingerprint(
        resolve("bert", "report").model_copy(update={"target": "none"})
    ).inputs
    path = ROOT / "params/published/bert.csv"

    assert inputs == {"params/published/bert.csv": file_digest(path)}


HOSTILE = "</title><script>run()</script><meta http-equiv='refresh'> *b* `c` [d](e) $f$ a_b_c | g"


def test_text_from_parameters_and_data_is_shown_as_it_is_and_is_never_markup(
    tmp_path: Path,
) -> None:
    bounds = {"throughput_low": 39.0, "throughput_high": 41.0}
    row = as_ours(row_of("bert", gpu=T4), gpu=HOSTILE, experiment=HOSTILE, **bounds)
    comparison = measured("bert", HOSTILE, row)
    config = resolve("bert", "report").model_copy(update={"target": "t", "gpu": HOSTILE})
    result = Result(
        model="bert", experiment="x", stage="deploy", gpu="", state="failed", reason=HOSTILE
    )
    shown = [
        nvidia.summary(comparison),
        text.answer(config, {HOSTILE: {"deploy": result}}, comparison.measured),
    ]
    outputs = [
        new_output("display_data", data={"text/markdown": each.data})  # type: ignore[attr-defined, no-untyped-call]
        for each in shown
    ]
    outputs += [
        new_output("display_data", data={"text/html": each.html})  # type: ignore[no-untyped-call]
        for each in (nvidia.as_table(comparison), table(config.summary(), HOSTILE))
    ]
    cells = [new_code_cell("x", outputs=[each]) for each in outputs]  # type: ignore[no-untyped-call]
    nbformat.write(new_notebook(cells=cells), tmp_path / "report.ipynb")  # type: ignore[no-untyped-call]

    page = Page(site.page(tmp_path / "report.ipynb", tmp_path / "report.html").read_text())

    tags = [name for name, _ in page.tags]
    assert not {"script", "em"} & set(tags)
    assert tags.count("meta") == 4  # the page's own
    (link,) = page.all("a")
    assert str(link["href"]).startswith("../../published.html#model=bert&gpu=NVIDIA")
    for what in (
        f"no rows of bert for {HOSTILE}, so ours",
        f"{HOSTILE} , compared with ONNX, FP16",
        f": {HOSTILE}, batch size 1, 1 client, offline",
        f"Failed: {HOSTILE} ({HOSTILE}).",
    ):
        assert what in page.text


# The page of all rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs folder with a target of which nothing has run, published."""
    path: Path = tmp_path_factory.mktemp("outputs")
    (path / "smoke").mkdir()
    shutil.copyfile(ROOT / "params/smoke.yaml", path / "smoke/parameters.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(path))
        assert main(["publish", "--outputs", str(path)]) == 0
    return path


def body(page: str) -> list[str]:
    """The rows of the page's last table."""
    found: list[str] = re.findall(r"<tr.*?</tr>", page.rpartition("<tbody>")[2], re.DOTALL)
    return found


def cells(row: str) -> list[str]:
    return [unescape(text) for text in re.findall(r"<td>(.*?)</td>", row)]


def test_publishing_without_a_run_writes_every_row_and_links_them(folder: Path) -> None:
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
    assert len(re.findall("<h1", page)) == 1


def test_the_ten_rows_are_marked_by_word_and_colour(folder: Path) -> None:
    marked = [row for row in body((folder / "published.html").read_text()) if "broken" in row]

    assert [(cells(row)[3], int(cells(row)[8])) for row in marked] == BROKEN
    assert all(cells(row)[-1].endswith("✗") for row in marked)


def test_the_csv_holds_every_row_and_column(folder: Path) -> None:
    found = read_csv(folder / "published.csv", keep_default_na=False, dtype=str)

    assert list(found) == [*raw("tft")[0], "littles_law"]
    assert len(found) == 1218
    assert float(found["littles_law"].replace("", "1").astype(float).min()) == 0.72


def test_the_page_loads_nothing_and_runs_only_its_own_script(folder: Path) -> None:
    page = (folder / "published.html").read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    assert f"script-src 'sha256-{allowed}'\"" in page
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|url\(", page)
    assert all(src.startswith("data:") for src in re.findall(r'src="([^"]*)"', page))


def test_it_is_written_again_only_when_it_is_another(folder: Path, tmp_path: Path) -> None:
    for name in ("published.html", "published.csv", "fidelity.html", "fidelity.csv"):
        shutil.copy2(folder / name, tmp_path / name)
    path = tmp_path / "published.html"
    content, before = path.read_bytes(), path.stat().st_ino

    nvidia.write_pages(tmp_path)
    assert path.stat().st_ino == before
    path.write_text("an older one")
    nvidia.write_pages(tmp_path)
    assert path.read_bytes() == content


def test_the_note_on_wide_and_deeps_steps_has_the_published_latencies() -> None:
    """A batch of 81,920 costs what 131,072 costs."""
    text = (ROOT / "params/published/widedeep.md").read_text()
    latencies = {
        (row.served, row.batch_size, row.gpu): row.avg_latency_ms or 0
        for row in published("widedeep")
        if row.scenario == "offline" and row.batch_size > 1
    }
    head, _, *lines = [line.strip("| ").split(" | ") for line in re.findall(r"^\|.*", text, re.M)]
    table = {
        ("TensorRT, FP16", int(size.replace(",", "")), gpu): float(value)
        for size, *values in lines
        for gpu, value in zip(head[1:], values, strict=True)
    }

    assert table == {key: ms for key, ms in latencies.items() if key[0] == "TensorRT, FP16"}
    for served, shares in (("TensorRT, FP16", "92% to 98%"), ("SavedModel", "62% to 67%")):
        found = [
            value / latencies[name, 131072, gpu]
            for (name, size, gpu), value in latencies.items()
            if served in name and size == 81920
        ]
        assert shares == f"{min(found):.0%} to {max(found):.0%}"
        assert shares in text.replace("\n", " ")


def shown_rows(page: str) -> list[list[str]]:
    return [cells(row) for row in body(page) if " hidden" not in row.partition(">")[0]]


@needs_browser
@pytest.mark.slow
def test_a_browser_opens_it_without_a_request_or_a_message(
    folder: Path, site: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, asked = site
    shutil.copy2(folder / "published.html", tmp_path)

    assert browse(f"{address}/published.html", tmp_path / "profile") == []
    assert asked == ["/published.html"]


@pytest.mark.slow
@needs_browser
def test_a_link_into_it_filters_and_sorts_also_as_a_file(folder: Path, tmp_path: Path) -> None:
    chosen = "model=tft&gpu=NVIDIA+T4&scenario=offline&sort=-throughput+(samples/s)"

    page, console = opened(f"{(folder / 'published.html').as_uri()}#{chosen}", tmp_path / "profile")

    found = shown_rows(page)
    expected = [
        float(r["throughput"]) for r in raw("tft") if r["gpu"] == T4 and r["scenario"] == "offline"
    ]
    assert console == []
    assert {tuple(row[:3]) for row in found} == {("tft", T4, "offline")}
    assert [float(row[9].replace(",", "")) for row in found] == sorted(expected, reverse=True)
    assert ">44 of 1,218 rows<" in page
    assert 'aria-sort="descending"' in page


ACTIONS = """<!DOCTYPE html><html><body><iframe src="published.html"></iframe><pre></pre><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, said = [];
  const rows = () => [...page.querySelectorAll(".rows tbody tr")].filter((row) => !row.hidden);
  const note = () => said.push([rows().length, frame.contentWindow.location.hash,
    rows()[0].cells[13].textContent]);
  const change = (name, value) => {
    const field = page.querySelector(`[name=${name}]`);
    if (field.type === "checkbox") field.checked = value; else field.value = value;
    field.dispatchEvent(new Event("change", { bubbles: true }));
    note();
  };
  change("precision", "FP32");
  change("model", "widedeep");
  const heads = [...page.querySelectorAll("thead button")];
  const head = heads.find((button) => button.textContent === "average (ms)");
  head.click(); note();
  head.click(); note();
  page.querySelector("form button").click(); note();
  change("broken", true);
  document.querySelector("pre").textContent = JSON.stringify(said);
};
</script></body></html>"""


@needs_browser
@pytest.mark.slow
def test_its_fields_filter_its_headers_sort_and_the_address_says_what_is_chosen(
    folder: Path, site: tuple[str, list[str]], tmp_path: Path
) -> None:
    shutil.copy2(folder / "published.html", tmp_path)
    (tmp_path / "actions.html").write_text(ACTIONS)

    page, console = opened(f"{site[0]}/actions.html", tmp_path / "profile")

    said = json.loads(unescape(re.findall(r"<pre>(.*?)</pre>", page)[0]))
    deep = [float(r["avg_latency_ms"]) for r in raw("widedeep") if r["precision"] == "FP32"]
    fp32 = [r for m in sources() for r in raw(m) if r["precision"] == "FP32"]
    chosen = "#model=widedeep&precision=FP32"
    assert console == []
    assert [each[0] for each in said] == [len(fp32), *[len(deep)] * 3, 1218, 10]
    assert [each[1] for each in said] == [
        *("#precision=FP32", chosen, f"{chosen}&sort=average+%28ms%29"),
        *(f"{chosen}&sort=-average+%28ms%29", "", "#broken="),
    ]
    assert float(said[2][2].replace(",", "")) == min(deep)
    assert float(said[3][2].replace(",", "")) == max(deep)
