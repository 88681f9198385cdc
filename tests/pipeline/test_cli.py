"""The batch command does what the documents say, in lines that a user can act on."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from helpers import pipeline
from helpers.__main__ import Stage, app, main
from helpers.config.loading import read_file
from helpers.config.schema import LESSONS, STAGE, STAGES
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT
from tests.conftest import interruptible

DOCUMENTS = (*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md"))
DOCS = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    return tmp_path / "outputs"


def commands() -> Iterator[tuple[str, str]]:
    """The commands of the command line and of its groups, each with its line of help."""
    for name, command in get_command(app).commands.items():
        inner = getattr(command, "commands", {}).items()
        yield from ((f"{name} {each}", known.help) for each, known in inner)
        if not inner:
            yield name, command.help


HELP = {name: text.splitlines()[0] for name, text in commands()}


def documented() -> dict[str, tuple[str, str]]:
    """The commands of the documents' table: name -> what may follow it, and what it does."""
    pattern = r"^\| `triton-notebooks ([a-z]+(?: [a-z]+)*) ?([^`]*)` \| (.*) \|$"
    return {name: (usage, text) for name, usage, text in re.findall(pattern, DOCS, re.MULTILINE)}


def test_the_documents_have_every_command_and_no_other() -> None:
    assert set(documented()) == set(HELP)


@pytest.mark.parametrize("name", HELP)
def test_every_command_explains_itself_as_the_documents_do(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*name.split(), "--help"]) == 0

    said, (usage, text) = capsys.readouterr().out, documented()[name]
    options = set(re.findall(r"--[a-z-]+|PARAMS|NAME", usage))
    known = set(re.findall(r"(?<!\S)--[a-z-]+|PARAMS|NAME", said))
    assert said.startswith(f"Usage: triton-notebooks {name} [OPTIONS]")
    assert options <= known
    assert ("--outputs" in known) is not name.startswith(("params ", "new"))
    line = HELP[name].removesuffix(".")
    assert text.startswith(line[0].lower() + line[1:])


def test_the_help_is_plain_text_with_a_whole_line_for_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0

    said = capsys.readouterr().out
    for name, line in HELP.items():
        if " " not in name:
            assert re.search(rf"^  {name} +{re.escape(line)}$", said, re.MULTILINE)
    assert "completion" not in said
    assert said.isascii()


OPENING = re.compile(r"(an? |the |of |for |that |which |whose |if |in |to |its |also |only )", re.I)


