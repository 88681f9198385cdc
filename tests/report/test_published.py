"""NVIDIA's rows are read as published, stand beside ours with every reason against it, and can be
browsed without any run of ours.
"""

import base64
import csv
import hashlib
import json
import re
import shutil
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from pandas import read_csv

from helpers import results
from helpers.__main__ import main
from helpers.config.loading import resolve
from helpers.errors import DataError
from helpers.perf.analyzer import Point, arguments
from helpers.report import nvidia_comparison, nvidia_figure, nvidia_text, published, published_page
from helpers.report.nvidia_comparison import Pair, choose_gpu, nearest
from helpers.report.nvidia_text import Beside
from helpers.report.published import Row
from helpers.store.hashing import file_digest
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT
from tests.conftest import BROWSER, browse, opened

T4, A30, A100 = "NVIDIA T4", "NVIDIA A30", "NVIDIA DGX A100 (1x A100 80GB)"
BROKEN = [  # TFT with PyTorch on a T4: data set and clients, from NVIDIA's tables by hand
    *(("electricity", clients) for clients in (144, 168, 192, 216, 224, 256)),
    *(("traffic", clients) for clients in (168, 200, 216, 256)),
]
needs_browser = pytest.mark.skipif(not BROWSER, reason="no Chromium or Chrome on PATH")


def raw(model: str) -> list[dict[str, str]]:
    with (ROOT / f"params/published/{model}.csv").open() as file:
        return list(csv.DictReader(file))


def row_of(model: str, **named: Any) -> Row:
    """The first published row with these values."""
    return next(
        row
        for row in published.rows(model)
        if all(getattr(row, name) == value for name, value in named.items())
    )


SPELLED = {"TensorRT": "trt", "NVIDIA TensorRT": "trt", "Automatic FP16": "amp"}


def as_ours(row: Row, **changes: Any) -> dict[str, Any]:
    """A row of `results.csv` as an experiment that repeats the published one would leave it."""
    dense = row.model in ("dlrm", "dcnv2")
    fp32 = row.model == "tft" and row.backend == "PyTorch"
    online = row.model == "resnet50" and row.scenario == "online"
    given = row.model_dump()
    given |= {
        "backend": "NVIDIA TensorRT" if dense else row.backend,
        "backend_accelerator": SPELLED.get(row.backend_accelerator, ""),
        "model_format": "NVIDIA TensorRT" if dense else row.model_format,
        "precision": "FP32" if fp32 else row.precision,
        "cuda_graph": bool(row.cuda_graph),
        "instances": 2 if online else row.instances,  # as the script started
        "dataset": "datasets/real",
        "variant": {"bert": "large", "dlrm": "T3", "dcnv2": "T3"}.get(row.model, row.dataset),
        "experiment": "mine",
        "verdict": "stable",
        "reason": "",
    }
    return given | changes


def settings_of(row: Row, **changes: Any) -> dict[str, Any]:
    """The configuration of such an experiment."""
    memory = "none" if row.model == "resnet50" else "system"
    releases = {"resnet50": "21.02", "bert": "21.10", "tft": "22.11", "widedeep": "22.02"}
    server = {"kind": "docker", "release": releases.get(row.model, "23.02")}
    return {"server": server, "checkpoint": "a.pt", "shared_memory": memory} | changes


def pair_of(row: Row, settings: dict[str, Any] | None = None, **changes: Any) -> Pair:
    pair = nvidia_comparison.compare(
        as_ours(row, **changes), settings or settings_of(row), published.rows(row.model), row.gpu
    )
    assert pair
    return pair


# The rows


def test_there_are_1218_rows_in_84_tables() -> None:
    rows = published.everything()
    tables = published.tables(rows)

    assert (len(rows), len(tables)) == (1218, 84)
    assert sum(len(table) for table in tables.values()) == 1218
    assert Counter(row.model for row in rows) == {
        **{"resnet50": 96, "bert": 46, "tft": 688, "widedeep": 328, "dlrm": 30, "dcnv2": 30}
    }
    assert Counter(name[0] for name in tables) == {
        **{"resnet50": 8, "bert": 16, "tft": 32, "widedeep": 16, "dlrm": 6, "dcnv2": 6}
    }


