"""The batch command does what the README says, in lines that a user can act on."""

import argparse
import re
from pathlib import Path

import pytest

from helpers.__main__ import main, parser
from helpers.config.loading import read_file
from helpers.config.schema import STAGES
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT

README = (ROOT / "README.md").read_text()


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    return tmp_path / "outputs"


def commands(
    of: argparse.ArgumentParser | None = None, before: str = ""
) -> dict[str, argparse.ArgumentParser]:
    """The commands that the command line knows, and the commands of a command."""
    known: dict[str, argparse.ArgumentParser] = {}
    for action in (of or parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, added in action.choices.items():
                known |= commands(added, f"{before}{name} ") or {f"{before}{name}": added}
    return known


def documented() -> dict[str, str]:
    """The commands of the README's table: name -> what may follow it."""
    pattern = r"^\| `triton-notebooks ([a-z]+(?: [a-z]+)*) ?([^`]*)` \| "
    return dict(re.findall(pattern, README, re.MULTILINE))


def test_the_readme_documents_every_command_and_no_other() -> None:
    assert set(documented()) == set(commands())


@pytest.mark.parametrize("name", commands())
def test_every_command_explains_itself_and_takes_what_the_readme_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="^0$"):
        main([*name.split(), "--help"])

    said = capsys.readouterr().out
    options = set(re.findall(r"--[a-z-]+|PARAMS|NAME", documented()[name]))
    known = set(re.findall(r"(?<!\S)--[a-z-]+|PARAMS|NAME", said))
    assert said.startswith(f"usage: triton-notebooks {name} ")
    assert options <= known
    assert ("--outputs" in known) is not name.startswith("params ")


def test_the_help_lists_every_command_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="^0$"):
        main(["--help"])

    said = capsys.readouterr().out
    assert all(
        re.search(rf"^    {name.split()[0]} +[A-Z]", said, re.MULTILINE) for name in commands()
    )


def test_the_readmes_lines_name_files_and_options_that_exist() -> None:
    lines = re.findall(r"triton-notebooks run (params/[\w./-]+)", README)

    assert lines
    assert [name for name in lines if not (ROOT / name).exists()] == []
    for name in re.findall(r"`((?:notebooks|params|helpers|docker)/[\w./-]+\.\w+)`", README):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["train"], ["run"], ["serve", "params/cpu.yaml"]),
        *(["params"], ["params", "diff", "params/cpu.yaml"], ["params", "new", "a", "b"]),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="^2$"):
        main(arguments)

    assert capsys.readouterr().err.splitlines()[-1].startswith("triton-notebooks")


def test_without_outputs_there_is_one_line_that_says_what_to_do(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["status", "--outputs", str(outputs)])

    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert said.err == (
        f"error: {outputs} holds no target yet: run triton-notebooks run params/cpu.yaml\n"
    )
    assert not outputs.exists()


def test_serving_what_is_not_deployed_names_the_command_that_deploys_it(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(ROOT / "params/smoke.yaml")

    code = main(["serve", path, "--model", "resnet50", "--outputs", str(outputs)])

    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert said.err == (
        "error: resnet50 onnx-fp32 has no result of deploy yet: run triton-notebooks run "
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
    seconds = [int(found) for line in lines for found in re.findall(r"\(about (\d+) s\)", line)]
    first, second = read_file(path).experiments("resnet50")
    assert (code, said.err) == (0, "")
    assert jobs == [
        *(f"resnet50 {first} {stage}" for stage in STAGES[:-1]),
        *(f"resnet50 {second} {stage}" for stage in STAGES[1:-1]),  # the export is shared
        "resnet50 report",
    ]
    assert all(": would run, because " in line for line in lines)
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
    assert line.startswith("resnet50 ts-trace-fp32 export: would run, because there is no result ")
    (seconds,) = re.findall(r"\(about (\d+) s\)$", line)
    assert last == f"cpu.yaml: about {int(seconds) / 60:.0f} min"
    assert not outputs.exists()


def test_a_dry_run_into_a_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "outputs"
    file.write_text("mine")

    main(["run", str(ROOT / "params/smoke.yaml"), "--dry-run", "--outputs", str(file)])

    assert len(capsys.readouterr().err.splitlines()) <= 1
    assert file.read_text() == "mine"


def test_a_run_into_a_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "outputs"
    file.write_text("mine")

    code = main(["run", str(ROOT / "params/smoke.yaml"), "--outputs", str(file)])

    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert said.err == "error: cannot write outputs: file exists\n"
    assert file.read_text() == "mine"
