"""The glossary of the site: each term, what it means here, and who else uses it so."""

from dataclasses import dataclass
from pathlib import Path

from helpers.report import documents, steps
from helpers.report.site import GLOSSARY, render
from helpers.store import ROOT, write_atomic


@dataclass(frozen=True)
class Term:
    """A term, its definition in one or two sentences, and where it is a standard term.

    `formerly` are the words that older results and pages have in its place.
    """

    name: str
    meaning: str
    source: str = ""
    formerly: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """Where it stands on the page."""
        return documents.anchor(self.name)


TERMS = (
    Term(
        "A/B comparison",
        "Two configurations are served at once and loaded alternately, A B B A. The result is the "
        "ratio of their throughputs, with its confidence interval.",
        "statistics",
        ("contest",),
    ),
    Term(
        "artifact",
        "A file or folder that a stage makes: an exported model, a converted model, a model "
        "repository. Experiments with the same settings share it.",
        formerly=("artefact",),
    ),
    Term(
        "average batch size",
        "Samples per execution of the model: Triton's inference count divided by its execution "
        "count. It shows what the dynamic batcher formed.",
        "Triton",
        ("executed batch", "samples in an execution"),
    ),
    Term("backend", "The part of Triton that runs one kind of model file.", "Triton"),
    Term("batch size", "Samples per request. See also average batch size.", "Triton"),
    Term(
        "candidate",
        "A configuration that takes part in an A/B comparison.",
        formerly=("contender",),
    ),
    Term(
        "client-bound",
        "A measurement quality: the load generator took so much of the time that it limited the "
        "result.",
    ),
    Term(
        "composition",
        "How Triton joins the lookup and the dense network of a recommender: as an ensemble, or "
        "fused into one model.",
    ),
    Term(
        "concurrency mode",
        "Each of N clients keeps one request in flight. It is also called a closed loop.",
        "perf_analyzer",
        ("closed loop",),
    ),
    Term(
        "confidence interval",
        "A range that contains the true value in 95% of repeated experiments (95% CI).",
        "statistics",
        ("interval of 95%",),
    ),
    Term(
        "CUDA graph",
        "All kernel launches of a batch, recorded once and replayed together. It helps where "
        "kernels are short, and works only for the recorded shape.",
        "CUDA",
    ),
    Term(
        "default vector",
        "The embedding that a parameter server returns for a key that it has not cached.",
        "NVIDIA HPS",
    ),
    Term(
        "dense network",
        "The part of a recommender after the lookup: bottom MLP, interaction and top MLP.",
        formerly=("dense half",),
    ),
    Term(
        "dynamic batching",
        "Triton joins waiting requests into one execution. Larger batches raise throughput; "
        "waiting for them adds latency.",
        "Triton",
    ),
    Term(
        "engine",
        "A network that TensorRT has compiled for one kind of GPU and one TensorRT version. Its "
        "optimization profile gives the batch sizes.",
        "TensorRT",
    ),
    Term("ensemble", "Several models that Triton runs in sequence for one request.", "Triton"),
    Term(
        "experiment",
        "One configuration of a model on a target: format, precision, batch sizes, instances and "
        "batcher.",
    ),
    Term("hit rate", "The share of distinct keys that the cache of a parameter server had."),
    Term(
        "imprecise",
        "A measurement quality: the margin of error is larger than the experiment's target.",
        formerly=("wide",),
    ),
    Term(
        "in-process baseline",
        "The same model file, runtime, threads and settings without a server.",
        formerly=("bare",),
    ),
    Term(
        "instance",
        "A copy of a model in Triton. Each instance computes one batch at a time.",
        "Triton",
    ),
    Term(
        "interleaved",
        "Runs of two configurations alternate, so slow changes of the machine affect both alike.",
        "statistics",
        ("in turn",),
    ),
    Term("latency budget", "The highest p99 latency that a service may have."),
    Term("lesson", "A notebook that varies one setting of a served model and shows the effect."),
    Term(
        "Little's law",
        "Concurrency × batch size = throughput × mean latency. The table shows the right side "
        "divided by the left: 1 if every client always has a request in flight. A ratio far "
        "from 1 points to the load generator, not to the server.",
        "Little 1961",
    ),
    Term(
        "load generator",
        "The program that sends requests and records their times: perf_analyzer, or MLPerf's "
        "LoadGen in a cross-check.",
        "MLPerf, perf_analyzer",
        ("meter",),
    ),
    Term("lookup", "The step that turns the ids of a sample into embedding vectors."),
    Term(
        "machine speed",
        "The rate of a fixed matrix multiplication before and after each run, in GFLOP/s. It "
        "shows whether the machine itself became slower.",
        formerly=("pace",),
    ),
    Term(
        "margin of error",
        "Half the width of a 95% confidence interval on a logarithmic scale: √(high / low) − 1. "
        "A margin of 5% means about ±5%.",
        "statistics",
        ("half width",),
    ),
    Term(
        "match rate",
        "The share of predictions that equal the reference's predictions. For a numeric "
        "prediction: 1 minus the relative difference.",
        formerly=("agreement",),
    ),
    Term(
        "measurement",
        "One row of a table: a configuration under one load, from several runs.",
        formerly=("point", "row"),
    ),
    Term(
        "measurement quality",
        "Whether a measurement is reliable: stable, imprecise, noisy, too few requests, "
        "client-bound, saturated or failed. The reason stands below it.",
        formerly=("verdict",),
    ),
    Term(
        "model repository",
        "A folder with one folder per model: the model file and its configuration "
        "(config.pbtxt). Triton serves it.",
        "Triton",
    ),
    Term(
        "no clear winner",
        "The 95% confidence intervals overlap. This is a convention, not a statistical test.",
        formerly=("not told apart",),
    ),
    Term(
        "no-op model",
        "A model with the same tensors that computes nothing. Its latency is the fixed cost of "
        "Triton, transport and adapter.",
        formerly=("floor of serving",),
    ),
    Term(
        "noisy",
        "A measurement quality: something else may have changed the result. Examples are other "
        "processes, a slower machine or a throttled GPU.",
        formerly=("disturbed",),
    ),
    Term(
        "offline",
        "One client sends batches of a fixed size. This is the scenario of NVIDIA's tables, not "
        "MLPerf's Offline scenario.",
        "NVIDIA DeepLearningExamples",
    ),
    Term(
        "online",
        "Many clients send small requests over HTTP, and Triton batches them.",
        "NVIDIA DeepLearningExamples",
    ),
    Term(
        "opset",
        "The version of ONNX's operator set in a file. Old runtimes read only old opsets.",
        "ONNX",
    ),
    Term("p99", "The 99th percentile: 99% of requests have this latency or less.", "statistics"),
    Term(
        "parameter server",
        "NVIDIA's hierarchical parameter server (HPS) serves embedding tables that exceed memory. "
        "It has a cache, a volatile database and a database on disk. DLRM and DCNv2 use it with "
        "lookup: hps.",
        "NVIDIA HPS",
        ("store",),
    ),
    Term(
        "Pareto front",
        "The measurements for which no other has both a higher throughput and a p99 latency that "
        "is as low. The chart puts rings around them.",
        "statistics",
    ),
    Term(
        "parity check",
        "Compares the outputs of the exported, converted and served model with the reference. "
        "The tolerances are tight enough that a wrong model fails.",
        formerly=("accuracy ladder", "rung"),
    ),
    Term(
        "perf_analyzer",
        "Triton's own load generator.",
        "Triton",
    ),
    Term(
        "precision",
        "The number format of a computation: fp32 (24-bit significand), bf16 (8 bits, the range "
        "of fp32), fp16 (11 bits, a small range) or int8 (integer steps of a scale).",
    ),
    Term(
        "preferred batch size",
        "The batcher executes a batch of this size without further waiting.",
        "Triton",
    ),
    Term(
        "reference",
        "PyTorch or Keras in fp32, on the same samples.",
        formerly=("the framework's",),
    ),
    Term(
        "relative throughput",
        "Throughput of Triton divided by that of the in-process baseline, from interleaved runs.",
        formerly=("served / bare",),
    ),
    Term(
        "request-rate mode",
        "Requests start at random times (Poisson arrivals), whether earlier ones have ended or "
        "not. It is also called an open loop, and resembles MLPerf's Server scenario.",
        "perf_analyzer",
        ("open loop",),
    ),
    Term(
        "residual overhead",
        "Serving overhead minus the latency of the no-op model. It includes caches and cores "
        "that cooled down between computations.",
        formerly=("beyond the floor",),
    ),
    Term(
        "retry budget",
        "The time that a measurement may spend waiting for a quiet machine and measuring again.",
        formerly=("patience",),
    ),
    Term(
        "roofline bound",
        "Compute or memory: which of the machine's two measured rates limits this model first. "
        "The rates come from short measurements, so a share of roofline can exceed 100%.",
        "Williams, Waterman, Patterson 2009",
        ("limit",),
    ),
    Term(
        "run-to-run variation",
        "How much machine speed changed between measurements. Smaller differences between "
        "measurements may come from the machine.",
        "statistics",
        ("noise floor",),
    ),
    Term(
        "samples/s",
        "Throughput: samples of completed requests per second.",
        "MLPerf",
        ("inferences/s",),
    ),
    Term(
        "saturated",
        "A measurement quality in request-rate mode: requests arrived faster than the server "
        "answered, and latency kept growing.",
        formerly=("overloaded",),
    ),
    Term(
        "serving overhead",
        "Mean latency of a request minus the time of the same call in-process, in ms.",
        formerly=("serving",),
    ),
    Term(
        "significand",
        "The digits that a floating-point number keeps. The exponent gives its magnitude.",
        "IEEE 754",
    ),
    Term(
        "stable",
        "A measurement quality: enough requests, a quiet machine and a margin of error within "
        "the target.",
    ),
    Term("stage", "One notebook of an experiment: export, convert, deploy and so on."),
    Term("target", "A machine and its experiments, as a parameter file describes them."),
    Term(
        "tolerance",
        "The largest difference from the reference that a parity check accepts, in standard "
        "deviations of the reference output.",
        formerly=("bounds",),
    ),
    Term(
        "too few pairs",
        "The quality of a ratio: fewer than three pairs of runs give no confidence interval.",
        formerly=("few pairs",),
    ),
    Term(
        "too few requests",
        "A measurement quality: the time limit came before the required number of requests.",
        formerly=("few requests",),
    ),
    Term(
        "trace and script",
        "Two ways to TorchScript. Tracing records the operations of one run; scripting compiles "
        "the source code, with its control flow.",
        "PyTorch",
    ),
    Term(
        "warm-up",
        "Requests that Triton sends to a model before it is ready. The first run of a shape is "
        "slow.",
        "Triton",
    ),
)


def write_page(outputs: Path) -> Path:
    """Write the page into an outputs folder, and return its path."""
    pages = {str(path.relative_to(ROOT)): page for path, page in documents.sources().items()}
    context = {
        "steps": steps.table_rows(),
        "terms": TERMS,
        "troubleshooting": pages.get("notebooks/TROUBLESHOOTING.md"),
        "parameters": pages.get("params/README.md"),
        "columns": pages.get("notebooks/README.md"),
    }
    return write_atomic(outputs / GLOSSARY, render("glossary.html.j2", context))