@pytest.mark.parametrize("model", published.DOCUMENTS)
def test_every_cell_is_read_as_it_stands_in_the_file(model: str) -> None:
    for row, cells in zip(published.rows(model), raw(model), strict=True):
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
    assert row.format == "ONNX with TensorRT"
    assert row.document.path == "PyTorch/Classification/ConvNets/triton/resnet50/README.md"
    assert row_of("widedeep", backend="NVIDIA TensorRT").cuda_graph is True
    assert {row.source for row in published.everything() if row.model in ("dlrm", "dcnv2")} == {
        row_of("dlrm").source
    }


def test_exactly_ten_rows_break_littles_law() -> None:
    broken = [row for row in published.everything() if row.breaks_littles_law]

    assert [(row.dataset, row.concurrency) for row in broken] == BROKEN
    assert {(row.model, row.gpu, row.scenario, row.backend) for row in broken} == {
        ("tft", T4, "online", "PyTorch")
    }
    # 2,952 samples/s x 842.9 ms over 16 samples x 216 clients
    worst = min(broken, key=lambda row: row.littles_law or 1)
    assert worst.littles_law == pytest.approx(2952 * 0.8429 / (16 * 216))


def test_an_average_is_the_sum_of_its_components_but_for_three_rows() -> None:
    def is_sum(row: Row) -> bool:
        parts = list(row.model_dump().values())[14:21]
        rounding = 0.11 + 0.005 * (row.avg_latency_ms or 0)
        return abs(sum(parts) - (row.avg_latency_ms or 0)) <= rounding

    rows = [row for row in published.everything() if row.server_queue_ms is not None]

    assert len(rows) == 1218 - 32  # ResNet50's offline tables have none
    assert sum(not is_sum(row) for row in rows) == 3


def test_a_model_that_nvidia_has_not_has_no_rows() -> None:
    assert published.rows("dummy") == ()
    assert published.gpus(()) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("332.4", "fast", "line 2: throughput: Input should be a valid number"),
        ("332.4", "nan", "line 2: throughput: Input should be a finite number"),
        ("332.4", "-1", "line 2: throughput: Input should be greater than or equal to 0"),
        ("332.4", "", "line 2: throughput: Input should be a valid number"),
        (",1.0,1,1,", ",1.5,1,1,", "line 2: instances: Input should be a valid integer"),
        (",1.0,1,1,", ",1.0,0,1,", "line 2: batch_size: Input should be greater than or equal"),
        ("throughput", "speed", "line 2: "),
        ("NVIDIA T4,resnet50", "resnet50", "line 2: "),
        ("000_5151", "more,000_5151", "line 2: "),
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
        published.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"gpu,model\n", b"\xff\xfe\x00\x01"])
def test_a_file_without_rows_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)

    with pytest.raises(DataError, match=r"rows.csv: (holds no row|cannot be read as CSV)"):
        published.read(path)
    with pytest.raises(DataError, match="cannot be read as CSV"):
        published.read(tmp_path / "none.csv")


# Ours beside theirs


INHERENT = {
    "bert": {"another protocol: HTTP, not gRPC"},
    "tft": {"NVIDIA sent one example over and over, we samples of a data set"},
    "widedeep": {"NVIDIA sent random ids, we samples of a data set"},
    "dlrm": {"NVIDIA's lookup is its hierarchical parameter server, ours a table in memory"},
    "dcnv2": {"NVIDIA's lookup is its hierarchical parameter server, ours a table in memory"},
}


@pytest.mark.parametrize("model", published.DOCUMENTS)
def test_who_repeats_a_published_row_finds_it_with_no_reason_but_nvidias_own(model: str) -> None:
    for row in published.rows(model):
        pair = pair_of(row)
        said = {text for text in pair.reasons if "Little's" not in text and "label" not in text}

        assert (pair.theirs, pair.ratio) == (row, 1)
        assert said == INHERENT.get(model, set())
        assert ("labelled FP16" in str(pair.reasons)) == (
            row.backend == "PyTorch" and model == "tft"
        )
        assert ("Little's" in str(pair.reasons)) == (
            row.gpu == T4 and row.backend == "PyTorch" and (row.dataset, row.concurrency) in BROKEN
        )


