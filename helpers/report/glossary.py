"""The page that explains the words of all others."""

from pathlib import Path

from helpers.report import steps
from helpers.report.site import Link, render
from helpers.store import write_atomic

PAGE = "glossary.html"
WORDS = (
    (
        "parity checks",
        "Comparisons of the outputs on the same samples: the exported, the "
        "converted and the served model, each with the framework in fp32, within bounds "
        "that a wrong "
        "model breaks.",
    ),
    (
        "artifact",
        "A file or folder that a stage makes: an exported or converted model, a model "
        "repository. Experiments with the same settings share it.",
    ),
    (
        "bare",
        "The format's runtime in one process, without a server: the same file, threads and "
        "settings.",
    ),
    ("batch size", "Samples in a request. The executed batch may be larger: see dynamic batching."),
    (
        "client-bound",
        "A quality: the load generator took so much of the time that the row measures "
        "it rather than the server.",
    ),
    ("concurrency", "Clients that each have one request under way."),
    (
        "CUDA graph",
        "The launches of all kernels of a batch, recorded once and replayed as one. It saves time "
        "where kernels are short, and holds for the shape that was recorded.",
    ),
    ("noisy", "A quality: other processes, or a machine at another pace, changed the figure."),
    (
        "dynamic batching",
        "Triton joins requests that wait into one execution. Larger batches give "
        "more throughput; waiting for them costs latency.",
    ),
    (
        "engine",
        "What TensorRT builds from a graph, for one kind of GPU and one version of TensorRT. "
        "Its optimisation profile says for which batch sizes; its workspace is scratch memory.",
    ),
    ("ensemble", "Several models that Triton runs one after the other for one request."),
    (
        "experiment",
        "One configuration of a model on a target: format, precision, batch sizes, "
        "instances, batcher.",
    ),
    (
        "floor of serving",
        "The latency of a request to a model with the same tensors that computes "
        "nothing: what Triton, the wire and the adapter cost.",
    ),
    ("half width", "Half of a 95% interval, as a share of the figure: how well it is known."),
    ("instance", "A copy of a model that computes one batch at a time."),
    ("latency budget", "The latency that 99% of requests must keep."),
    (
        "lesson",
        "A notebook that varies one thing of a served model, the batcher, instances or precision, "
        "and shows what that does.",
    ),
    (
        "Little's law",
        "Clients = throughput x latency, in requests. A closed loop that breaks it was "
        "measured wrongly.",
    ),
    (
        "request rate",
        "Requests at random times, whoever waits; in a closed loop each client waits for "
        "its answer before it asks again.",
    ),
    (
        "opset",
        "The version of ONNX's set of operators that a file uses. Old runtimes read old ones only.",
    ),
    ("p99", "The latency that 99% of requests do not exceed."),
    (
        "pace",
        "How fast the machine itself is at the moment: the rate of a fixed product of matrices.",
    ),
    (
        "parameter server",
        "Hierarchical (HPS): it holds embedding tables that do not fit into a server's memory, in "
        "a cache of the hot rows, a database in memory or Redis, and one on disk. The cache starts "
        "empty; the first requests warm it up, or a preload does. DLRM and DCNv2 are served so.",
    ),
    (
        "precision",
        "The numbers in which a model computes: fp32, which has 24 bits of significand; bf16, with "
        "the range of fp32 and 8 bits; fp16, with 11 bits and a small range; int8, whole steps of "
        "a scale.",
    ),
    ("preferred batch size", "A batch of this size is executed without waiting for more."),
    (
        "served / bare",
        "Throughput with the server, divided by that of the same file without it, "
        "measured in turn.",
    ),
    (
        "significand",
        "The digits that a floating-point number keeps, whatever its size; its exponent says where "
        "the point is.",
    ),
    (
        "stable",
        "A quality: the row has its requests, the machine was quiet, and the half width is "
        "within the experiment's bound.",
    ),
    ("target", "A machine, as its parameter file describes it."),
    (
        "trace and script",
        "Two ways to TorchScript. Tracing records the operations of one run, so "
        "control flow is fixed as it went; scripting compiles the source, control flow included.",
    ),
    ("quality", "Whether a row can be believed, and if not, why."),
    (
        "warm-up",
        "Requests of zeros that Triton sends to a model before it is ready: the first run "
        "of a shape is slow.",
    ),
    ("imprecise", "A quality: the row is right and not known precisely enough."),
)
SOURCES = (
    (
        "ResNet50 v1.5",
        "ImageNet's validation set (image-net.org)",
        "NGC: nvidia/resnet50_pyt_amp, or torchvision's",
    ),
    (
        "BERT-large",
        "SQuAD v1.1 (rajpurkar.github.io/SQuAD-explorer)",
        "NGC: nvidia/bert_pyt_ckpt_large_qa_squad11_amp, or Hugging Face's",
    ),
    (
        "TFT",
        "UCI: ElectricityLoadDiagrams20112014; PEMS-SF",
        "NGC: nvidia/dle/tft_base_pyt_ckpt_ds-electricity and -traffic",
    ),
    ("Wide & Deep", "Kaggle: Outbrain Click Prediction", "none is published: train one"),
    ("DLRM, DCNv2", "Criteo 1TB Click Logs", "none is published: train one"),
)
ISSUES = (
    "TFT and other TorchScript models on a GPU whose driver is older than the "
    "container's CUDA fail "
    "with 'the provided PTX was compiled with an unsupported toolchain': update the driver.",
    "A TensorRT engine does not load on another kind of GPU or with another version of TensorRT.",
    "With numpy 2 the Python backend of Triton 24.10 may return empty tensors: the lock files have "
    "numpy 1.26.",
    "Triton 24.10 and perf_analyzer 2.51 need glibc 2.35 or newer.",
    "On a processor without AVX512-BF16 or AMX, bf16 is computed in fp32 and gains "
    "nothing; without "
    "VNNI, int8 is slower than it could be and its weights may have 7 bits.",
)


def write_page(outputs: Path) -> Path:
    """Write the page into an outputs folder, and return its path."""
    context = {
        "links": [Link("index.html", "All targets")],
        "steps": steps.table_rows(),
        "words": WORDS,
        "sources": SOURCES,
        "issues": ISSUES,
    }
    return write_atomic(outputs / PAGE, render("glossary.html.j2", context))
