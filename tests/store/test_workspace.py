"""Files are written whole or not at all, one run holds the folder, and a change is noticed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.__main__ import main
from helpers.config import resolve
from helpers.errors import ArtifactError, DataError, WorkspaceError
from helpers.store import OUTPUTS_VARIABLE, ROOT, artifacts, display_path, locked, outputs
from helpers.store.artifacts import create_artifact, find_artifact, is_unchanged, verify
from helpers.store.files import link_or_copy, write_atomic
from helpers.store.hashing import fingerprint
from helpers.store.lock import LOCKED_VARIABLE, clear_leftovers, temporary_folder
from tests.conftest import ONNX


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The outputs folder, not yet there."""
    monkeypatch.delenv(LOCKED_VARIABLE, raising=False)
    return tmp_path / "outputs"


def python(code, *arguments):
    return [sys.executable, "-c", code, *map(str, arguments)]


def made(folder, content="weights"):
    """Make an artifact with two files, one of them in a folder, and find it."""
    with create_artifact(folder) as (temporary, facts):
        (temporary / "model.bin").write_text(content)
        (temporary / "assets").mkdir()
        (temporary / "assets/labels.txt").write_text("cat\ndog\n")
        facts["format"] = "test"
    return find_artifact(folder)


SMALL = """
import resource, signal, sys
from pathlib import Path
from helpers.errors import WorkspaceError
from helpers.store import write_atomic
path = Path(sys.argv[1]) / "result.json"
write_atomic(path, "old")
if "limited" in sys.argv:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomic(path, b"x" * 1_000_000)
    print("written")
except WorkspaceError as error:
    print(error)
except OSError:
    print("broken off")
print(path.read_text(), [each.name for each in path.parent.iterdir()])
"""


def test_a_file_is_replaced_whole_and_nothing_else_stays(folder):
    path = folder / "a/result.json"

    write_atomic(path, "old")
    with path.open() as reader:
        returned = write_atomic(path, b"new")

        assert reader.read() == "old"  # who reads meanwhile sees one or the other, never a part
    assert (returned, path.read_text()) == (path, "new")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077])
def test_what_is_written_has_the_permissions_that_the_umask_leaves(folder, mask):
    before = os.umask(mask)
    try:
        paths = write_atomic(folder / "file", "new"), made(folder / "artifacts/some-1").folder
    finally:
        os.umask(before)

    assert [path.stat().st_mode & 0o777 for path in paths] == [0o666 & ~mask, 0o777 & ~mask]


def test_a_full_disk_leaves_the_old_file_and_is_one_line(on_a_small_disk, tmp_path, monkeypatch):
    small = tmp_path / "small"
    small.mkdir()
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(small))

    done = on_a_small_disk(small, "64k", *python(SMALL, small))

    line = "cannot write small/result.json: no space left on device"
    assert done.stdout.splitlines() == [line, "old ['result.json']"]