def test_the_ratios_are_ours_over_theirs() -> None:
    row = row_of("resnet50", gpu=T4, scenario="offline", batch_size=1)  # 332.4 per s, 3.189 ms

    found = pair_of(row, throughput=83.1, p99_latency_ms=12.756).as_row()

    assert found["throughput_ratio"] == pytest.approx(0.25)
    assert found["p99_latency_ratio"] == pytest.approx(4)
    assert (found["nvidia_gpu"], found["nvidia_throughput"]) == (T4, 332.4)
    assert found["nvidia_littles_law"] == pytest.approx(332.4 * 3.003 / 1000)
    assert pair_of(row, p99_latency_ms=None).as_row()["p99_latency_ratio"] is None


def server(release: str, kind: str = "docker") -> dict[str, Any]:
    return {"server": {"kind": kind, "release": release}}


@pytest.mark.parametrize(
    ("ours", "settings", "reason"),
    [
        ({"gpu": "CPU"}, {}, "another GPU: CPU, not NVIDIA T4"),
        ({}, server("24.10"), "another release of Triton: 24.10, not 21.02"),
        ({}, server("21.02", "embedded"), "another release of Triton: 24.10, not 21.02"),
        ({}, {"shared_memory": "system"}, "another use of shared memory: system, not none"),
        (
            {"backend": "ONNX Runtime (Triton Python backend)"},
            {},
            "served by Triton's Python backend, not by a native one",
        ),
        ({"model_format": "OpenVINO IR"}, {}, "another format: OpenVINO IR, not ONNX"),
        ({"precision": "BF16"}, {}, "another precision: BF16, not FP16"),
        ({"backend_accelerator": ""}, {}, "another accelerator: none, not NVIDIA TensorRT"),
        ({"batch_size": 11}, {}, "another batch: 11, not 8 (the nearest published)"),
        ({"concurrency": 2}, {}, "another number of clients: 2, not 1 (the nearest)"),
        ({"instances": 2}, {}, "another number of instances: 2, not 1"),
        ({"cuda_graph": True}, {}, None),  # ResNet50's tables say nothing of it
        ({}, {"checkpoint": "fitted"}, "checkpoint fitted to generated data"),
        ({"verdict": "disturbed"}, {}, "our row is disturbed"),
        ({"avg_latency_ms": 4.0}, {}, "our row breaks Little's law (0.44)"),
    ],
)
def test_each_difference_is_a_reason(
    ours: dict[str, Any], settings: dict[str, Any], reason: str | None
) -> None:
    row = row_of("resnet50", gpu=T4, scenario="offline", batch_size=8)  # 888 per s
    keep = {"avg_latency_ms": None} if "avg_latency_ms" not in ours else {}
    changed = as_ours(row) | keep | ours

    pair = nvidia_comparison.compare(
        changed, settings_of(row, **settings), published.rows("resnet50"), T4
    )

    assert pair
    assert pair.reasons == ((reason,) if reason else ())


