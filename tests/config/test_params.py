"""A parameter file is right as a whole, or wrong in one line that names file, key and value."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers import formats, models
from helpers.__main__ import main
from helpers.config import loading
from helpers.config.loading import configure, read_file, resolve, select
from helpers.config.parameter_file import Experiment, ParameterFile
from helpers.config.schema import STAGE, STAGES, StageConfig
from helpers.errors import ParameterError
from helpers.inference import checkpoint_place, dataset_place
from helpers.pipeline.planning import plan
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT, display_path

FILES = sorted((ROOT / "params").glob("*.yaml"))
HEAD = "gpu: Test\ndevice: cpu\n"
FULL = "export_format: onnx, export_precision: fp32, format: onnx, precision: fp32"
PLACE = "models.resnet50.experiments.mine"
MODELS = ", ".join(models.names())
FORMATS = ", ".join(formats.names())


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    return tmp_path / "outputs"


def file_with(fields: str, head: str = HEAD) -> str:
    """A parameter file with one experiment of all that is required, and `fields`."""
    experiment = f"{{{FULL}, max_batch_size: 8{fields}}}"
    return f"{head}models:\n  resnet50:\n    experiments:\n      mine: {experiment}\n"


def config(stage: str, **given: Any) -> StageConfig:
    """One experiment, without a file."""
    fields = yaml.safe_load(f"{{{FULL}, max_batch_size: 8}}") | given.pop("fields", {})
    experiments = {"mine": fields} | given.pop("others", {})
    section = {"defaults": given.pop("model_defaults", {}), "experiments": experiments}
    model = given.pop("model", "resnet50")
    return resolve(model, stage, gpu="Test", models={model: section}, **given)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_parameter_file_resolves_for_each_model_experiment_and_stage(path: Path) -> None:
    content = read_file(path)

    resolved = [
        (name, experiment, stage, configure(content, name, experiment, stage))
        for name in content.file.models
        for experiment in content.experiments(name)
        for stage in STAGES
    ]

    assert resolved
    assert [(c.model, c.experiment, c.stage, c.gpu, c.target) for *_, c in resolved] == [
        (name, experiment, stage, content.file.gpu, path.stem)
        for name, experiment, stage, _ in resolved
    ]


def test_no_two_parameter_files_are_of_the_same_gpu() -> None:
    names = [read_file(path).file.gpu for path in FILES]

    assert sorted(names) == sorted(set(names))


BAD = {
    "an unknown key": (
        file_with(", batches: [1]"),
        f"{PLACE}: Unknown key 'batches'. Known keys: "
        + ", ".join(sorted(Experiment.model_fields))
        + ".",
    ),
    "an unknown key at the top": (
        file_with("") + "gpus: 2\n",
        f"Unknown key 'gpus'. Known keys: {', '.join(sorted(ParameterFile.model_fields))}.",
    ),
    "an unknown key of the server": (
        file_with("") + "server: {imge: a}\n",
        "server: Unknown key 'imge'. "
        "Known keys: backend, image, kind, metrics_url, release, repository, url.",
    ),
    "a wrong type": (
        file_with(", batch_sizes: 8"),
        f"{PLACE}.batch_sizes is 8. It should be a valid list.",
    ),
    "a text for a number": (
        file_with(", threads: two"),
        f"{PLACE}.threads is 'two'. It should be a valid integer.",
    ),
    "a value that is not one of the choices": (
        file_with(", accelerator: turbo"),
        f"{PLACE}.accelerator is 'turbo'. It should be 'none', 'trt', 'openvino' or 'amp'.",
    ),
    "a batch above the largest": (
        file_with(", batch_sizes: [1, 16]"),
        f"{PLACE}.batch_sizes is [1, 16]. 16 is above max_batch_size, which is 8.",
    ),
    "a preferred batch above the largest": (
        file_with(", preferred_batch_sizes: [4, 9]"),
        f"{PLACE}.preferred_batch_sizes is [4, 9]. 9 is above max_batch_size, which is 8.",
    ),
    "a client's batch above the largest": (
        file_with(", online_batch_size: 10"),
        f"{PLACE}.online_batch_size is 10. 10 is above max_batch_size, which is 8.",
    ),
    "a required field that is missing": (
        f"{HEAD}models: {{resnet50: {{experiments: {{mine: {{{FULL}}}}}}}}}\n",
        f"{PLACE}.max_batch_size is missing. Add it.",
    ),
    "a missing gpu": (
        file_with("", head="device: cpu\n"),
        "gpu is missing. Add it.",
    ),
    "an unknown format": (
        file_with(", format: flatpack").replace("format: onnx, precision", "precision"),
        f"{PLACE}.format is 'flatpack'. Unknown format. Known formats: {FORMATS}.",
    ),
    "a variant of a model that has none": (
        file_with(", variant: large"),
        f"{PLACE}.variant is 'large'. Unknown variant. This model has no variants.",
    ),
    "an unknown variant": (
        file_with(", variant: huge").replace("resnet50", "bert"),
        f"{PLACE.replace('resnet50', 'bert')}.variant is 'huge'. Unknown variant. "
        "Known variants: small, base, large.",
    ),
    "a crop that is too small": (
        file_with(", crop_size: 31"),
        f"{PLACE}.crop_size is 31. ResNet50 v1.5 takes 32 to 256 pixels a side.",
    ),
    "a crop that is larger than the image": (
        file_with(", crop_size: 257"),
        f"{PLACE}.crop_size is 257. ResNet50 v1.5 takes 32 to 256 pixels a side.",
    ),
    "a sequence that is too short for a question": (
        file_with(", max_seq_length: 127").replace("resnet50", "bert"),
        f"{PLACE.replace('resnet50', 'bert')}.max_seq_length is 127. "
        "BERT QA takes 128 to 512 tokens.",
    ),
    "a sequence that is longer than BERT's positions": (
        file_with(", max_seq_length: 513").replace("resnet50", "bert"),
        f"{PLACE.replace('resnet50', 'bert')}.max_seq_length is 513. "
        "BERT QA takes 128 to 512 tokens.",
    ),
    "a size that another model has": (
        file_with(", max_seq_length: 128"),
        f"{PLACE}.max_seq_length is 128. ResNet50 v1.5 has no such field. Remove it.",
    ),
    "an unquoted release": (
        file_with(", release: 21.10"),
        f"{PLACE}.release is 21.1. It should be a valid string. "
        "Write it in quotes: YAML drops a number's last zero.",
    ),
    "an unknown model": (
        file_with("").replace("resnet50", "resnet51"),
        f"models.resnet51: Unknown model. Known models: {MODELS}.",
    ),
    "a format that the exported one does not become": (
        file_with("").replace("format: onnx, precision", "format: ts-trace, precision"),
        f"{PLACE}.format is 'ts-trace'. It is made from torch, not from onnx.",
    ),
    "a store's field that NVIDIA's JSON does not have": (
        file_with(", lookup: hps, hps: {gpu_cache: 0.1}").replace("resnet50", "dlrm"),
        f"{PLACE.replace('resnet50', 'dlrm')}.hps: models[0].gpu_cache is unknown. Remove it.",
    ),
    "a store's field that its model decides": (
        file_with(", lookup: hps, hps: {sparse_files: [a]}").replace("resnet50", "dlrm"),
        f"{PLACE.replace('resnet50', 'dlrm')}.hps: The model sets sparse_files. Remove it.",
    ),
    "an unknown lookup": (
        file_with(", lookup: hash").replace("resnet50", "dlrm"),
        f"{PLACE.replace('resnet50', 'dlrm')}.lookup is 'hash'. Unknown lookup. "
        "Known lookups: mapped, hps.",
    ),
    "a lookup of a model that has none": (
        file_with(", lookup: hps"),
        f"{PLACE}.lookup is 'hps'. Unknown lookup. This model has no lookups.",
    ),
    "tables of a model that has none": (
        file_with(", table_precision: int8"),
        f"{PLACE}.table_precision is 'int8'. Only tables with lookup: mapped can differ from "
        "fp32. Use fp32.",
    ),
    "tables of a parameter server in int8": (
        file_with(", lookup: hps, table_precision: int8").replace("resnet50", "dlrm"),
        f"{PLACE.replace('resnet50', 'dlrm')}.table_precision is 'int8'. Only tables with lookup: "
        "mapped can differ from fp32. Use fp32.",
    ),
    "one graph that is to be fused": (
        file_with(", composition: fused"),
        f"{PLACE}.composition is 'fused'. This model is a single graph. Use ensemble, or remove "
        "the field.",
    ),
    "a precision that comes too late": (
        file_with("").replace(", precision: fp32", ", precision: bf16"),
        f"{PLACE}.precision is 'bf16'. The exported file is served as it is, so it has to be fp32.",
    ),
    "a calibration with no samples": (
        file_with(", calibration_samples: 0").replace(", precision: fp32", ", precision: int8"),
        f"{PLACE}.calibration_samples is 0. It should be greater than or equal to 1.",
    ),
    "int8 of an export that has lost precision": (
        file_with("").replace(
            "_precision: fp32, format: onnx, precision: fp32",
            "_precision: fp16, format: onnx, precision: int8",
        ),
        f"{PLACE}.precision is 'int8'. int8 needs an fp32 export. Set export_precision to fp32.",
    ),
    "an export in int8": (
        file_with("").replace("_precision: fp32", "_precision: int8"),
        f"{PLACE}.export_precision is 'int8'. It should be 'fp32', 'bf16' or 'fp16'.",
    ),
    "an experiment whose name leaves its folder": (
        file_with("").replace("mine:", "../mine:"),
        "models.resnet50.experiments.../mine: Invalid name. Use letters, digits, '.', '_' and '-'.",
    ),
    "an unknown lesson": (
        f"{file_with('')}    lessons: [precision, batching]\n",
        "models.resnet50.lessons.1 is 'batching'. It should be 'dynamic_batching', 'instances' "
        "or 'precision'.",
    ),
    "lessons of a model that they are not about": (
        f"{file_with('')}    lessons: [precision]\n".replace("resnet50", "bert"),
        "models: bert has no lessons. Only resnet50 has them.",
    ),
    "an experiment named as the folder of the lessons": (
        file_with("").replace("mine:", "lessons:"),
        "models.resnet50.experiments.lessons: The lessons' results use this name. Choose "
        "another one.",
    ),
    "an endless latency": (
        file_with(", latency_budget_ms: .inf"),
        f"{PLACE}.latency_budget_ms is inf. It should be a finite number.",
    ),
    "a date": (
        file_with(", dataset: 2001-02-03"),
        f"{PLACE}.dataset is datetime.date(2001, 2, 3). It should be text in quotes, a number, "
        "true, false, a list or mapping.",
    ),
    "a section that is empty": (
        f"{HEAD}models: {{resnet50: }}\n",
        "models.resnet50 is None. It should be a mapping of keys to values.",
    ),
    "an address whose bracket is not closed": (
        file_with("") + "server: {kind: remote, url: 'http://[::1'}\n",
        "server.url is 'http://[::1'. Invalid IPv6 URL.",
    ),
    "no models": (
        f"{HEAD}models: {{}}\n",
        "models is empty. Add at least one entry.",
    ),
    "no experiments": (
        f"{HEAD}models: {{resnet50: {{experiments: {{}}}}}}\n",
        "models.resnet50.experiments is empty. Add at least one entry.",
    ),
    "a duplicate key": (
        file_with("") + "device: gpu\n",
        "line 7: The key 'device' is there twice. Remove one.",
    ),
    "a duplicate key in one line": (
        file_with(", threads: 1, 'threads': 2"),
        "line 6: The key 'threads' is there twice. Remove one.",
    ),
    "a list as a key": (
        file_with("") + "[1, 2]: 3\n",
        "line 7: A key is a sequence. Use a name.",
    ),
    "an empty file": (
        "",
        "The file is empty. It should be a mapping of gpu, device, server, defaults, models.",
    ),
    "a list": (
        "- gpu\n",
        "The file holds a list. It should be a mapping of gpu, device, server, defaults, models.",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_one_line_and_exit_code_2_and_nothing_is_written(
    text: str, message: str, tmp_path: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)

    code = main(["run", str(path), "--outputs", str(outputs)])

    said = capsys.readouterr()
    assert (code, said.out, said.err) == (2, "", f"error: {display_path(path)}: {message}\n")
    assert not outputs.exists()


BOMB = "gpu:\n- &a0 [x, x]\n" + "".join(
    f"- &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(9)
)
HOSTILE = {
    "an alias bomb": (
        BOMB,
        "line 7: The aliases expand to too many values. Use fewer aliases.",
    ),
    "an alias of itself": (
        "gpu: &a [*a]\n",
        "line 1: The aliases expand to too many values. Use fewer aliases.",
    ),
    "a chain of aliases": (
        "- &a0 x\n" + "".join(f"- &a{i + 1} [*a{i}]\n" for i in range(2_000)),
        "line 21: The aliases expand to too many values. Use fewer aliases.",
    ),
    "1,000 brackets": (
        "gpu: " + "[" * 1_000 + "]" * 1_000,
        "line 1: The file has more than 20 levels. Use fewer.",
    ),
    "100,000 brackets": ("[" * 100_000, "line 1: The file has more than 20 levels. Use fewer."),
    "a date that is none": (
        file_with(", dataset: 2001-02-30T10:00:00Z"),
        "The file is not valid YAML (day is out of range for month).",
    ),
    "a tag with a wrong value": (
        "gpu: !!int foo\n",
        "line 1: The tag 'tag:yaml.org,2002:int' is not allowed. Remove it.",
    ),
    "a tag of another kind": (
        "gpu: A\nmodels: !!map [1]\n",
        "line 2: The tag 'tag:yaml.org,2002:map' is not allowed. Remove it.",
    ),
    "5,000 digits": (
        file_with(f", threads: {'1' * 5_000}"),
        "line 6: The text has more than 1,000 characters. Shorten it.",
    ),
    "an escape sequence in a key": (
        file_with("") + '"\\e[31mgpus": 2\n',
        "line 7: The text has the unprintable character '\\x1b'. Remove it.",
    ),
    "an escape sequence in a name": (
        file_with("").replace("mine", '"\\e[31m"'),
        "line 6: The text has the unprintable character '\\x1b'. Remove it.",
    ),
    "a null byte in the address": (
        file_with("") + 'server: {kind: remote, url: "a\\0:1"}\n',
        "line 7: The text has the unprintable character '\\x00'. Remove it.",
    ),
    "10 MB": (
        "".join(f"k{i}: 1\n" for i in range(1_000_000)),
        "The file is larger than 1 MB. Shorten it.",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_one_line_at_once(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    code = "import sys; from helpers.__main__ import main; sys.exit(main(sys.argv[1:]))"

    done = subprocess.run(  # a process of its own: one of them was a segmentation fault
        [sys.executable, "-c", code, "run", str(path), "--dry-run"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )

    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {path}: {message}\n")


def test_a_null_byte_in_the_address_of_a_notebook_is_one_line() -> None:
    with pytest.raises(ParameterError) as raised:
        config("deploy", server={"kind": "remote", "url": "a\0:1"})

    assert str(raised.value) == (
        "parameters: server.url is 'a\\x00:1'. It contains an unprintable character. Remove it."
    )


def test_a_plan_of_300_experiments_resolves_each_stage_once(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    experiments = "".join(f"      e{i}: {{threads: {i}}}\n" for i in range(300))
    path.write_text(
        f"{HEAD}defaults: {{{FULL}, max_batch_size: 8}}\nmodels:\n  resnet50:\n"
        f"    experiments:\n{experiments}"
    )
    given = read_file(path)
    started = time.process_time()

    jobs = plan(given, select(given, [], []), [])

    assert time.process_time() - started < 10  # it took minutes while each looked at all others
    assert Counter(job.config.stage for job in jobs) == {
        "export": 1,
        "convert": 1,
        "deploy": 300,
        "perf_offline": 300,
        "perf_online": 300,
        "report": 1,
    }


UNREADABLE = {
    "not YAML": (b"gpu: [unclosed\n", "The file is not valid YAML ("),
    "a template": (b"gpu: {{ name }}\n", ""),
    "binary": (bytes(range(256)), "The file cannot be read as text ("),
    "null bytes": (b"gpu: a\0b\n", "The file is not valid YAML ("),
}


@pytest.mark.parametrize(("content", "message"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_is_no_yaml_is_one_line(
    content: bytes,
    message: str,
    tmp_path: Path,
    outputs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)

    code = main(["run", str(path), "--outputs", str(outputs)])

    said = capsys.readouterr()
    assert (code, said.out, len(said.err.splitlines())) == (2, "", 1)
    assert said.err.startswith(f"error: {display_path(path)}: {message}")
    assert not outputs.exists()


def test_an_unquoted_version_is_named_and_the_hint_does_not_lose_its_zero(
    tmp_path: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(file_with("") + "server: {release: 24.10}\n")

    code = main(["run", str(path), "--outputs", str(outputs)])

    said = capsys.readouterr()
    assert (code, said.out, len(said.err.splitlines())) == (2, "", 1)
    assert said.err.startswith(
        f"error: {display_path(path)}: server.release is 24.1. It should be a valid string"
    )
    assert "quote" in said.err
    assert '"24.1"' not in said.err
    assert not outputs.exists()


def test_a_missing_file_and_a_folder_are_one_line_each(
    tmp_path: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = tmp_path / "none.yaml", tmp_path / "folder.yaml"
    folder.mkdir()

    codes = [main(["run", str(each), "--outputs", str(outputs)]) for each in (path, folder)]

    said = capsys.readouterr()
    assert (codes, said.out) == ([2, 2], "")
    missing, directory = said.err.splitlines()
    assert missing == f"error: {display_path(path)}: No such file. Check the path."
    assert directory.startswith(f"error: {display_path(folder)}: The file cannot be read as text (")
    assert not outputs.exists()


@pytest.mark.parametrize(("option", "known"), [("--model", "resnet50"), ("--experiment", "mine")])
def test_a_name_that_the_file_does_not_have_is_one_line(
    option: str, known: str, tmp_path: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(file_with(""))

    code = main(["run", str(path), option, "nope", "--outputs", str(outputs)])

    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err == f"error: {path} has no {option[2:]} 'nope'. Use one of {known}.\n"
    assert not outputs.exists()


def test_overrides_as_a_text_say_how_to_give_them() -> None:
    with pytest.raises(ParameterError) as raised:
        resolve("resnet50", "deploy", overrides='{"threads": 1}')  # type: ignore[arg-type]

    assert str(raised.value) == (
        "overrides is the text '{\"threads\": 1}'. "
        "Pass a dict; with papermill, use -y 'overrides: {...}'."
    )


def test_an_unknown_override_is_an_error() -> None:
    with pytest.raises(ParameterError, match="Unknown key 'cores'. Known keys: "):
        resolve("resnet50", "deploy", overrides={"cores": 1})


def test_yaml_anchors_share_within_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(
        f"{HEAD}models:\n  resnet50:\n    defaults: &usual {{{FULL}, max_batch_size: 4}}\n"
        "    experiments:\n      mine: {<<: *usual, max_batch_size: 8}\n      other: *usual\n"
    )

    content = read_file(path)

    found = [configure(content, "resnet50", name, "deploy") for name in ("mine", "other")]
    assert [c.max_batch_size for c in found] == [8, 4]


def test_a_broken_file_beside_them_does_not_break_the_other_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-half-written.yaml").write_text("")
    (tmp_path / "cpu.yaml").write_text(file_with("").replace("gpu: Test", "gpu: CPU"))
    monkeypatch.setattr(loading, "FILES", tmp_path)

    assert resolve("resnet50", "export").target == "cpu"


def test_an_experiment_overrides_its_model_and_the_model_the_file() -> None:
    defaults = {"threads": 1, "request_count": 10, "pairs": 2, "max_queue_delay_us": 100}
    model_defaults = {"threads": 2, "request_count": 20, "pairs": 4}
    fields = {"threads": 3, "request_count": 30}

    found = config(
        "perf_offline",
        defaults=defaults,
        model_defaults=model_defaults,
        fields=fields,
        overrides={"threads": 4},
    )

    assert (found.threads, found.request_count, found.pairs) == (4, 30, 4)
    assert (found.max_queue_delay_us, found.shared_memory) == (100, "system")


def test_defaults_without_models_are_not_ignored_in_silence() -> None:
    with pytest.raises(ParameterError, match="defaults"):
        resolve("resnet50", "deploy", defaults={"threads": 3})


@pytest.mark.parametrize("stage", STAGE)
def test_a_stage_sees_its_fields_and_no_other(stage: str) -> None:
    found = config(stage)

    seen = {name for name in Experiment.model_fields if hasattr(found, name)}

    assert seen == set(STAGE[stage].config.model_fields) - set(StageConfig.model_fields)


def test_reading_a_field_of_another_stage_is_an_error() -> None:
    with pytest.raises(AttributeError):
        _ = config("export").batch_sizes


def test_experiments_that_differ_later_share_the_export() -> None:
    others = {
        "bf16": {
            "export_format": "onnx",
            "export_precision": "fp32",
            "format": "openvino",
            "precision": "bf16",
            "max_batch_size": 2,
        }
    }

    keys = {
        stage: {config(stage, others=others, experiment=e).key(stage) for e in ("mine", "bf16")}
        for stage in ("export", "convert", "deploy")
    }

    assert {stage: len(found) for stage, found in keys.items()} == {
        "export": 1,
        "convert": 2,
        "deploy": 2,
    }
    assert all(key.startswith("resnet50-export-") for key in keys["export"])


def changed_slices(**fields: Any) -> list[str]:
    """The stages whose slice differs once `fields` are set."""
    return [
        stage
        for stage in STAGES
        if config(stage).cache_fields(stage) != config(stage, fields=fields).cache_fields(stage)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "stages"),
    [
        ({"batch_sizes": [1, 2]}, ["perf_offline"]),
        ({"concurrency": [7]}, ["perf_online"]),
        ({"latency_budget_ms": 5}, ["report"]),
        ({"threads": 1}, ["deploy", "perf_offline", "perf_online"]),
        ({"format": "openvino"}, ["convert", "deploy", "perf_offline", "perf_online"]),
        ({"checkpoint": "my.pth"}, list(STAGES)),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_changed_field_changes_the_slices_of_the_stages_that_read_it(
    fields: dict[str, Any], stages: list[str]
) -> None:
    assert changed_slices(**fields) == stages


def test_without_a_variant_it_is_the_models_first_and_without_a_size_the_usual() -> None:
    given = {"gpu": "Test", "models": {"bert": {"experiments": {"mine": {}}}}}

    assert resolve("bert", "report", **given).cache_fields("report")["experiments"] == ["mine"]
    fields = yaml.safe_load(f"{{{FULL}, max_batch_size: 8}}")
    given["models"] = {"bert": {"experiments": {"mine": fields}}}
    assert resolve("bert", "export", **given).variant == "small"
    assert resolve("bert", "export", **given).max_seq_length == 384
    assert resolve("bert", "export", **given).crop_size is None
    assert config("export").variant == ""


def test_a_models_release_takes_the_place_of_the_servers() -> None:
    server = {"kind": "embedded", "release": "24.10"}

    assert config("deploy", server=server).server.release == "24.10"
    found = config("deploy", server=server, fields={"release": "21.10"})
    assert (found.server.release, found.server.kind) == ("21.10", "embedded")


def test_with_nothing_set_it_is_the_cpu_target_and_its_first_experiment() -> None:
    found = resolve("resnet50", "export")

    experiments = yaml.safe_load((ROOT / "params/cpu.yaml").read_text())["models"]["resnet50"]
    first, *_ = experiments["experiments"]
    assert (found.gpu, found.device, found.target, found.experiment, found.server.kind) == (
        "CPU",
        "cpu",
        "cpu",
        first,
        "embedded",
    )


def test_instances_as_one_number_are_the_same_in_both_scenarios() -> None:
    assert config("deploy", fields={"instances": 3}).instances.model_dump() == {
        "offline": 3,
        "online": 3,
    }


def test_a_moved_data_set_and_checkpoint_keep_every_key_and_changed_ones_do_not(
    tmp_path: Path,
) -> None:
    def keys(folder: Path) -> list[str]:
        fields = {"dataset": str(folder / "images"), "checkpoint": str(folder / "my.pth")}
        configs = {stage: config(stage, fields=fields) for stage in STAGES}
        names = [place(configs["export"]).name for place in (dataset_place, checkpoint_place)]
        return [*(each.key(stage) for stage, each in configs.items()), *names]

    (tmp_path / "here/images").mkdir(parents=True)
    (tmp_path / "here/images/a.jpg").write_text("cat")
    (tmp_path / "here/my.pth").write_text("weights")
    before = keys(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    moved = keys(tmp_path / "there")
    (tmp_path / "there/images/a.jpg").write_text("a dog")
    (tmp_path / "there/my.pth").write_text("other weights")

    assert moved == before
    assert not set(keys(tmp_path / "there")) & set(before)


def test_relative_paths_are_relative_to_the_project_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = config("export", fields={"dataset": "datasets/mine", "checkpoint": "weights/my.pth"})
    absolute = config("export", fields={"checkpoint": str(tmp_path / "my.pth")})

    assert dataset_place(found).path == ROOT / "datasets/mine"
    assert checkpoint_place(found).path == ROOT / "weights/my.pth"
    assert checkpoint_place(absolute).path == tmp_path / "my.pth"


def test_only_int8_is_calibrated_by_the_models_own_number_of_samples_unless_told() -> None:
    def calibration(**fields: Any) -> Any:
        found: Any = config("convert", fields=fields)
        return found.calibration

    recommender: Any = config("convert", model="dlrm", fields={"precision": "int8"})

    assert calibration(precision="int8") == (128, 0)
    assert recommender.calibration == (8_000, 0)
    assert calibration(precision="int8", calibration_samples=8, calibration_seed=3) == (8, 3)
    assert calibration(calibration_samples=8) is None


def test_the_file_of_a_gpu_is_looked_for_in_files_as_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "FILES", tmp_path)
    one, broken = tmp_path / "one.yaml", tmp_path / "broken.yaml"
    broken.write_text("gpu: [")
    one.write_text("gpu: A\nmodels: {}\n")
    assert [loading.file_for(gpu) for gpu in ("A", "B")] == [one, None]

    one.write_text("gpu: B\nmodels: {}\n")
    broken.write_text("gpu: A\nmodels: 3\n")

    assert [loading.file_for(gpu) for gpu in ("A", "B")] == [broken, one]
    one.unlink()
    assert loading.file_for("B") is None
