"""What nothing refers to any more is removed from an outputs folder, and nothing else."""

from filelock import FileLock

from helpers.__main__ import main
from helpers.config import configure, read_file
from helpers.inference import recipe_folder
from helpers.results import Result
from helpers.store import ROOT, create_artifact, find_artifact
from helpers.store.lock import LOCK

OLD = "0123456789ab"


def made(folder, size=1_000_000):
    with create_artifact(folder) as (temporary, _):
        (temporary / "model.bin").write_bytes(b"x" * (size - 1))
        (temporary / "more.bin").write_bytes(b"x")
    return folder


def clear(outputs, *options):
    return main(["clear", *options, "--outputs", str(outputs)])


def size_mb(folder):
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def used(outputs):
    """Artifacts that the target's parameters lead to, and those that a result names."""
    given = read_file(ROOT / "params/smoke.yaml")
    export = configure(given, "bert", "", "export")
    deploy = configure(given, "bert", "", "deploy")
    facts = {"folder": f"bert-export-{OLD}", "sha256": "", "size_mb": 1, "files": {}}
    read = {"config": {}, "notebook": "", "versions": {}}
    result = Result(
        **{"model": "bert", "experiment": "of-before", "stage": "export", "gpu": "CPU"},
        state="failed",
        artifact=facts,
        fingerprint={**read, "inputs": {"dataset": f"bert-dataset-{OLD}"}},
    )
    path = outputs / "smoke/bert/of-before/export.json"
    path.parent.mkdir(parents=True)
    path.write_text(result.model_dump_json())
    names = [export.key("export"), deploy.key("deploy"), f"bert-export-{OLD}"]
    kinds = ("dataset", "checkpoint", "reference")
    data = [recipe_folder(export, kind).name for kind in kinds]
    return [
        *(made(outputs / "smoke/artifacts" / name) for name in names),
        *(made(outputs / "data" / name) for name in (*data, f"bert-dataset-{OLD}")),
    ]


def test_only_what_nothing_refers_to_is_removed_and_said_with_its_size(outputs, capsys):
    kept = used(outputs)
    foreign = [outputs / "data/mine", outputs / "smoke/artifacts/.bert-export-half.abcdefgh"]
    for each in foreign:
        each.mkdir()
    old = [
        made(outputs / f"data/bert-reference-{OLD}", 3_000_000),
        made(outputs / f"other/artifacts/bert-export-{OLD}"),  # a result of another target has it
        made(outputs / f"smoke/artifacts/bert-convert-{OLD}", 2_000_000),
    ]
    sizes = [size_mb(path) for path in old]
    names = [f"outputs/{path.relative_to(outputs)}" for path in old]

    assert clear(outputs, "--dry-run") == 0
    dry = capsys.readouterr()
    assert all(find_artifact(path) for path in (*kept, *old))
    assert clear(outputs) == 0
    said = capsys.readouterr()

    lines = [f"removed {name} ({size:.1f} MB)" for name, size in zip(names, sizes, strict=True)]
    total = f"unused artifacts: 3 ({sum(sizes):.1f} MB)"
    assert said.out.splitlines() == [*lines, total]
    assert dry.out == said.out.replace("removed", "would remove")
    assert said.err + dry.err == ""
    assert not [path for path in old if path.exists()]
    assert all(find_artifact(path) for path in kept)
    assert all(path.is_dir() for path in foreign)


def test_the_databases_of_a_repository_go_with_it(outputs, capsys):
    deploy = configure(read_file(ROOT / "params/smoke.yaml"), "dcnv2", "", "deploy")
    kept = outputs / "smoke/databases" / deploy.key("deploy") / "rocksdb"
    old = outputs / f"smoke/databases/dcnv2-deploy-{OLD}/rocksdb"
    for each in (kept, old):
        each.mkdir(parents=True)
        (each / "000001.sst").write_bytes(b"x" * 2_000_000)

    assert clear(outputs) == 0

    assert f"databases/dcnv2-deploy-{OLD} (2.0 MB)" in capsys.readouterr().out
    assert (kept.is_dir(), old.parent.exists()) == (True, False)


def test_a_file_that_artifacts_share_is_counted_once(outputs, capsys):
    first = made(outputs / f"smoke/artifacts/bert-convert-{OLD}", 8_000_000)
    second = made(outputs / f"smoke/artifacts/bert-deploy-{OLD}", 1)
    (second / "model.bin").unlink()
    (second / "model.bin").hardlink_to(first / "model.bin")

    assert clear(outputs) == 0

    sizes = [line.rpartition("(")[2] for line in capsys.readouterr().out.splitlines()]
    assert sizes == ["4.0 MB)", "4.0 MB)", "8.0 MB)"]


def test_nothing_behind_a_link_is_removed(outputs, tmp_path, capsys):
    behind = made(tmp_path / f"disk/data/bert-dataset-{OLD}")
    (outputs / "data").symlink_to(tmp_path / "disk/data")
    (outputs / "smoke/artifacts").mkdir()
    (outputs / f"smoke/artifacts/bert-export-{OLD}").symlink_to(behind)
    inside = made(outputs / f"smoke/artifacts/bert-convert-{OLD}", 2)
    (inside / "link").symlink_to(behind)

    assert clear(outputs) == 0

    assert capsys.readouterr().out.splitlines()[-1].startswith("unused artifacts: 1 (")
    assert not inside.exists()
    assert (outputs / f"smoke/artifacts/bert-export-{OLD}").is_symlink()
    assert find_artifact(behind)


def test_during_a_run_nothing_is_removed(outputs, capsys):
    old = made(outputs / f"data/bert-dataset-{OLD}")
    with FileLock(outputs / LOCK):
        assert clear(outputs) == 1

    words = "error: outputs is in use by another run. Wait, or use another --outputs.\n"
    assert capsys.readouterr() == ("", words)
    assert find_artifact(old)


def test_nothing_is_removed_while_a_targets_parameters_cannot_be_read(outputs, capsys):
    old = made(outputs / f"data/bert-dataset-{OLD}")
    (outputs / "smoke/parameters.yaml").write_text("gpu: CPU\n")

    assert clear(outputs) == 2
    assert capsys.readouterr().err.startswith("error: outputs/smoke/parameters.yaml: ")
    assert find_artifact(old)


def test_a_folder_that_is_not_there_is_one_line_and_is_not_made(tmp_path, capsys):
    none = tmp_path / "none"

    assert clear(none) == 1
    assert capsys.readouterr().err == f"error: the folder {none} does not exist\n"
    assert not none.exists()


def test_after_a_change_what_was_made_before_it_is_removed_and_no_stage_runs_again(project):
    def artifacts():
        return {*project.target.glob("artifacts/*"), *project.root.glob("outputs/data/*")}

    before = artifacts()
    assert project.run("clear").output == "unused artifacts: 0 (0.0 MB)\n"
    text = project.params.read_text()
    project.params.write_text(text.replace("max_batch_size: 4", "max_batch_size: 8"))
    command = ("run", "params/dummy.yaml", "--experiment", "onnx-fp32", "--stage", "deploy")
    assert project.run(*command).executed() == ["dummy onnx-fp32 deploy"]
    (new,) = artifacts() - before

    answer = project.run("clear")

    lines = answer.output.splitlines()
    assert answer.code == 0
    assert new in artifacts() < before | {new}
    assert len(before | {new}) - len(artifacts()) == len(lines) - 1 == 1
    assert project.run(*command).executed() == []