def test_a_write_that_breaks_off_leaves_the_old_file(tmp_path):
    done = subprocess.run(python(SMALL, tmp_path, "limited"), capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    *words, kept = done.stdout.splitlines()
    assert kept == "old ['result.json']"
    assert words != ["written"]


def test_ctrl_c_at_the_end_of_a_write_stays_ctrl_c(folder, monkeypatch):
    rename = os.replace

    def interrupted(source, target):
        rename(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(folder / "file", "new")
    assert (folder / "file").read_text() == "new"


def test_an_outputs_path_that_is_a_file_is_one_line(folder):
    folder.write_text("not a folder")

    with pytest.raises(WorkspaceError, match="^cannot write outputs: file exists$"), locked(folder):
        pytest.fail("the block must not run")
    with pytest.raises(WorkspaceError, match="^cannot write outputs/a/b.json: not a directory$"):
        write_atomic(folder / "a/b.json", "{}")
    assert find_artifact(folder / "cpu/artifacts/some") is None
    assert folder.read_text() == "not a folder"


def test_a_made_artifact_is_found_with_its_files_and_facts(folder):
    artifact = made(folder / "cpu/artifacts/some-1")

    assert dict(artifact.facts) == {"format": "test"}
    sizes = {name: file.size for name, file in artifact.files.items()}
    assert sizes == {"assets/labels.txt": 8, "model.bin": 7}
    assert artifact.size_mb == 15e-6
    assert verify(artifact) == artifact
    assert is_unchanged(artifact)
    assert [each.name for each in artifact.folder.parent.iterdir()] == ["some-1"]


def test_only_equal_content_has_an_equal_hash(folder):
    contents = {"a": "weights", "b": "weights", "c": "Weights"}
    one, same, other = (made(folder / name, text).sha256 for name, text in contents.items())

    assert one == same != other


def test_making_again_replaces_all_and_a_failure_keeps_what_was_there(folder):
    path = folder / "cpu/some"

    def fail():
        with create_artifact(path) as (temporary, _):
            (temporary / "model.bin").write_text("second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(path.parent.iterdir()) == []
    made(path, "first")
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (path / "model.bin").read_text() == "first"
    with create_artifact(path) as (temporary, _):
        (temporary / "only.bin").write_text("third")

    assert list(find_artifact(path).files) == ["only.bin"]
    assert sorted(each.name for each in path.iterdir()) == ["manifest.json", "only.bin"]


def change_a_byte(file):
    """Keep the size and the times."""
    before = file.stat()
    file.write_text("Weights")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "change", "is_seen_at_once", "found"),
    [
        ("model.bin", change_a_byte, False, "[0-9a-f]{12}"),
        ("model.bin", lambda file: file.write_text("weights and more"), True, "[0-9a-f]{12}"),
        ("assets/labels.txt", Path.unlink, True, "gone"),
    ],
    ids=["a byte of the same size and time", "longer", "gone"],
)
def test_a_changed_file_is_caught(name, change, is_seen_at_once, found, folder):
    artifact = made(folder / "some")
    change(artifact.folder / name)

    assert is_unchanged(artifact) is not is_seen_at_once
    line = f"SHA-256 is {found} instead of [0-9a-f]{{12}}. Run again to rebuild it."
    with pytest.raises(ArtifactError, match=f"^outputs/some/{name} changed on disk: {line}$"):
        verify(artifact)
    assert find_artifact(artifact.folder) is None


def test_a_touched_file_is_hashed_again(folder):
    artifact = made(folder / "some")
    os.utime(artifact.folder / "model.bin", ns=(0, 0))

    assert not is_unchanged(artifact)
    assert verify(artifact) == artifact


def test_a_failed_artifact_says_why_and_keeps_its_hashes(folder):
    artifact = made(folder / "some")
    assert artifact.failure == ""

    artifacts.mark_failed(artifact, "it differs")

    failed = find_artifact(folder / "some")
    assert dict(failed.facts) == {"format": "test", "failed": "it differs"}
    assert failed.failure == "it differs"
    assert failed.sha256 == artifact.sha256
    assert verify(failed) == failed
    manifest = folder / "some/manifest.json"
    manifest.write_text(manifest.read_text().replace('"failed"', '"red"'))  # of an older version
    assert find_artifact(folder / "some").failure == "it differs"


@pytest.mark.parametrize(
    "content", [b'{"name": "app"}', b'{"schema": 1, "fil', b"[]", b"\xff", b'{"schema": 2}']
)
def test_a_foreign_or_truncated_manifest_is_no_artifact(content, folder):
    path = made(folder / "some").folder
    (path / "manifest.json").write_bytes(content)

    assert find_artifact(path) is None


def test_a_fingerprint_is_of_names_sizes_and_times_and_not_of_the_place(tmp_path):
    data = tmp_path / "here/data"
    (data / "cats").mkdir(parents=True)
    for name in ("a.jpg", "b.jpg"):
        (data / "cats" / name).write_text(name)
    before = [fingerprint(data), fingerprint(data / "cats/a.jpg")]
    data.parent.rename(tmp_path / "there")
    data = tmp_path / "there/data"

    moved = [fingerprint(data), fingerprint(data / "cats/a.jpg")]
    (data / "cats/b.jpg").rename(data / "cats/c.jpg")
    renamed = fingerprint(data)
    (data / "cats/a.jpg").write_text("another")
    changed = [fingerprint(data), fingerprint(data / "cats/a.jpg")]

    assert moved == before
    assert len({*before, renamed, *changed}) == 5


def test_a_path_that_cannot_be_looked_at_is_one_line(tmp_path):
    for name, words in (("none", "no such file or folder"), ("x" * 300, "cannot be read")):
        with pytest.raises(DataError, match=f"^{tmp_path / name}: {words}"):
            fingerprint(tmp_path / name)


def test_a_linked_file_has_the_content_and_is_no_symbolic_link(tmp_path):
    (tmp_path / "a").write_text("weights")

    link_or_copy(tmp_path / "a", tmp_path / "b")

    assert ((tmp_path / "b").read_text(), (tmp_path / "b").is_symlink()) == ("weights", False)


HOLD = """
import sys, time
from pathlib import Path
from helpers.store import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""
IN_USE = "^outputs is in use by another run. Wait, or use another --outputs.$"


@contextmanager
def held(folder, seconds=60):
    """Have another process hold the folder, until the block ends by a kill or for `seconds`."""
    command = python(HOLD, folder, seconds)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            yield holder
        finally:
            holder.kill()


def entered(folder):
    with locked(folder):
        return True


def test_beside_a_run_nobody_enters_and_a_killed_one_frees_the_folder(folder, monkeypatch):
    others = ((entered, folder), (resolve, "resnet50", "perf_offline"), (made, folder / "cpu/some"))
    with held(folder):
        for enter, *given in others:
            with pytest.raises(WorkspaceError, match=IN_USE):
                enter(*given)
        with monkeypatch.context() as patch:
            patch.setenv(LOCKED_VARIABLE, "1")  # as the batch command sets it for its own
            assert resolve("resnet50", "perf_offline").model == "resnet50"
    assert [path.name for path in folder.iterdir()] == [".lock"]
    assert entered(folder)


def test_a_process_and_a_kernel_of_the_run_that_holds_the_folder_may_enter(folder, monkeypatch):
    with locked(folder):
        assert made(folder / "cpu/some")
        assert entered(folder)
        monkeypatch.setenv(LOCKED_VARIABLE, "1")
        assert entered(folder)


def test_a_notebook_that_has_it_for_a_moment_is_waited_for(folder):
    with held(folder, 0.3) as holder, locked(folder):
        assert holder.wait() == 0


def test_a_notebook_may_start_where_there_is_no_outputs_folder(folder):
    assert resolve("resnet50", "export").model == "resnet50"
    assert not folder.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from helpers.store import create_artifact, temporary_folder
with create_artifact(Path(sys.argv[1])) as (folder, _), temporary_folder() as scratch:
    (folder / "half.bin").write_text("half")
    (scratch / "log").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def tmpdir(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "tmp"


def killed(folder, tmpdir):
    """Leave what a process leaves that is killed while it makes `folder`."""
    done = subprocess.run(python(KILLED, folder))
    assert done.returncode == -signal.SIGKILL
    assert list(folder.parent.glob(".*/half.bin"))
    assert list(tmpdir.glob("triton-*/log"))
    age(tmpdir)


def age(tmpdir):
    for lock in tmpdir.glob("triton-*/.lock"):
        os.utime(lock, (0, 0))


def test_what_killed_processes_left_is_removed_and_nothing_else(folder, tmpdir):
    for name in ("data/some", "cpu/artifacts/some"):
        killed(folder / name, tmpdir)
    path = made(folder / "data/whole").folder
    kept = [folder / "data/.mine", tmpdir / "triton-of-somebody-else"]
    for each in kept:
        each.mkdir()
    with temporary_folder() as in_use, locked(folder):
        age(tmpdir)
        clear_leftovers(folder)

        assert sorted(tmpdir.iterdir()) == sorted([in_use, kept[1]])
    assert sorted((folder / "data").iterdir()) == [kept[0], path]
    assert list((folder / "cpu/artifacts").iterdir()) == []
    assert list(tmpdir.iterdir()) == [kept[1]]


def test_temporary_folders_that_are_young_or_of_another_user_are_kept(folder, tmpdir, monkeypatch):
    killed(folder / "data/some", tmpdir)
    (lock,) = tmpdir.glob("triton-*/.lock")

    now = time.time()
    os.utime(lock, (now, now - 30))
    clear_leftovers(folder)
    assert lock.exists()  # its maker may not have locked it yet

    os.utime(lock, (now, now - 90))
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: lock.stat().st_uid + 1)
        clear_leftovers(folder)
    assert lock.exists()

    clear_leftovers(folder)
    assert list(tmpdir.iterdir()) == []


FULL = """
import sys
from pathlib import Path
from contextlib import suppress
from helpers.errors import DataError
from helpers.store import temporary_folder
def fill(folder):
    with (folder / "file").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
for fault in (OSError("some"), DataError("of a user")):
    try:
        with temporary_folder() as folder:
            with suppress(OSError):
                fill(folder)
            raise fault
    except Exception as error:
        print(type(error).__name__, error)
try:
    fill(Path(sys.argv[1]))
except OSError:
    with temporary_folder() as folder:
        print(folder.is_relative_to(sys.argv[1]))
"""


def test_a_full_temporary_folder_is_one_line_and_another_is_taken_later(on_a_small_disk, tmpdir):
    done = on_a_small_disk(tmpdir, "64k", *python(FULL, tmpdir))

    line = f"WorkspaceError {tmpdir} is full. Free some space, or set TMPDIR to another disk."
    assert done.stdout.splitlines() == [line, "DataError of a user", "False"]


def test_a_run_removes_what_killed_ones_left(folder, tmpdir, tmp_path, capsys):
    killed(folder / "data/some", tmpdir)
    params = tmp_path / "skipped.yaml"  # no experiment can run here, so nothing starts
    experiment = ONNX | {"accelerator": "trt"}
    section = {"experiments": {"mine": experiment}}
    params.write_text(json.dumps({"gpu": "A", "device": "cpu", "models": {"resnet50": section}}))

    code = main(["run", str(params), "--stage", "export", "--outputs", str(folder)])

    assert (code, capsys.readouterr().err) == (0, "")
    assert list((folder / "data").iterdir()) == []
    assert list(tmpdir.glob("triton-*")) == []


def test_a_path_in_the_project_or_the_outputs_is_shown_without_its_machine(tmp_path, monkeypatch):
    paths = [ROOT / "params/cpu.yaml", ROOT, outputs() / "cpu/index.html", outputs()]

    shown = ["params/cpu.yaml", ".", "outputs/cpu/index.html", "outputs"]
    assert [display_path(path) for path in paths] == shown
    assert display_path(tmp_path / "datasets/mine") == str(tmp_path / "datasets/mine")
    monkeypatch.setenv(OUTPUTS_VARIABLE, "/outputs")
    assert display_path(Path("/datasets/mine")) == "/datasets/mine"
    assert display_path(Path("/outputs/cpu")) == "outputs/cpu"
