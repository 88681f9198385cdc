"""The command line: `triton-notebooks`, or `python -m helpers`."""

import locale
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

try:
    from typer import Argument, Option, Typer, TyperException
    from typer.main import get_command

    from helpers import config, inference, machine, measure, pipeline, store, triton
    from helpers.display import Lines, lines_or_live
    from helpers.errors import DeploymentError, ParameterError, ServerError, WorkspaceError
    from helpers.pipeline import cluster, own
    from helpers.report import compare_folders, counts
    from helpers.store import ROOT, display_path
except ImportError as error:
    sys.exit(f"error: {error}. Run: pip install --no-deps -r docker/requirements.lock")

EXIT_CODES = """\b
Exit codes:
    0  everything is done
    1  a stage failed, or a comparison found a difference
    2  wrong usage or wrong parameters
  129  interrupted by SIGHUP
  130  interrupted by Ctrl-C
  143  interrupted by SIGTERM"""
EXAMPLE = "\b\nExample:\n  triton-notebooks {}"
app = Typer(
    help="Deploy models on Triton, check their outputs, measure them and write reports.",
    epilog=f"{EXIT_CODES}\n\n{EXAMPLE.format('run --model resnet50')}",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
params = Typer(rich_markup_mode=None, epilog=EXAMPLE.format("params new"))
app.add_typer(params, name="params", help="Compare parameter files, or write one for this GPU.")
say = Lines()
TERMINAL = "PYTHONIOENCODING"  # the encoding of the terminal


def use_outputs(folder: Path) -> Path:
    """Make `folder` the outputs folder of this process and of the kernels that it starts."""
    os.environ[store.OUTPUTS_VARIABLE] = str(folder.resolve())
    return folder.resolve()


Stage = StrEnum(
    "Stage",
    "export convert deploy perf_offline perf_online compare report tune "
    "dynamic_batching instances precision protocol",
)
File = Annotated[Path, Argument(metavar="PARAMS", help="parameter file", show_default=False)]
DEFAULT_FILE = "parameter file  [default: params/cpu.yaml]"
SOURCES = (
    "model to import: an .onnx, .keras, .pt2, .joblib or TorchScript file, hf:FOLDER of a Hugging "
    "Face model, the folder of a SavedModel or of a model in a Triton repository, module:function"
)
SAMPLES = (
    ".npz file with one array per input; for hf: also a text file or a folder of images  "
    "[default: random inputs]"
)
LABELS = ".npz file with one array, one label per sample (needs --samples, --metric)"
METRIC = "metric of the labels: accuracy, f1, auc, mae, or a name for a function that you write"
BATCH = "batch dimension: 1 if its size is fixed at 1, none if the model has none"
BEFORE = (
    "module:function of this folder that makes the inputs of what a client sends: the first "
    "step on the server; for hf: also preprocessor, the folder's own (needs --samples)"
)
SIZE = "size of a free dimension of the inputs (repeatable)"
ONE_OF = f"run only this stage (repeatable): {', '.join(Stage)}"
WHAT_RUNS = "print what would run and how long it would take; run nothing"
WHAT_GOES = "print what would be removed; remove nothing"
WHERE = "run the stages on this cluster's workers  [default: on this machine]"
SECRET = "TLS key file written by `scheduler` (required for tls:// addresses)"
PLAIN = "disable TLS: anyone on the network can then read traffic and run code"
Seconds = Annotated[int, Option(metavar="SECONDS", help="time limit of a cell, in seconds")]
Experiment = Annotated[
    str, Option(metavar="E", help="name of the experiment  [default: the model's first]")
]
Model = Annotated[str, Option(metavar="M", help="name of the model")]
LIMIT = "time limit of the search's measurements, in minutes  [default: tune_minutes]"
Minutes = Annotated[float | None, Option(metavar="N", help=LIMIT, min=0.1)]
Port = Annotated[int | None, Option(metavar="P", help="HTTP port  [default: a free port]")]
First = Annotated[Path, Argument(metavar="A", help="first parameter file")]
Second = Annotated[Path, Argument(metavar="B", help="second parameter file")]
Name = Annotated[
    str, Argument(metavar="NAME", help="name of the new file in params/  [default: the GPU's name]")
]
SLOWER = "fail if a row of B is known to be slower by more than P%"
MEASURE = "serve both deployments and measure close rows again, interleaved"
PAGE = "page to write  [default: diff.html in B]"
FOLDER = "folder of the results  [default: outputs]"
Outputs = Annotated[
    Path, Option(metavar="DIR", help=FOLDER, show_default=False, callback=use_outputs)
]
OUTPUTS = ROOT / "outputs"
Cluster = Annotated[str, Option("--scheduler", metavar="ADDRESS", help=WHERE)]
Source = Annotated[
    str, Option("--scheduler", metavar="ADDRESS", help="download the model from this cluster")
]
Needed = Annotated[
    str, Option("--scheduler", metavar="ADDRESS", help="address of the cluster's scheduler")
]
Address = Annotated[str, Argument(metavar="SCHEDULER", help="address printed by `scheduler`")]
Key = Annotated[Path | None, Option(metavar="FILE", help=SECRET)]
Insecure = Annotated[bool, Option("--insecure", help=PLAIN)]
Fetch = Annotated[
    bool, Option("--fetch", help="download the workers' artifacts (with --scheduler)")
]
TARGET = "offer only this target (repeatable)  [default: all that this machine supports]"
Offers = Annotated[list[str] | None, Option(metavar="T", help=TARGET)]
Host = Annotated[str, Option(metavar="H", help="IP address to listen on")]


@app.command(epilog=EXAMPLE.format("run params/cpu.yaml --model resnet50 --stage export"))
def run(
    files: Annotated[list[Path] | None, Argument(metavar="PARAMS", help=DEFAULT_FILE)] = None,
    model: Annotated[
        list[str] | None, Option(metavar="M", help="run only this model (repeatable)")
    ] = None,
    experiment: Annotated[
        list[str] | None, Option(metavar="E", help="run only this experiment (repeatable)")
    ] = None,
    stage: Annotated[list[Stage] | None, Option(metavar="S", help=ONE_OF)] = None,
    force: Annotated[bool, Option("--force", help="rerun stages that are up to date")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help=WHAT_RUNS)] = False,
    cell_timeout: Seconds = 7200,
    scheduler: Cluster = "",
    key: Key = None,
    insecure: Insecure = False,
    fetch: Fetch = False,
    outputs: Outputs = OUTPUTS,
) -> int:
    """Run the notebooks that are not up to date and write the pages.

    Press Ctrl-C to stop. Run the same command again to resume: finished stages are kept.
    """
    if not scheduler and (fetch or insecure or key):
        raise ParameterError("--fetch, --key and --insecure need --scheduler.")
    do: Callable[..., Counter[str]] = pipeline.run
    if scheduler:
        access = cluster.Access(scheduler, key, insecure)
        do = partial(cluster.run, access=access, fetch=fetch)
    outcome = do(
        files or (),
        outputs,
        models=model or (),
        experiments=experiment or (),
        stages=stage or (),
        force=force,
        dry_run=dry_run,
        cell_seconds=cell_timeout,
        say=lines_or_live(),
    )
    if not dry_run:
        parts = ", ".join(f"{count} {name}" for name, count in outcome.items() if count)
        say(f"{parts or 'nothing to do'}; pages: {display_path(outputs / 'index.html')}")
    return 1 if set(+outcome) - {"executed", "unchanged", "skipped"} else 0


