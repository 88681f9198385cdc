"""The batch command does what the documents say, in lines that a user can act on."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from helpers import pipeline
from helpers.__main__ import Stage, app, main
from helpers.config.loading import read_file
from helpers.config.schema import LESSONS, STAGE, STAGES
from helpers.store.paths import ROOT
from tests.conftest import interruptible

SMOKE = str(ROOT / "params/smoke.yaml")
DOCUMENTS = (*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md"))
DOCS = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)


@pytest.fixture
def outputs(tmp_path):
    return tmp_path / "outputs"


def commands():
    """The commands of the command line and of its groups, each with its line of help."""
    for name, command in get_command(app).commands.items():
        inner = getattr(command, "commands", {}).items()
        yield from ((f"{name} {each}", known.help) for each, known in inner)
        if not inner:
            yield name, command.help


HELP = {name: text.splitlines()[0] for name, text in commands()}


def documented():
    """The commands of the documents' table: name -> what it does."""
    pattern = r"^\| `triton-notebooks ([a-z]+(?: [a-z]+)*) ?[^`]*` \| (.*) \|$"
    return dict(re.findall(pattern, DOCS, re.MULTILINE))


def test_the_documents_and_the_help_have_every_command_and_say_the_same(capsys):
    assert set(documented()) == set(HELP)
    assert tuple(Stage) == tuple(STAGE)
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for name, line in HELP.items():
        assert " " in name or re.search(rf"^  {name} +{re.escape(line)}$", said, re.MULTILINE)
        assert documented()[name].startswith(line[0].lower() + line[1:].removesuffix("."))


@pytest.mark.parametrize("name", ["", *HELP, "params"])
def test_the_help_fits_a_screen_and_ends_with_an_example_that_can_be_run(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*name.split(), "--help"]) == 0

    said = capsys.readouterr().out
    lines = said.splitlines()
    assert lines[0].startswith(f"Usage: triton-notebooks {name}{' ' * bool(name)}[OPTIONS]")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert said.isascii()
    *_, example = said.partition("Example:\n")
    program, *words = shlex.split(example.replace("\\\n", " "))
    assert program == "triton-notebooks"
    assert words[: len(name.split())] == name.split()
    command = get_command(app)
    while inner := getattr(command, "commands", {}):
        command = inner[words.pop(0)]
    command.make_context(name, words)  # parses them, and runs nothing
    assert all(each.help for each in command.params)
    if name in HELP:
        has_outputs = "outputs" in [each.name for each in command.params]
        assert has_outputs is not name.startswith(("params ", "new", "diff"))


def test_the_files_that_the_documents_name_exist():
    own = {f"params/{name}.yaml" for name in re.findall(r"triton-notebooks new (\w+) ", DOCS)}
    names = re.findall(r"triton-notebooks run (params/[\w./-]+)", DOCS)
    names += re.findall(r"`((?:notebooks|params|helpers|docker)/[\w./-]+\.\w+)`", DOCS)

    assert len(names) > 20
    assert [name for name in names if name not in own and not (ROOT / name).exists()] == []


USAGE = {
    "": "Missing command. See: triton-notebooks --help",
    "train": "No such command 'train'. See: triton-notebooks --help",
    "run params/cpu.yaml --stage train": (
        "Invalid value for '--stage': 'train' is not one of 'export', 'convert', 'deploy', "
        "'perf_offline', 'perf_online', 'compare', 'report', 'tune', 'dynamic_batching', "
        "'instances', 'precision', 'protocol'. See: triton-notebooks run --help"
    ),
    "serve params/cpu.yaml": "Missing option '--model'. See: triton-notebooks serve --help",
    "run --fetch": "--fetch, --key and --insecure need --scheduler.",
    "run --insecure": "--fetch, --key and --insecure need --scheduler.",
    "params": "Missing command. See: triton-notebooks params --help",
    "params diff params/cpu.yaml": "Missing argument 'B'. See: triton-notebooks params diff --help",
}


@pytest.mark.parametrize(("arguments", "words"), USAGE.items())
def test_wrong_usage_is_exit_code_2_and_one_line(arguments, words, capsys):
    assert main(arguments.split()) == 2
    assert capsys.readouterr() == ("", f"error: {words}\n")