@pytest.mark.parametrize(
    ("model", "named", "changes", "reason"),
    [
        ("bert", {}, {"variant": "small"}, "another variant of the network: small, not large"),
        ("dlrm", {}, {"variant": "T15-10k"}, "another variant of the network: T15-10k, not T3"),
        (
            "resnet50",
            {"scenario": "online"},
            {"instances": 1},
            "another number of instances: 1, not 2 (its table says 1)",
        ),
        (
            "widedeep",
            {"backend": "NVIDIA TensorRT"},
            {"cuda_graph": False},
            "ours is without CUDA graphs, NVIDIA's with CUDA graphs",
        ),
        (
            "tft",
            {"backend": "NVIDIA TensorRT"},
            {"cuda_graph": True},
            "ours is with CUDA graphs, NVIDIA's without CUDA graphs",
        ),
        (
            "tft",
            {"backend": "PyTorch", "gpu": T4, "concurrency": 216, "dataset": "electricity"},
            {"avg_latency_ms": None},
            "NVIDIA's row breaks Little's law (0.72)",
        ),
        (
            "tft",
            {"backend": "PyTorch"},
            {"precision": "FP16"},
            "NVIDIA's is labelled FP16, but its TorchScript is fp32",
        ),
    ],
)
def test_what_is_particular_about_a_table_is_a_reason(
    model: str, named: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    assert reason in pair_of(row_of(model, **named), **changes).reasons


def test_fp16_of_tfts_torchscript_is_another_precision_than_nvidias_so_called_fp16() -> None:
    row = row_of("tft", backend="PyTorch", gpu=A30)

    assert "another precision: FP16, not FP32" in pair_of(row, precision="FP16").reasons


def test_our_protocol_is_the_one_that_the_load_is_made_with() -> None:
    line = arguments(Point("m", Path("d"), []), "127.0.0.1:1", Path("f"))

    assert line[line.index("-i") + 1].upper() == nvidia_comparison.PROTOCOL


def test_online_rows_are_not_compared_by_shared_memory() -> None:
    row = row_of("tft", scenario="online")

    assert not any("memory" in text for text in pair_of(row, settings_of(row)).reasons)


def test_a_gpu_that_nvidia_has_not_gets_another_that_it_says() -> None:
    rows = published.rows("bert")

    assert choose_gpu(rows, A30, "gpu") == A30
    assert choose_gpu(rows, "CPU", "cpu") == T4
    assert choose_gpu(rows, "NVIDIA H200", "gpu") == A100
    assert choose_gpu((), "CPU", "cpu") == ""


def test_the_nearest_table_is_of_the_same_format_then_precision_then_accelerator() -> None:
    bert, deep = published.rows("bert"), published.rows("widedeep")

    def served(model: str, rows: tuple[Row, ...], **changes: Any) -> str:
        found = nearest(as_ours(row_of(model, gpu=T4), **changes), rows, T4)
        assert found
        return found.label

    onnx = {"model_format": "ONNX", "precision": "FP32"}
    assert served("bert", bert, **onnx, backend_accelerator="") == "ONNX, FP16"
    assert served("bert", bert, **onnx, backend_accelerator="trt") == "ONNX with TensorRT, FP16"
    other = {"model_format": "OpenVINO IR", "backend_accelerator": ""}
    assert served("widedeep", deep, **other, precision="FP16") == "TensorRT, FP16"
    assert served("widedeep", deep, **other, precision="FP32").startswith("TensorFlow SavedModel")
    # no format, precision or accelerator of NVIDIA's: its fastest table
    assert served("bert", bert, **other, precision="BF16") == "TensorRT, FP16"


def test_the_nearest_batch_is_nearest_by_factor_and_of_one_data_set() -> None:
    row = row_of("tft", gpu=T4, backend="NVIDIA TensorRT", dataset="traffic", batch_size=64)

    found = nearest(as_ours(row, batch_size=90), published.rows("tft"), T4)

    assert found
    assert (found.batch_size, found.dataset) == (64, "traffic")
    assert nearest(as_ours(row, batch_size=92), published.rows("tft"), T4).batch_size == 128  # type: ignore[union-attr]


def test_what_was_not_measured_or_not_published_has_no_pair() -> None:
    row = row_of("bert", gpu=T4)
    rows, settings = published.rows("bert"), settings_of(row)

    assert nvidia_comparison.compare(as_ours(row, throughput=None), settings, rows, T4) is None
    assert nvidia_comparison.compare(as_ours(row, scenario="online"), settings, rows, T4) is None
    assert nvidia_comparison.compare(as_ours(row), settings, (), "") is None


# What a report says


def measured(model: str, gpu: str, *rows: dict[str, Any], **settings: Any) -> Beside:
    """What `beside` makes of some rows of one experiment on a target."""
    config = resolve(model, "report", gpu=gpu, target="t")
    kept = settings_of(row_of(model)) | settings
    found = {"mine": {"perf_offline": {"config": kept, "rows": list(rows)}}} if rows else {}
    return nvidia_text.compare(config, found)


@pytest.fixture
def on_a_processor() -> Beside:
    """BERT-small of ours in ONNX with two batches, beside NVIDIA's T4."""
    one, eight = (row_of("bert", gpu=T4, batch_size=size) for size in (1, 8))
    adapter = {"gpu": "CPU", "backend": "ONNX Runtime (Triton Python backend)", "variant": "small"}
    rows = (
        as_ours(one, **adapter, throughput=10.0),
        as_ours(eight, **adapter, throughput=22.2, batch_size=7, verdict="unstable"),
        as_ours(one, **adapter, throughput=None, verdict="failed", batch_size=16),
    )
    return measured("bert", "CPU", *rows, checkpoint="fitted")


def text_of(both: Beside) -> str:
    return str(nvidia_text.in_words(both).data)  # type: ignore[attr-defined]


def test_a_report_says_the_ratio_and_first_what_is_unfair_to_all(on_a_processor: Beside) -> None:
    text = text_of(on_a_processor)

    assert "NVIDIA published nothing of bert on this target's CPU; NVIDIA T4 was chosen" in text
    assert "(../../published.html#model=bert&gpu=NVIDIA+T4)" in text
    assert "0.25 to 0.5 times NVIDIA's, 0.375 at the median of 2 rows" in text  # 10/40, 22.2/44.4
    for reason in ("GPU: CPU, not NVIDIA T4", "served by Triton's", "fitted to generated", "gRPC"):
        assert text.count(reason) == 1
    assert "- `mine` beside ONNX, FP16\n" in text
    assert "the sum of those, not a measured mean" in text
    assert "NVIDIA published no online rows of bert." in text
    assert "the nearest published" not in text  # it concerns one row


def test_its_table_holds_each_pair_and_what_is_unfair_to_it_alone(on_a_processor: Beside) -> None:
    html = unescape(nvidia_text.as_table(on_a_processor).html)

    assert html.count("<tr>") == 3
    assert ">7 x 1<" in html
    assert ">8 x 1<" in html
    assert ">0.25<" in html
    assert "another batch: 7, not 8 (the nearest published)" in html
    assert "verdict-unstable" in html
    assert "another GPU" not in html


def test_without_a_row_of_ours_the_gpus_published_rows_are_shown() -> None:
    both = measured("tft", T4)
    html = unescape(nvidia_text.as_table(both).html)

    assert "Nothing of ours was measured on NVIDIA T4" in text_of(both)
    assert html.count("<tr>") == 1 + 172
    assert html.count("breaks Little's law") == 10
    assert ">TensorRT, FP16<" in html
    assert len(both.drawn("online")) == 4 * 32
    assert "Nothing of ours was measured." in nvidia_figure.describe(both, "online")


def test_a_model_that_nvidia_has_not_says_so_and_draws_nothing() -> None:
    config = resolve("resnet50", "report").model_copy(update={"model": "dummy"})
    both = nvidia_text.compare(config, {})

    assert text_of(both) == "NVIDIA published nothing of dummy."
    assert both.scenarios == []
    assert "<td" not in nvidia_text.as_table(both).html


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_figure_has_a_log_scale_ours_and_the_tables_of_every_gpu(
    on_a_processor: Beside,
) -> None:
    figure = nvidia_figure.draw(on_a_processor, "offline")
    axes = figure.axes[0]

    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "throughput (samples/s), log scale"
    assert legend(figure)[0] == "mine"
    assert legend(figure)[1] == T4
    assert set(legend(figure)[1:5]) == set(published.gpus(published.rows("bert")))
    grey = [list(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "--"]  # type: ignore[arg-type]
    assert [40.0, 44.4, 45.3] in grey
    assert len(grey) == 4


def test_on_nvidias_own_gpu_the_figure_names_the_tables() -> None:
    row = row_of("bert", gpu=A30, backend="PyTorch", batch_size=8)
    both = measured("bert", A30, as_ours(row))

    assert legend(nvidia_figure.draw(both, "offline")) == [
        "mine",
        "NVIDIA's TorchScript Trace, FP16",
    ]
    assert "Beside NVIDIA's own figures of NVIDIA A30." in text_of(both)
    assert "1 to 1 times as fast" in nvidia_figure.describe(both, "offline")


def test_a_scenario_without_published_rows_is_said_and_not_drawn() -> None:
    both = measured("bert", T4)

    assert both.scenarios == ["offline"]
    assert nvidia_figure.describe(both, "online").startswith("NVIDIA published no online rows")
    (text,) = nvidia_figure.draw(both, "online").axes[0].texts
    assert text.get_text() == "Nothing was measured."


def test_the_data_of_a_figure_are_the_pairs_and_what_else_is_drawn(
    on_a_processor: Beside,
) -> None:
    data = nvidia_text.data(on_a_processor, "offline")

    assert list(data["throughput"].dropna()) == [10.0, 22.2]
    assert len(data) == len(on_a_processor.drawn("offline"))  # both pairs are among them
    assert "another GPU: CPU, not NVIDIA T4" in data["reasons"][0]


def test_a_report_depends_on_the_published_rows() -> None:
    inputs = results.basis(resolve("bert", "report", target="none"))["inputs"]
    path = ROOT / "params/published/bert.csv"

    assert inputs == {"params/published/bert.csv": file_digest(path)}


# The page of all rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs folder in which nothing has run, published."""
    path: Path = tmp_path_factory.mktemp("outputs")
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

    assert 'href="published.html"' in (folder / "index.html").read_text()
    assert 'href="index.html"' in page
    assert "1,218 rows of 84 tables" in page
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
    assert (folder / "index.html").read_text().count("script-src") == 0


def test_it_is_written_again_only_when_it_is_another(folder: Path, tmp_path: Path) -> None:
    for name in ("published.html", "published.csv"):
        shutil.copy2(folder / name, tmp_path / name)
    path = tmp_path / "published.html"
    content, before = path.read_bytes(), path.stat().st_ino

    published_page.write(tmp_path)
    assert path.stat().st_ino == before
    path.write_text("an older one")
    published_page.write(tmp_path)
    assert path.read_bytes() == content


def test_a_batch_of_81920_costs_what_131072_costs() -> None:
    steps = published_page.power_of_two_rows(published.rows("widedeep"))
    trt = {
        gpu: {row.batch_size: row.avg_latency_ms for row in line}
        for gpu, line in steps["TensorRT, FP16"].items()
    }

    assert trt[A30][81920] == 18.07
    assert trt[A30][131072] == 18.36
    assert "TensorRT, FP16: 92% to 98%" in published_page.describe(steps)  # A100: 11.56 / 12.63
    assert "FP32: 62% to 67%" in published_page.describe(steps)
    figure = published_page.figure(steps)
    assert [round(float(y), 2) for y in figure.axes[0].lines[4].get_ydata()] == [  # type: ignore[union-attr]
        *(0.18, 0.29, 0.51, 0.53, 0.98, 0.99, 1.01, 1.0)
    ]
    assert len(figure.axes[0].lines) == 8
    assert legend(figure)[-2:] == [
        "hollow: TensorFlow SavedModel with\nAutomatic FP16, FP32",
        "filled: TensorRT, FP16",
    ]


def test_its_figure_has_the_finding_as_alternative_text(folder: Path) -> None:
    page = (folder / "published.html").read_text()
    (alt,) = re.findall(r'alt="([^"]*)"', page)

    assert unescape(alt) == published_page.describe(
        published_page.power_of_two_rows(published.rows("widedeep"))
    )


def test_a_target_is_published_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    (tmp_path / "smoke").mkdir()
    shutil.copyfile(ROOT / "params/smoke.yaml", tmp_path / "smoke/parameters.yaml")

    assert main(["publish", "--outputs", str(tmp_path)]) == 0

    index = (tmp_path / "index.html").read_text()
    assert re.findall('href="([^d][^"]*)"', index) == ["smoke/index.html", "published.html"]


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
    fp32 = [r for m in published.DOCUMENTS for r in raw(m) if r["precision"] == "FP32"]
    chosen = "#model=widedeep&precision=FP32"
    assert console == []
    assert [each[0] for each in said] == [len(fp32), *[len(deep)] * 3, 1218, 10]
    assert [each[1] for each in said] == [
        *("#precision=FP32", chosen, f"{chosen}&sort=average+%28ms%29"),
        *(f"{chosen}&sort=-average+%28ms%29", "", "#broken="),
    ]
    assert float(said[2][2].replace(",", "")) == min(deep)
    assert float(said[3][2].replace(",", "")) == max(deep)