@app.command(epilog=EXAMPLE.format("worker tls://10.0.0.1:8786 --key cluster.pem"))
def worker(
    address: Address,
    target: Offers = None,
    key: Key = None,
    insecure: Insecure = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Start a worker that runs the stages this machine supports.

    It runs until you press Ctrl-C.
    """
    cluster.work(cluster.Access(address, key, insecure), target or (), say)


@app.command(epilog=EXAMPLE.format("scheduler --host 10.0.0.1"))
def scheduler(
    host: Host = "127.0.0.1",
    port: Annotated[int, Option(metavar="P", help="TCP port (0: a free port)")] = 8786,
    insecure: Insecure = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Start the cluster scheduler.

    It runs until you press Ctrl-C. Connections from other machines use TLS.
    """
    cluster.serve_scheduler(host, port, outputs, insecure, say)


@app.command(
    epilog=EXAMPLE.format(
        "prepare params/mine.yaml --model dlrm \\\n"
        "    --scheduler tls://10.0.0.1:8786 --key cluster.pem"
    )
)
def prepare(
    file: File,
    model: Model,
    scheduler: Needed,
    experiment: Experiment = "",
    key: Key = None,
    insecure: Insecure = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Prepare large raw data files on a cluster's workers.

    The files are those of Criteo or Outbrain. All machines must see them and the outputs folder
    under the same paths. Run the same command again to resume: finished parts are kept.
    """
    access = cluster.Access(scheduler, key, insecure)
    cluster.prepare(file, outputs, model, access=access, experiment=experiment, say=say)


@app.command(epilog=EXAMPLE.format("publish"))
def publish(outputs: Outputs = OUTPUTS) -> None:
    """Write all pages again from the saved results."""
    for target in pipeline.targets(outputs):
        say(str(pipeline.publish(outputs, target)))
    say(str(pipeline.publish_front(outputs)))


@app.command(epilog=EXAMPLE.format("status"))
def status(outputs: Outputs = OUTPUTS) -> None:
    """Print the state of every stage, and how long it took."""
    targets = pipeline.targets(outputs)
    if not targets:
        raise WorkspaceError(f"{outputs} has no results. Run: triton-notebooks run")
    for target in targets:
        states = pipeline.stage_states(outputs, target)
        say(f"{target}: {', '.join(f'{n} {state}' for state, n in counts(states))}")
        for state in states:
            name = f"{state.model} {state.experiment}".strip()
            measuring = state.measuring_seconds
            took = state.took + (f" ({measuring:.0f} s of measurements)" if measuring else "")
            summary = "; ".join(filter(None, (state.headline or state.reason, took)))
            say(f"  {name:28} {state.stage:13} {state.state:8} {summary}")


@app.command(epilog=EXAMPLE.format("clear --dry-run"))
def clear(
    dry_run: Annotated[bool, Option("--dry-run", help=WHAT_GOES)] = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Remove artifacts that no result or experiment uses."""
    pipeline.clear(outputs, dry_run, say)


@app.command(epilog=EXAMPLE.format("tune params/cpu.yaml --model dlrm --minutes 20"))
def tune(
    file: File,
    model: Model,
    experiment: Experiment = "",
    minutes: Minutes = None,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Search for a model's fastest configuration within its limits.

    The search starts from the experiment. Run the same command again to resume it.
    """
    pipeline.tune(file, outputs, model, experiment, minutes, say=lines_or_live())


@app.command(epilog=EXAMPLE.format("serve params/cpu.yaml --model resnet50 --port 8000"))
def serve(
    file: File,
    model: Model,
    experiment: Experiment = "",
    port: Port = None,
    scheduler: Source = "",
    key: Key = None,
    insecure: Insecure = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Serve a deployed model until Ctrl-C."""
    parameters = config.read_file(file)
    config.select(parameters, [model], [experiment] if experiment else [])
    chosen = config.configure(parameters, model, experiment, "deploy")
    assert isinstance(chosen, config.DeployConfig)
    if scheduler:
        cluster.fetch_repository(chosen, outputs, cluster.Access(scheduler, key, insecure), say)
    repository = inference.require(chosen, "deploy")
    log = outputs / file.stem / "serve.log"
    with triton.serve(chosen, repository, "online", log=log, http_port=port) as server:
        say(f"{model} ({chosen.experiment}) at http://{server.url}; press Ctrl-C to stop")
        while server.is_alive():
            time.sleep(0.5)
        raise ServerError(f"Triton ended: {server.exit_report()}")


@app.command(epilog=EXAMPLE.format("crosscheck params/cpu.yaml --model resnet50"))
def crosscheck(
    file: File, model: Model, experiment: Experiment = "", outputs: Outputs = OUTPUTS
) -> int:
    """Measure a deployed model with a second load generator.

    It compares MLPerf's LoadGen with perf_analyzer. The exit code is 1 if their results differ.
    """
    parameters = config.read_file(file)
    config.select(parameters, [model], [experiment] if experiment else [])
    rows = measure.crosscheck(parameters, model, experiment)
    for row in rows:
        say(", ".join(f"{name} {value}" for name, value in row.items() if value))
    return 1 if any(row["quality"] == "differ" for row in rows) else 0


@app.command(epilog=EXAMPLE.format("doctor params/NVIDIA-T4.yaml"))
def doctor(
    file: Annotated[Path, Argument(metavar="PARAMS", help=DEFAULT_FILE, show_default=False)] = ROOT
    / "params/cpu.yaml",
    outputs: Outputs = OUTPUTS,
) -> int:
    """Check this machine and say how to fix what is missing."""
    parameters = config.read_file(file)
    pairs = config.select(parameters, [], [])
    configs = [config.configure(parameters, *pair, "deploy") for pair in pairs]
    checks = machine.run_checks([c for c in configs if isinstance(c, config.ConvertConfig)])
    for check in checks:
        say(f"{check.word:4} {check.line}")
    return 0 if all(check.ok for check in checks) else 1


@app.command("new", epilog=EXAMPLE.format("new detector --from model.onnx --samples samples.npz"))
def new_model(
    name: Annotated[str, Argument(metavar="NAME", help="name of the model: letters, digits and _")],
    source: Annotated[str, Option("--from", metavar="SOURCE", help=SOURCES)],
    samples: Annotated[Path | None, Option(metavar="FILE", help=SAMPLES)] = None,
    labels: Annotated[Path | None, Option(metavar="FILE", help=LABELS)] = None,
    metric: Annotated[str, Option(metavar="METRIC", help=METRIC)] = "",
    batch: Annotated[str, Option(metavar="B", help=BATCH)] = "",
    dimension: Annotated[list[str] | None, Option(metavar="D=SIZE", help=SIZE)] = None,
    before: Annotated[str, Option(metavar="STEP", help=BEFORE)] = "",
    device: Annotated[str, Option(metavar="cpu|gpu", help="device to list formats for")] = "cpu",
) -> None:
    """Create notebooks and a parameter file for your own model.

    It also creates a Python package in helpers/models. No existing file is overwritten.
    """
    options = own.NewOptions(samples, labels, metric, batch, dimension or (), device, before)
    own.create(name, source, options, say)


def share_of(percentage: str) -> float:
    """Return a percentage such as `5%` as a share."""
    number = re.fullmatch(r"(\d{1,2}(?:\.\d+)?)%", percentage)
    if not number:
        raise ParameterError(f"--fail-if-slower {percentage} is not a percentage such as 5%.")
    return float(number[1]) / 100


@app.command("diff", epilog=EXAMPLE.format("diff before outputs --fail-if-slower 5%"))
def diff_outputs(
    first: Annotated[Path, Argument(metavar="A", help="outputs folder before a change")],
    second: Annotated[Path, Argument(metavar="B", help="outputs folder after it")],
    fail_if_slower: Annotated[
        float | None, Option(metavar="P%", help=SLOWER, parser=share_of)
    ] = None,
    html: Annotated[Path | None, Option(metavar="FILE", help=PAGE)] = None,
    junit: Annotated[Path | None, Option(metavar="FILE", help="write JUnit XML too")] = None,
    markdown: Annotated[Path | None, Option(metavar="FILE", help="write Markdown too")] = None,
    measure: Annotated[bool, Option("--measure", help=MEASURE)] = False,
) -> int:
    """Compare the results of two outputs folders.

    The exit code is 1 if a metric changed, a stage that was done failed, or a row is too slow. It
    is also 1 if no row shows whether B is slower.
    """
    comparison = compare_folders(first, second, fail_if_slower, looks=2 if measure else 1)
    if measure:
        comparison = pipeline.measure_close(comparison, say)
    for line in comparison.lines():
        say(line)
    written = [comparison.write("differences.html.j2", html or second / "diff.html")]
    written += [comparison.write("junit.xml.j2", junit)] if junit else []
    written += [comparison.write_markdown(markdown)] if markdown else []
    say(f"wrote {', '.join(map(str, written))}")
    return 1 if comparison.is_failure else 0


@params.command(epilog=EXAMPLE.format("params diff params/cpu.yaml params/cpu-int8.yaml"))
def diff(first: First, second: Second) -> int:
    """Compare two parameter files field by field.

    Defaults are filled in first. The exit code is 1 if the files differ.
    """
    differences = config.differences(first, second)
    for line in differences or ["no difference"]:
        say(line)
    return 1 if differences else 0


@params.command(epilog=EXAMPLE.format("params new my-gpu"))
def new(name: Name = "") -> None:
    """Write a parameter file for this machine's GPU.

    It is based on the file of the most similar known GPU. No existing file is overwritten.
    """
    path = display_path(config.write_new(name, machine.this_gpu()))
    say(f"wrote {path}; next: triton-notebooks doctor {path}")


def use_utf8() -> None:
    """Restart this program in Python's UTF-8 mode if the locale has another encoding.

    All files that it and its packages read and write are UTF-8. The terminal keeps its encoding.
    """
    if not sys.flags.utf8_mode and (encoding := locale.getencoding().lower()) != "utf-8":
        os.environ.update(PYTHONUTF8="1", PYTHONIOENCODING=os.environ.get(TERMINAL, encoding))
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    os.environ.pop(TERMINAL, None)  # the programs that this one starts write to no terminal
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def interrupted_by(*signals: signal.Signals) -> Iterator[list[int]]:
    """Make the first of these signals interrupt the block as Ctrl-C does; yield a list with it."""
    received: list[int] = []

    def interrupt(signum: int, _: object) -> None:
        received.append(signum)
        if len(received) == 1:  # later signals must not interrupt the clean-up
            raise KeyboardInterrupt

    # an ignored signal stays ignored, as SIGHUP does after `nohup`
    chosen = [signum for signum in signals if signal.getsignal(signum) == signal.SIG_DFL]
    for signum in chosen:
        signal.signal(signum, interrupt)
    try:
        yield received
    finally:
        for signum in chosen:
            signal.signal(signum, signal.SIG_DFL)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    received: list[int] = []
    if arguments is None:
        use_utf8()
    try:
        store.require_open_files()
        command = get_command(app)
        with interrupted_by(signal.SIGTERM, signal.SIGHUP) as received, store.writable_home():
            code: int | None = command.main(arguments, "triton-notebooks", standalone_mode=False)
    except TyperException as error:
        where = getattr(getattr(error, "ctx", None), "command_path", "triton-notebooks")
        message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
        print(f"error: {message}. See: {where} --help", file=sys.stderr)
        return error.exit_code
    except DeploymentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ParameterError) else 1
    except ImportError as error:  # an import of the command itself failed
        print("error: {} {}. Run: {}".format(*machine.diagnose(error)), file=sys.stderr)
        return 1
    except OSError:
        if not received:
            raise
        code = 130  # the terminal was closed and shows nothing
    if code == 130:  # typer's exit code for KeyboardInterrupt
        with suppress(OSError):
            print("Interrupted. Run the same command again to resume.", file=sys.stderr)
        return 128 + received[0] if received else code
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