def test_run_with_nothing_after_it_runs_the_default_target(outputs, capsys):
    assert main(["run", "--dry-run", "--model", "bert", "--outputs", str(outputs)]) == 0

    assert re.fullmatch(r"cpu\.yaml: about \d+ min", capsys.readouterr().out.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["--help", "doctor params/cpu.yaml", "run --dry-run"])
def test_a_reader_that_closes_the_pipe_ends_the_command_without_a_traceback(arguments):
    command = [sys.executable, "-m", "helpers", *arguments.split()]
    read, write = os.pipe()
    os.close(read)  # nobody reads any more, as after `| head`

    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("status", "{outputs} has no results. Run: triton-notebooks run"),
        (
            f"serve {SMOKE} --model resnet50",
            "resnet50 onnx-fp32 has no deploy result yet. Run: triton-notebooks run "
            "params/smoke.yaml --model resnet50 --experiment onnx-fp32 --stage deploy",
        ),
    ],
)
def test_without_results_there_is_one_line_that_says_what_to_do(command, line, outputs, capsys):
    assert main([*command.split(), "--outputs", str(outputs)]) == 1

    assert capsys.readouterr() == ("", f"error: {line.format(outputs=outputs)}\n")
    assert not outputs.exists()


def test_a_dry_run_says_what_would_run_and_about_how_long_and_writes_nothing(outputs, capsys):
    chosen = ["--model", "resnet50", "--dry-run", "--outputs", str(outputs)]

    assert main(["run", SMOKE, *chosen]) == 0

    said = capsys.readouterr()
    *lines, last = said.out.splitlines()
    jobs = [line.partition(":")[0] for line in lines]
    seconds = [int(found) for line in lines for found in re.findall(r", about (\d+) s\)", line)]
    first, second = read_file(Path(SMOKE)).experiments("resnet50")
    assert said.err == ""
    assert jobs == [
        *(f"resnet50 {first} {stage}" for stage in STAGES[:-2]),
        *(f"resnet50 {second} {stage}" for stage in STAGES[1:-2]),  # the export is shared
        "resnet50 compare",
        "resnet50 report",
        *(f"resnet50 {lesson}" for lesson in LESSONS),
    ]
    assert lines[0].partition(": ")[2].startswith("would run (no previous result, about ")
    assert len(seconds) == len(lines)
    assert last == f"smoke.yaml: about {sum(seconds) / 60:.0f} min"
    only = ["--stage", "export", "--experiment", second]
    assert main(["run", SMOKE, *chosen, *only]) == 0
    line, last = capsys.readouterr().out.splitlines()
    assert line.startswith(f"resnet50 {first} export: would run (")
    assert not outputs.exists()


def test_a_dry_run_into_a_file_leaves_it_alone(outputs, capsys):
    outputs.write_text("mine")

    assert main(["run", SMOKE, "--dry-run", "--outputs", str(outputs)]) == 0

    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines()[-1].startswith("smoke.yaml: about ")
    assert main(["run", SMOKE, "--outputs", str(outputs)]) == 1
    assert capsys.readouterr() == ("", "error: cannot write outputs: file exists\n")
    assert outputs.read_text() == "mine"


SIGNALS = """
import errno, signal, sys
from helpers import pipeline
from helpers.__main__ import main

number, is_terminal_gone = int(sys.argv[1]), sys.argv[2] == "True"
ended = []

def interrupted(_):
    try:
        signal.raise_signal(number)
    finally:
        signal.raise_signal(signal.SIGTERM)  # as the manager of services sends another
        ended.append(True)
        if is_terminal_gone:
            raise OSError(errno.EIO, "nothing can be written there")

pipeline.targets = interrupted
handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)]
code = main(["status"])
assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)] == handlers
assert ended == [True]
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("is_terminal_gone", [False, True])
def test_a_signal_interrupts_any_command_once_and_is_its_exit_code(number, code, is_terminal_gone):
    script = [sys.executable, "-c", SIGNALS, str(int(number)), str(is_terminal_gone)]
    pipes = {"capture_output": True, "text": True}
    done = subprocess.run(script, cwd=ROOT, preexec_fn=interruptible, **pipes)
    line = "Interrupted. Run the same command again to resume.\n"
    assert (done.returncode, done.stderr) == (code, line)


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    """As SIGHUP is after `nohup`."""
    monkeypatch.setattr(pipeline, "targets", lambda _: signal.raise_signal(signal.SIGHUP) or [])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["status"]) == 1  # there are no results
    finally:
        signal.signal(signal.SIGHUP, before)