@pytest.mark.parametrize("name", ["", *HELP, "params"])
def test_the_help_fits_a_screen_and_ends_with_an_example_that_can_be_run(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*name.split(), "--help"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    *_, example = "\n".join(lines).partition("Example:\n")
    program, *words = shlex.split(example.replace("\\\n", " "))
    assert program == "triton-notebooks"
    assert words[: len(name.split())] == name.split()
    command = get_command(app)
    while inner := getattr(command, "commands", {}):
        command = inner[words.pop(0)]
    command.make_context(name, words)  # parses them, and runs nothing


@pytest.mark.parametrize("name", HELP)
def test_the_help_of_every_argument_and_option_begins_with_a_noun_or_a_verb(name: str) -> None:
    command = get_command(app)
    for word in name.split():
        command = command.commands[word]

    for each in command.params:
        assert each.help, each.name
        assert not OPENING.match(each.help), each.help


def test_the_help_names_the_stages_in_their_order() -> None:
    assert tuple(Stage) == tuple(STAGE)


def test_the_documents_lines_name_files_and_options_that_exist() -> None:
    lines = re.findall(r"triton-notebooks run (params/[\w./-]+)", DOCS)

    assert lines
    own = {f"params/{name}.yaml" for name in re.findall(r"triton-notebooks new (\w+) ", DOCS)}
    assert [name for name in lines if name not in own and not (ROOT / name).exists()] == []
    for name in re.findall(r"`((?:notebooks|params|helpers|docker)/[\w./-]+\.\w+)`", DOCS):
        assert name in own or (ROOT / name).exists(), name


USAGE = {
    "": "Missing command. See: triton-notebooks --help",
    "train": "No such command 'train'. See: triton-notebooks --help",
    "serve": "Missing argument 'PARAMS'. See: triton-notebooks serve --help",
    "run params/cpu.yaml --stage train": (
        "Invalid value for '--stage': 'train' is not one of 'export', 'convert', 'deploy', "
        "'perf_offline', 'perf_online', 'report', 'tune', 'dynamic_batching', 'instances', "
        "'precision'. See: triton-notebooks run --help"
    ),
    "serve params/cpu.yaml": "Missing option '--model'. See: triton-notebooks serve --help",
    "run --fetch": "--fetch, --key and --insecure need --scheduler.",
    "run --insecure": "--fetch, --key and --insecure need --scheduler.",
    "params": "Missing command. See: triton-notebooks params --help",
    "params diff params/cpu.yaml": "Missing argument 'B'. See: triton-notebooks params diff --help",
}


@pytest.mark.parametrize(("arguments", "words"), USAGE.items())
def test_wrong_usage_is_exit_code_2_and_one_line(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    assert capsys.readouterr() == ("", f"error: {words}\n")


def test_run_with_nothing_after_it_runs_the_default_target(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--dry-run", "--outputs", str(outputs)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("resnet50 onnx-fp32 export: would run (no previous result, about ")
    assert re.fullmatch(r"cpu\.yaml: about \d+ min", lines[-1])
    assert not outputs.exists()


COMMANDS = (
    *("--help", "doctor params/cpu.yaml", "run --dry-run params/cpu.yaml"),
    "status --outputs",  # a folder that the test makes
)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_reader_that_closes_the_pipe_ends_the_command_without_a_traceback(
    arguments: str, outputs: Path
) -> None:
    for number in range(3):
        (outputs / f"target-{number}").mkdir(parents=True)
        (outputs / f"target-{number}/parameters.yaml").write_text(
            "gpu: A\ndevice: cpu\nmodels: {resnet50: {experiments: {mine: }}}\n"
        )
    command = [sys.executable, "-m", "helpers", *arguments.split()]
    if arguments.endswith("--outputs"):
        command.append(str(outputs))
    read, write = os.pipe()
    os.close(read)  # nobody reads any more, as after `| head`

    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_without_outputs_there_is_one_line_that_says_what_to_do(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["status", "--outputs", str(outputs)])

    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert said.err == (f"error: {outputs} has no results. Run: triton-notebooks run\n")
    assert not outputs.exists()


def test_serving_what_is_not_deployed_names_the_command_that_deploys_it(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(ROOT / "params/smoke.yaml")

    code = main(["serve", path, "--model", "resnet50", "--outputs", str(outputs)])

    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert said.err == (
        "error: resnet50 onnx-fp32 has no deploy result yet. Run: triton-notebooks run "
        "params/smoke.yaml --model resnet50 --experiment onnx-fp32 --stage deploy\n"
    )
    assert not outputs.exists()


def test_a_dry_run_says_what_would_run_and_about_how_long_and_writes_nothing(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ROOT / "params/smoke.yaml"

    code = main(["run", str(path), "--model", "resnet50", "--dry-run", "--outputs", str(outputs)])

    said = capsys.readouterr()
    *lines, last = said.out.splitlines()
    jobs = [line.partition(":")[0] for line in lines]
    seconds = [int(found) for line in lines for found in re.findall(r", about (\d+) s\)", line)]
    first, second = read_file(path).experiments("resnet50")
    assert (code, said.err) == (0, "")
    assert jobs == [
        *(f"resnet50 {first} {stage}" for stage in STAGES[:-1]),
        *(f"resnet50 {second} {stage}" for stage in STAGES[1:-1]),  # the export is shared
        "resnet50 report",
        *(f"resnet50 {lesson}" for lesson in LESSONS),
    ]
    assert all(": would run (" in line for line in lines)
    assert len(seconds) == len(lines)
    assert last == f"smoke.yaml: about {sum(seconds) / 60:.0f} min"
    assert not outputs.exists()


def test_a_dry_run_of_one_stage_is_that_stage(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, experiment = str(ROOT / "params/cpu.yaml"), ["--experiment", "ts-trace-fp32"]
    chosen = ["--model", "resnet50", "--stage", "export", *experiment]

    code = main(["run", path, "--dry-run", "--outputs", str(outputs), *chosen])

    assert code == 0
    line, last = capsys.readouterr().out.splitlines()
    assert line.startswith("resnet50 ts-trace-fp32 export: would run (no previous result, about ")
    (seconds,) = re.findall(r", about (\d+) s\)$", line)
    assert last == f"cpu.yaml: about {int(seconds) / 60:.0f} min"
    assert not outputs.exists()


def test_a_dry_run_into_a_file_leaves_it_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "outputs"
    file.write_text("mine")

    code = main(["run", str(ROOT / "params/smoke.yaml"), "--dry-run", "--outputs", str(file)])

    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    assert said.out.splitlines()[-1].startswith("smoke.yaml: about ")
    assert file.read_text() == "mine"


def test_a_run_into_a_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "outputs"
    file.write_text("mine")

    code = main(["run", str(ROOT / "params/smoke.yaml"), "--outputs", str(file)])

    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert said.err == "error: cannot write outputs: file exists\n"
    assert file.read_text() == "mine"


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
def test_a_signal_interrupts_any_command_once_and_is_its_exit_code(
    number: int, code: int, is_terminal_gone: bool
) -> None:
    script = [sys.executable, "-c", SIGNALS, str(int(number)), str(is_terminal_gone)]
    done = subprocess.run(
        script, cwd=ROOT, capture_output=True, text=True, preexec_fn=interruptible
    )
    line = "Interrupted. Run the same command again to resume.\n"
    assert (done.returncode, done.stderr) == (code, line)


def test_a_signal_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As SIGHUP is after `nohup`."""
    monkeypatch.setattr(pipeline, "targets", lambda _: signal.raise_signal(signal.SIGHUP) or [])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["status"]) == 1  # there are no results
    finally:
        signal.signal(signal.SIGHUP, before)


LATIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # its letters are ASCII's


@pytest.mark.slow
def test_what_a_terminal_cannot_show_is_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "helpers", "status", "--outputs", str(tmp_path / "größe")]

    done = subprocess.run(command, capture_output=True, cwd=ROOT, env=os.environ | LATIN)

    line = f"error: {tmp_path}/gr??e has no results. Run: triton-notebooks run\n"
    assert (done.returncode, done.stderr) == (1, line.encode("ascii"))
