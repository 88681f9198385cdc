"""The batch command: `python -m helpers`, installed as `triton-notebooks`.

Exit codes: 0 all done, 1 something failed or differs, 2 wrong usage or parameters, 130 interrupted.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

from helpers.config import STAGES
from helpers.errors import DeploymentError, ParameterError, WorkspaceError
from helpers.store import OUTPUTS_VARIABLE, ROOT, shown


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(
        prog="triton-notebooks",
        description="Deploy models on Triton and measure them, reproducibly.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument(
            "--outputs",
            type=Path,
            default=ROOT / "outputs",
            metavar="DIR",
            help="where results lie (outputs)",
        )
        return added

    run = command(
        "run",
        "Run the notebooks of parameter files, skip what is up to date, publish the pages.",
    )
    run.add_argument(
        "params",
        nargs="+",
        type=Path,
        metavar="PARAMS",
        help="a parameter file, such as params/cpu.yaml",
    )
    run.add_argument(
        "--model", action="append", default=[], help="only this model (may be given again)"
    )
    run.add_argument(
        "--experiment",
        action="append",
        default=[],
        help="only this experiment (may be given again)",
    )
    run.add_argument(
        "--stage",
        action="append",
        default=[],
        choices=STAGES,
        help="only this stage (may be given again)",
    )
    run.add_argument("--force", action="store_true", help="run what is up to date too")
    run.add_argument("--dry-run", action="store_true", help="say what would run and about how long")
    run.add_argument(
        "--cell-timeout",
        type=int,
        default=7200,
        metavar="SECONDS",
        help="longest that a cell may take (7200)",
    )
    command("publish", "Write every page again from what is there, and NVIDIA's rows.")
    command("status", "Print the state of every stage.")
    serve = command("serve", "Serve a deployed model until Ctrl-C.")
    serve.add_argument(
        "params", type=Path, metavar="PARAMS", help="the parameter file it was deployed with"
    )
    serve.add_argument("--model", required=True, help="the model")
    serve.add_argument("--experiment", default="", help="the experiment (the first)")
    serve.add_argument(
        "--port", type=int, default=None, help="the HTTP port on 127.0.0.1 (a free one)"
    )
    doctor = command(
        "doctor",
        "Look for what a target needs of this machine, and say how to mend what is missing.",
    )
    doctor.add_argument(
        "params",
        nargs="?",
        type=Path,
        default=ROOT / "params/cpu.yaml",
        metavar="PARAMS",
        help="a parameter file (params/cpu.yaml)",
    )
    text = "Compare parameter files, or write one for the GPU found here."
    params = commands.add_parser("params", help=text, description=text)
    params.set_defaults(outputs=ROOT / "outputs")
    files = params.add_subparsers(dest="action", required=True, metavar="COMMAND")
    text = "Compare two parameter files, field by field of each experiment as it resolves."
    diff = files.add_parser("diff", help=text, description=f"{text} Exit code 1: they differ.")
    diff.add_argument("first", type=Path, metavar="A", help="a parameter file")
    diff.add_argument("second", type=Path, metavar="B", help="the one that is held against it")
    text = "Write a parameter file for the GPU found here, from that of the nearest known one."
    new = files.add_parser("new", help=text, description=f"{text} No file is overwritten.")
    new.add_argument(
        "name", nargs="?", default="", metavar="NAME", help="its name in params/ (the GPU's)"
    )
    return top


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def run(args: argparse.Namespace) -> int:
    from helpers.pipeline import running

    outcome = running.run(
        args.params,
        args.outputs,
        models=args.model,
        experiments=args.experiment,
        stages=args.stage,
        force=args.force,
        dry_run=args.dry_run,
        cell_seconds=args.cell_timeout,
        say=say,
    )
    if not args.dry_run:
        parts = ", ".join(f"{count} {name}" for name, count in vars(outcome).items() if count)
        say(f"{parts or 'nothing to do'}; pages: {shown(args.outputs / 'index.html')}")
    return 1 if outcome.failed or outcome.blocked else 0


def publish(args: argparse.Namespace) -> int:
    from helpers.pipeline import status

    for target in status.targets(args.outputs):
        say(str(status.publish(args.outputs, target)))
    say(str(status.front(args.outputs)))
    return 0


def status(args: argparse.Namespace) -> int:
    from helpers.pipeline import status

    for target in _targets(args.outputs):
        cells = status.cells(args.outputs, target)
        counts = Counter(cell["state"] for cell in cells)
        say(f"{target}: {', '.join(f'{n} {state}' for state, n in counts.items())}")
        for cell in cells:
            name = f"{cell['model']} {cell['experiment']}".strip()
            words = cell["headline"] or cell["reason"]
            say(f"  {name:28} {cell['stage']:13} {cell['state']:8} {words}")
    return 0


def serve(args: argparse.Namespace) -> int:
    from helpers.config import DeployConfig, configure, read_file, select
    from helpers.inference import require
    from helpers.triton import serving

    given = read_file(args.params)
    select(given, [args.model], [args.experiment][: bool(args.experiment)])
    config = configure(given, args.model, args.experiment, "deploy")
    assert isinstance(config, DeployConfig)
    repository = require(config, "deploy")
    log = args.outputs / args.params.stem / "serve.log"
    with serving.serve(config, repository, log=log, http_port=args.port) as server:
        say(f"{args.model} ({config.experiment}) at http://{server.url}; Ctrl-C ends it")
        while server.is_alive():
            time.sleep(0.5)
    return 1


def doctor(args: argparse.Namespace) -> int:
    from helpers.config import ConvertConfig, configure, read_file, select
    from helpers.machine import checks

    given = read_file(args.params)
    configs = (configure(given, *each, "convert") for each in select(given, [], []))
    found = checks.checks([each for each in configs if isinstance(each, ConvertConfig)])
    for check in found:
        say(f"{check.word:4} {check.line}")
    return 0 if all(check.ok for check in found) else 1


def params(args: argparse.Namespace) -> int:
    if args.action == "new":
        from helpers.config import write_new
        from helpers.machine import this_gpu

        path = shown(write_new(args.name, this_gpu()))
        say(f"{path} is written; next: triton-notebooks doctor {path}")
        return 0
    from helpers.config import differences

    found = differences(args.first, args.second)
    for line in found:
        say(line)
    if not found:
        say("no difference")
    return 1 if found else 0


def _targets(outputs: Path) -> list[str]:
    from helpers.pipeline import status

    found = status.targets(outputs)
    if not found:
        raise WorkspaceError(
            f"{outputs} holds no target yet: run triton-notebooks run params/cpu.yaml"
        )
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and give the exit code."""
    args = parser().parse_args(arguments)
    args.outputs = args.outputs.resolve()
    os.environ[OUTPUTS_VARIABLE] = str(args.outputs)
    try:
        code: int = {
            "run": run,
            "publish": publish,
            "status": status,
            "serve": serve,
            "doctor": doctor,
            "params": params,
        }[args.command](args)
    except ParameterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except DeploymentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where this one stopped", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
