"""The command line: `triton-notebooks`, or `python -m helpers`.

Exit codes: 0 all done, 1 something failed or differs, 2 wrong usage or parameters; interrupted: 130
by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP.
"""

import locale
import os
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

    from helpers import config, fleet, inference, machine, own, perf, pipeline, triton
    from helpers.display import Lines, lines_or_live
    from helpers.errors import DeploymentError, ParameterError, ServerError, WorkspaceError
    from helpers.report import counts
    from helpers.store import (
        OUTPUTS_VARIABLE,
        ROOT,
        display_path,
        require_open_files,
        writable_home,
    )
except ImportError as error:
    sys.exit(f"error: {error}: pip install --no-deps -r docker/requirements.lock")

app = Typer(
    help="Deploy models on Triton and measure them, reproducibly.",
    epilog=(__doc__ or "").rpartition("\n\n")[2],
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
params = Typer(rich_markup_mode=None)
app.add_typer(params, name="params", help="Compare parameter files, or write one for this GPU.")
say = Lines()
TERMINAL = "PYTHONIOENCODING"  # the encoding of its characters


def use_outputs(folder: Path) -> Path:
    """Make `folder` the outputs folder of this process and of the kernels that it starts."""
    os.environ[OUTPUTS_VARIABLE] = str(folder.resolve())
    return folder.resolve()


Stage = StrEnum(
    "Stage",
    "export convert deploy perf_offline perf_online report tune "
    "dynamic_batching instances precision",
)
File = Annotated[Path, Argument(metavar="PARAMS", help="a parameter file", show_default=False)]
Experiments = Annotated[list[str] | None, Option(metavar="E", help="only this experiment")]
SOURCES = (
    "an .onnx, .keras, .pt2 or TorchScript file, the folder of a SavedModel or of a model in a "
    "Triton repository, or module:function"
)
SAMPLES = "an .npz with an array for each input  [default: drawn at random]"
LABELS = "an .npz with one array, a label for each sample"
METRIC = "accuracy, f1, auc, mae, or the name of a function for you to write"
BATCH = "1: the batch is fixed at one sample; none: there is no batch dimension"
SIZE = "the size of a dimension that is free"
ONE_OF = f"only this stage: {', '.join(Stage)}"
DryRun = Annotated[bool, Option("--dry-run", help="only say what would run and for how long")]
ListOnly = Annotated[bool, Option("--dry-run", help="only say what would be removed")]
Seconds = Annotated[int, Option(metavar="SECONDS", help="the longest time for a notebook cell")]
Experiment = Annotated[str, Option(metavar="E", help="the experiment  [default: the first]")]
Model = Annotated[str, Option(metavar="M", help="the model")]
Minutes = Annotated[
    float | None, Option(metavar="N", help="of measuring that the search may take", min=0.1)
]
Port = Annotated[int | None, Option(metavar="P", help="the HTTP port  [default: a free one]")]
First = Annotated[Path, Argument(metavar="A", help="a parameter file")]
Second = Annotated[Path, Argument(metavar="B", help="the file to compare it with")]
Name = Annotated[str, Argument(metavar="NAME", help="its name in params/  [default: the GPU's]")]
FOLDER = "the folder of results  [default: outputs]"
Outputs = Annotated[
    Path, Option(metavar="DIR", help=FOLDER, show_default=False, callback=use_outputs)
]
OUTPUTS = ROOT / "outputs"
Scheduler = Annotated[
    str, Option(metavar="ADDRESS", help="of a fleet, whose workers run the stages  [default: here]")
]
Source = Annotated[str, Option("--scheduler", metavar="ADDRESS", help="bring it from a fleet")]
Needed = Annotated[str, Option("--scheduler", metavar="ADDRESS", help="of the fleet")]
Address = Annotated[str, Argument(metavar="SCHEDULER", help="the address that it printed")]
Key = Annotated[Path | None, Option(metavar="FILE", help="that the scheduler wrote, for tls://")]
Insecure = Annotated[
    bool, Option("--insecure", help="let others read, and run code: not encrypted between machines")
]
Fetch = Annotated[bool, Option("--fetch", help="bring artifacts home too, from --scheduler")]
Offers = Annotated[
    list[str] | None,
    Option(metavar="T", help="offer this target only  [default: what this machine can run]"),
]
Host = Annotated[str, Option(metavar="H", help="the address of this machine to listen at")]


@app.command()
def run(
    files: Annotated[
        list[Path] | None, Argument(metavar="PARAMS", help="a file  [default: params/cpu.yaml]")
    ] = None,
    model: Annotated[list[str] | None, Option(metavar="M", help="only this model")] = None,
    experiment: Experiments = None,
    stage: Annotated[list[Stage] | None, Option(metavar="S", help=ONE_OF)] = None,
    force: Annotated[bool, Option("--force", help="also run what is up to date")] = False,
    dry_run: DryRun = False,
    cell_timeout: Seconds = 7200,
    scheduler: Scheduler = "",
    key: Key = None,
    insecure: Insecure = False,
    fetch: Fetch = False,
    outputs: Outputs = OUTPUTS,
) -> int:
    """Run the notebooks that are not up to date and write the pages.

    --model, --experiment and --stage may be given several times.
    """
    do: Callable[..., Counter[str]] = partial(pipeline.run, say=lines_or_live())
    if scheduler:
        access = fleet.Access(scheduler, key, insecure)
        do = partial(fleet.run, access=access, fetch=fetch, say=fleet.lines_or_live())
    outcome = do(
        files or (),
        outputs,
        models=model or (),
        experiments=experiment or (),
        stages=stage or (),
        force=force,
        dry_run=dry_run,
        cell_seconds=cell_timeout,
    )
    if not dry_run:
        parts = ", ".join(f"{count} {name}" for name, count in outcome.items() if count)
        say(f"{parts or 'nothing to do'}; pages: {display_path(outputs / 'index.html')}")
    return 1 if set(+outcome) - {"executed", "unchanged", "skipped"} else 0


@app.command()
def worker(
    address: Address,
    target: Offers = None,
    key: Key = None,
    insecure: Insecure = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Run the stages of a fleet's runs that this machine can run.

    It goes on until Ctrl-C. --target may be given several times.
    """
    fleet.work(fleet.Access(address, key, insecure), outputs, target or (), say)


@app.command()
def scheduler(
    host: Host = "127.0.0.1",
    port: Port = 8786,
    insecure: Insecure = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Bring the workers and the runs of a fleet together.

    It goes on until Ctrl-C. At another address than 127.0.0.1 everything is encrypted.
    """
    fleet.serve_scheduler(host, port or 0, outputs, insecure, say)


@app.command()
def prepare(
    file: File,
    model: Model,
    scheduler: Needed,
    experiment: Experiment = "",
    key: Key = None,
    insecure: Insecure = False,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Prepare large raw files on the workers of a fleet.

    They are Criteo's or outbrain's, which the workers see, with the outputs folder, by the same
    paths. What was interrupted goes on.
    """
    access = fleet.Access(scheduler, key, insecure)
    fleet.prepare(file, outputs, model, access=access, experiment=experiment, say=say)


@app.command()
def publish(outputs: Outputs = OUTPUTS) -> None:
    """Write all pages again from the saved results."""
    for target in pipeline.targets(outputs):
        say(str(pipeline.publish(outputs, target)))
    say(str(pipeline.publish_front(outputs)))


@app.command()
def status(outputs: Outputs = OUTPUTS) -> None:
    """Print the state of every stage, and how long it took."""
    targets = pipeline.targets(outputs)
    if not targets:
        raise WorkspaceError(f"{outputs} has no results: run triton-notebooks run")
    for target in targets:
        states = pipeline.stage_states(outputs, target)
        say(f"{target}: {', '.join(f'{n} {state}' for state, n in counts(states))}")
        for each in states:
            name = f"{each.model} {each.experiment}".strip()
            measuring = each.measuring_seconds
            took = each.took + (f", {measuring:.0f} s of them measuring" if measuring else "")
            said = "; ".join(filter(None, (each.headline or each.reason, took)))
            say(f"  {name:28} {each.stage:13} {each.state:8} {said}")


@app.command()
def clear(dry_run: ListOnly = False, outputs: Outputs = OUTPUTS) -> None:
    """Remove artifacts that nothing refers to any more."""
    pipeline.clear(outputs, dry_run, say)


@app.command()
def tune(
    file: File,
    model: Model,
    experiment: Experiment = "",
    minutes: Minutes = None,
    outputs: Outputs = OUTPUTS,
) -> None:
    """Search a model's fastest configuration within its bounds.

    It begins with the experiment, and goes on where an earlier search stopped.
    """
    pipeline.tune(file, outputs, model, experiment, minutes, say=lines_or_live())


@app.command()
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
    given = config.read_file(file)
    config.select(given, [model], [experiment] if experiment else [])
    chosen = config.configure(given, model, experiment, "deploy")
    assert isinstance(chosen, config.DeployConfig)
    if scheduler:
        fleet.bring(chosen, outputs, fleet.Access(scheduler, key, insecure), say)
    repository = inference.require(chosen, "deploy")
    log = outputs / file.stem / "serve.log"
    with triton.serve(chosen, repository, "online", log=log, http_port=port) as server:
        say(f"{model} ({chosen.experiment}) at http://{server.url}; Ctrl-C ends it")
        while server.is_alive():
            time.sleep(0.5)
        raise ServerError(f"Triton ended: {server.last_words()}")


@app.command()
def crosscheck(
    file: File, model: Model, experiment: Experiment = "", outputs: Outputs = OUTPUTS
) -> int:
    """Measure a deployed model with a second load generator.

    The exit code is 1 if the two load generators differ.
    """
    given = config.read_file(file)
    config.select(given, [model], [experiment] if experiment else [])
    rows = perf.crosscheck(given, model, experiment)
    for row in rows:
        say(", ".join(f"{name} {value}" for name, value in row.items() if value))
    return 1 if any(row["quality"] == "differ" for row in rows) else 0


@app.command()
def doctor(file: File = ROOT / "params/cpu.yaml", outputs: Outputs = OUTPUTS) -> int:
    """Check this machine and say how to fix what is missing.

    Without PARAMS, it looks for what params/cpu.yaml needs.
    """
    given = config.read_file(file)
    configs = [config.configure(given, *each, "convert") for each in config.select(given, [], [])]
    found = machine.examine([each for each in configs if isinstance(each, config.ConvertConfig)])
    for check in found:
        say(f"{check.word:4} {check.line}")
    return 0 if all(check.ok for check in found) else 1


@app.command("new")
def new_model(
    name: Annotated[str, Argument(metavar="NAME", help="its name, a word of letters and digits")],
    source: Annotated[str, Option("--from", metavar="SOURCE", help=SOURCES)],
    samples: Annotated[Path | None, Option(metavar="FILE", help=SAMPLES)] = None,
    labels: Annotated[Path | None, Option(metavar="FILE", help=LABELS)] = None,
    metric: Annotated[str, Option(metavar="METRIC", help=METRIC)] = "",
    batch: Annotated[str, Option(metavar="B", help=BATCH)] = "",
    dimension: Annotated[list[str] | None, Option(metavar="D=SIZE", help=SIZE)] = None,
    device: Annotated[str, Option(metavar="cpu|gpu", help="for which formats are listed")] = "cpu",
) -> None:
    """Make a model of your own ready to be run.

    It writes package, notebooks and parameter file, and overwrites nothing. --dimension may be
    given several times.
    """
    own.create(
        name, source, own.Wishes(samples, labels, metric, batch, dimension or (), device), say
    )


@params.command()
def diff(first: First, second: Second) -> int:
    """Compare two parameter files field by field.

    Defaults are filled in first. The exit code is 1 if the files differ.
    """
    found = config.differences(first, second)
    for line in found or ["no difference"]:
        say(line)
    return 1 if found else 0


@params.command()
def new(name: Name = "") -> None:
    """Write a parameter file for this machine's GPU.

    It is based on the file of the most similar known GPU. No file is overwritten.
    """
    path = display_path(config.write_new(name, machine.this_gpu()))
    say(f"{path} is written; next: triton-notebooks doctor {path}")


def use_utf8() -> None:
    """Start this program again in Python's UTF-8 mode where the locale has another encoding: that
    of all files that it and its packages read and write is UTF-8. The terminal keeps its own.
    """
    if not sys.flags.utf8_mode and (own := locale.getencoding().lower()) != "utf-8":
        os.environ.update(PYTHONUTF8="1", PYTHONIOENCODING=os.environ.get(TERMINAL, own))
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    os.environ.pop(TERMINAL, None)  # what this program starts writes to no terminal
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def interrupted_by(*signals: signal.Signals) -> Iterator[list[int]]:
    """Have the first of these signals interrupt the block as Ctrl-C does, and tell which it was. A
    signal that is ignored stays so, as SIGHUP does after `nohup`.
    """
    came: list[int] = []

    def interrupt(number: int, _: object) -> None:
        came.append(number)
        if len(came) == 1:  # others may not disturb the end
            raise KeyboardInterrupt

    chosen = [each for each in signals if signal.getsignal(each) == signal.SIG_DFL]
    for each in chosen:
        signal.signal(each, interrupt)
    try:
        yield came
    finally:
        for each in chosen:
            signal.signal(each, signal.SIG_DFL)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    came: list[int] = []
    if arguments is None:
        use_utf8()
    try:
        require_open_files()
        command = get_command(app)
        with interrupted_by(signal.SIGTERM, signal.SIGHUP) as came, writable_home():
            code: int | None = command.main(arguments, "triton-notebooks", standalone_mode=False)
    except TyperException as error:
        where = getattr(getattr(error, "ctx", None), "command_path", "triton-notebooks")
        words = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
        print(f"error: {words}; see {where} --help", file=sys.stderr)
        return error.exit_code
    except DeploymentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ParameterError) else 1
    except ImportError as error:  # of a package that the command itself imports
        print("error: {} {}: {}".format(*machine.explained(error)), file=sys.stderr)
        return 1
    except OSError:
        if not came:
            raise
        code = 130  # the terminal was closed: nothing can be said there
    if code == 130:  # typer's answer to KeyboardInterrupt
        with suppress(OSError):
            print("interrupted: the same command goes on where this one stopped", file=sys.stderr)
        return 128 + came[0] if came else code
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
