"""A parameter file is right as a whole, or wrong in one line that names file, key and value."""

import re
import subprocess
import sys
from collections import Counter

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
from helpers.store.paths import ROOT
from tests.conftest import ONNX

FILES = sorted((ROOT / "params").glob("*.yaml"))
HEAD = "gpu: Test\ndevice: cpu\n"
FULL = ["export_format: onnx", "export_precision: fp32", "format: onnx", "precision: fp32"]
FULL += ["max_batch_size: 8"]


def file_with(fields="", model="resnet50"):
    """A parameter file with one experiment of all that is required, or `fields` instead."""
    usual = [each for each in FULL if not re.search(rf"\b{each.partition(':')[0]}:", fields)]
    experiment = ", ".join([*usual, fields] if fields else usual)
    return f"{HEAD}models:\n  {model}:\n    experiments:\n      mine: {{{experiment}}}\n"


def config(stage, model="resnet50", others=(), model_defaults=(), fields=(), **given):
    experiments = {"mine": ONNX | dict(fields), **dict(others)}
    section = {"defaults": dict(model_defaults), "experiments": experiments}
    return resolve(model, stage, gpu="Test", models={model: section}, **given)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_parameter_file_resolves_for_each_model_experiment_and_stage(path):
    content = read_file(path)

    chosen = [
        (name, experiment, stage)
        for name in content.file.models
        for experiment in content.experiments(name)
        for stage in STAGES
    ]
    assert chosen
    for each in chosen:
        c = configure(content, *each)
        found = (c.model, c.experiment, c.stage, c.gpu, c.target)
        assert found == (*each, content.file.gpu, path.stem)


def test_no_two_parameter_files_are_of_the_same_gpu():
    names = [read_file(path).file.gpu for path in FILES]

    assert sorted(names) == sorted(set(names))


KNOWN = ", ".join(sorted(Experiment.model_fields))
ABOVE = "is above max_batch_size, which is 8."
FORMATS = f"Unknown format. Known formats: {', '.join(formats.names())}."
TABLES = ".table_precision is 'int8'. Only tables with lookup: mapped can differ from fp32."
FIELDS = {  # model -> fields of an experiment -> what follows its place, at least
    "resnet50": {
        "batches: [1]": f": Unknown key 'batches'. Known keys: {KNOWN}.",
        "batch_sizes: 8": ".batch_sizes is 8. It should be a valid list.",
        "threads: two": ".threads is 'two'. It should be a valid integer.",
        "accelerator: turbo": ".accelerator is 'turbo'. It should be 'none', 'trt', 'openvino' or ",
        "batch_sizes: [1, 16]": f".batch_sizes is [1, 16]. 16 {ABOVE}",
        "preferred_batch_sizes: [4, 9]": f".preferred_batch_sizes is [4, 9]. 9 {ABOVE}",
        "online_batch_size: 10": f".online_batch_size is 10. 10 {ABOVE}",
        "format: flatpack": f".format is 'flatpack'. {FORMATS}",
        "variant: large": ".variant is 'large'. Unknown variant. This model has no variants.",
        "crop_size: 31": ".crop_size is 31. ResNet50 v1.5 takes 32 to 256 pixels a side.",
        "crop_size: 257": ".crop_size is 257. ResNet50 v1.5 takes 32 to 256 pixels a side.",
        "max_seq_length: 128": ".max_seq_length is 128. ResNet50 v1.5 has no such field. Remove",
        "release: 21.10": ".release is 21.1. It should be a valid string. Write it in quotes: YAML",
        "format: ts-trace": ".format is 'ts-trace'. It is made from torch, not from onnx.",
        "lookup: hps": ".lookup is 'hps'. Unknown lookup. This model has no lookups.",
        "table_precision: int8": f"{TABLES} Use fp32.",
        "composition: fused": ".composition is 'fused'. This model is a single graph. Use ensemble",
        "precision: bf16": ".precision is 'bf16'. The exported file is served as it is, so it has ",
        "precision: int8, calibration_samples: 0": ".calibration_samples is 0. It should be",
        "export_precision: fp16, precision: int8": ".precision is 'int8'. int8 needs an fp32",
        "export_precision: int8": ".export_precision is 'int8'. It should be 'fp32', 'bf16' or ",
        "latency_budget_ms: .inf": ".latency_budget_ms is inf. It should be a finite number.",
        "dataset: 2001-02-03": ".dataset is datetime.date(2001, 2, 3). It should be text in quotes",
    },
    "bert": {
        "variant: huge": ".variant is 'huge'. Unknown variant. Known variants: small, base, large.",
        "max_seq_length: 127": ".max_seq_length is 127. BERT QA takes 128 to 512 tokens.",
        "max_seq_length: 513": ".max_seq_length is 513. BERT QA takes 128 to 512 tokens.",
    },
    "dlrm": {
        "lookup: hps, hps: {gpu_cache: 0.1}": ".hps: models[0].gpu_cache is unknown. Remove it.",
        "lookup: hps, hps: {sparse_files: [a]}": ".hps: The model sets sparse_files. Remove it.",
        "lookup: hash": ".lookup is 'hash'. Unknown lookup. Known lookups: mapped, hps.",
        "lookup: hps, table_precision: int8": TABLES,
    },
}
PLACE = "models.resnet50.experiments"
SERVER_KEYS = "backend, grpc_url, image, kind, metrics_url, path, release, repository, url"
TOP = "It should be a mapping of gpu, device, server, defaults, models."
TOP_KEYS = ", ".join(sorted(ParameterFile.model_fields))
MODELS = ", ".join(models.names())
GOOD = file_with()
BAD = [
    (f"{GOOD}gpus: 2\n", f"Unknown key 'gpus'. Known keys: {TOP_KEYS}."),
    (f"{GOOD}server: {{imge: a}}\n", f"server: Unknown key 'imge'. Known keys: {SERVER_KEYS}."),
    (GOOD.replace(", max_batch_size: 8", ""), f"{PLACE}.mine.max_batch_size is missing. Add it."),
    (GOOD.replace("gpu: Test\n", ""), "gpu is missing. Add it."),
    (file_with(model="resnet51"), f"models.resnet51: Unknown model. Known models: {MODELS}."),
    (GOOD.replace("mine:", "../mine:"), f"{PLACE}.../mine: Invalid name. Use letters, digits, "),
    (
        f"{GOOD}    lessons: [precision, batching]\n",
        "models.resnet50.lessons.1 is 'batching'. It should be 'dynamic_batching', 'instances', ",
    ),
    (
        f"{file_with(model='bert')}    lessons: [precision]\n",
        "models: bert has no lessons. Only resnet50 has them.",
    ),
    (GOOD.replace("mine:", "lessons:"), f"{PLACE}.lessons: The lessons' results use this name. "),
    (f"{HEAD}models: {{resnet50: }}\n", "models.resnet50 is None. It should be a mapping of keys"),
    (
        f"{GOOD}server: {{kind: remote, url: 'http://[::1'}}\n",
        "server.url is 'http://[::1'. Invalid IPv6 URL.",
    ),
    (f"{HEAD}models: {{}}\n", "models is empty. Add at least one entry."),
    (f"{HEAD}models: {{resnet50: {{experiments: {{}}}}}}\n", f"{PLACE} is empty. Add at least one"),
    (f"{GOOD}device: gpu\n", "line 7: The key 'device' is there twice. Remove one."),
    (file_with("threads: 1, 'threads': 2"), "line 6: The key 'threads' is there twice."),
    (f"{GOOD}[1, 2]: 3\n", "line 7: A key is a sequence. Use a name."),
    ("", f"The file is empty. {TOP}"),
    ("- gpu\n", f"The file holds a list. {TOP}"),
    (f"{GOOD}server: {{release: 24.10}}\n", "server.release is 24.1. It should be a valid string."),
    ("gpu: [unclosed\n", "The file is not valid YAML ("),
    ("gpu: {{ name }}\n", ""),
    (bytes(range(256)), "The file cannot be read as text ("),
    ("gpu: a\0b\n", "The file is not valid YAML ("),
]
BAD += [
    (file_with(fields, model), f"models.{model}.experiments.mine{said}")
    for model, rows in FIELDS.items()
    for fields, said in rows.items()
]


def refused(path, capsys, *options):
    """What the command says of a file that it refuses in one line; it writes nothing."""
    outputs = path.parent / "outputs"

    code = main(["run", str(path), "--outputs", str(outputs), *options])

    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n"), outputs.exists()) == (2, "", 1, False)
    return said.err


@pytest.mark.parametrize(("content", "message"), BAD, ids=[said[:60] for _, said in BAD])
def test_a_bad_file_is_one_line_and_exit_code_2_and_nothing_is_written(
    content, message, tmp_path, capsys
):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    said = refused(path, capsys)

    assert said.startswith(f"error: {path}: {message}")
    assert '"24.1"' not in said  # a hint for a release would have lost its zero


BOMB = "gpu:\n- &a0 [x, x]\n" + "".join(
    f"- &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(9)
)
CHAIN = "- &a0 x\n" + "".join(f"- &a{i + 1} [*a{i}]\n" for i in range(2_000))
ALIASES = "The aliases expand to too many values. Use fewer aliases."
LEVELS = "line 1: The file has more than 20 levels. Use fewer."
UNPRINTABLE = "The text has the unprintable character"
HOSTILE = [
    (BOMB, f"line 7: {ALIASES}"),
    ("gpu: &a [*a]\n", f"line 1: {ALIASES}"),
    (CHAIN, f"line 21: {ALIASES}"),
    ("gpu: " + "[" * 1_000 + "]" * 1_000, LEVELS),
    ("[" * 100_000, LEVELS),
    (file_with("dataset: 2001-02-30T10:00:00Z"), "The file is not valid YAML (day is out of range"),
    ("gpu: !!int foo\n", "line 1: The tag 'tag:yaml.org,2002:int' is not allowed. Remove it."),
    ("gpu: A\nmodels: !!map [1]\n", "line 2: The tag 'tag:yaml.org,2002:map' is not allowed."),
    (file_with(f"threads: {'1' * 5_000}"), "line 6: The text has more than 1,000 characters."),
    (f'{GOOD}"\\e[31mgpus": 2\n', f"line 7: {UNPRINTABLE} '\\x1b'. Remove it."),
    (GOOD.replace("mine", '"\\e[31m"'), f"line 6: {UNPRINTABLE} '\\x1b'. Remove it."),
    (f'{GOOD}server: {{kind: remote, url: "a\\0:1"}}\n', f"line 7: {UNPRINTABLE} '\\x00'. Remove"),
    ("".join(f"k{i}: 1\n" for i in range(1_000_000)), "The file is larger than 1 MB. Shorten it."),
]
RUN_EACH = """
import sys
from helpers.__main__ import main
sys.exit({main(["run", path, "--dry-run"]) for path in sys.argv[1:]} != {2})
"""


@pytest.mark.slow
def test_a_hostile_file_is_one_line_at_once(tmp_path):
    paths = [tmp_path / f"{place}.yaml" for place in range(len(HOSTILE))]
    for path, (text, _) in zip(paths, HOSTILE, strict=True):
        path.write_text(text)

    done = subprocess.run(  # another process: one of them was a segmentation fault
        [sys.executable, "-c", RUN_EACH, *map(str, paths)],
        **{"capture_output": True, "text": True, "timeout": 60, "cwd": ROOT},
    )

    said = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (0, "")
    for path, (_, line), found in zip(paths, HOSTILE, said, strict=True):
        assert found.startswith(f"error: {path}: {line}")


def test_a_null_byte_in_the_address_of_a_notebook_is_one_line():
    with pytest.raises(ParameterError) as raised:
        config("deploy", server={"kind": "remote", "url": "a\0:1"})

    assert str(raised.value) == (
        "parameters: server.url is 'a\\x00:1'. It contains an unprintable character. Remove it."
    )


def test_a_plan_resolves_each_stage_once(tmp_path, monkeypatch):
    calls, validate = [], loading.validated

    def counted(*arguments):
        calls.append(arguments)
        return validate(*arguments)

    def planned(count):
        path = tmp_path / "many.yaml"
        experiments = "".join(f"      e{i}: {{threads: {i}}}\n" for i in range(count))
        section = f"models:\n  resnet50:\n    experiments:\n{experiments}"
        path.write_text(f"{HEAD}defaults: {{{', '.join(FULL)}}}\n{section}")
        given = read_file(path)
        calls.clear()
        return plan(given, select(given, [], []), [])

    monkeypatch.setattr(loading, "validated", counted)
    assert Counter(job.config.stage for job in planned(10)) == {
        **dict.fromkeys(("export", "convert", "compare", "report"), 1),
        **dict.fromkeys(("deploy", "perf_offline", "perf_online"), 10),
    }
    few = len(calls)
    planned(20)
    assert len(calls) <= 2 * few  # it took minutes while each looked at all others


def test_a_missing_file_and_a_folder_are_one_line_each(tmp_path, capsys):
    path, folder = tmp_path / "none.yaml", tmp_path / "folder.yaml"
    folder.mkdir()

    assert refused(path, capsys) == f"error: {path}: No such file. Check the path.\n"
    assert refused(folder, capsys).startswith(f"error: {folder}: The file cannot be read as text (")


@pytest.mark.parametrize(("option", "known"), [("--model", "resnet50"), ("--experiment", "mine")])
def test_a_name_that_the_file_does_not_have_is_one_line(option, known, tmp_path, capsys):
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)

    said = refused(path, capsys, option, "nope")

    assert said == f"error: {path} has no {option[2:]} 'nope'. Use one of {known}.\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"overrides": '{"threads": 1}'},
            r"the text '{\"threads\": 1}'\. Pass a dict; with",
        ),
        ({"overrides": {"cores": 1}}, "Unknown key 'cores'. Known keys: "),
        ({"defaults": {"threads": 3}}, "defaults"),  # without models not ignored in silence
    ],
)
def test_what_a_notebook_gives_wrongly_is_an_error(given, words):
    with pytest.raises(ParameterError, match=words):
        resolve("resnet50", "deploy", **given)


def test_yaml_anchors_share_within_a_file(tmp_path):
    path = tmp_path / "shared.yaml"
    path.write_text(
        f"{HEAD}models:\n  resnet50:\n    defaults: &usual {{{', '.join(FULL)}}}\n"
        "    experiments:\n      mine: {<<: *usual, max_batch_size: 4}\n      other: *usual\n"
    )

    content = read_file(path)

    found = [configure(content, "resnet50", name, "deploy") for name in ("mine", "other")]
    assert [c.max_batch_size for c in found] == [4, 8]


def test_a_broken_file_beside_them_does_not_break_the_other_targets(tmp_path, monkeypatch):
    (tmp_path / "a-half-written.yaml").write_text("")
    (tmp_path / "cpu.yaml").write_text(file_with().replace("gpu: Test", "gpu: CPU"))
    monkeypatch.setattr(loading, "FILES", tmp_path)

    assert resolve("resnet50", "export").target == "cpu"


def test_an_experiment_overrides_its_model_and_the_model_the_file():
    found = config(
        "perf_offline",
        defaults={"threads": 1, "request_count": 10, "pairs": 2, "max_queue_delay_us": 100},
        model_defaults={"threads": 2, "request_count": 20, "pairs": 4},
        fields={"threads": 3, "request_count": 30},
        overrides={"threads": 4},
    )

    assert (found.threads, found.request_count, found.pairs) == (4, 30, 4)
    assert (found.max_queue_delay_us, found.shared_memory) == (100, "system")


@pytest.mark.parametrize("stage", STAGE)
def test_a_stage_sees_its_fields_and_no_other(stage):
    found = config(stage)

    seen = {name for name in Experiment.model_fields if hasattr(found, name)}

    of_config = {*StageConfig.model_fields, "candidates"}
    assert seen == set(STAGE[stage].config.model_fields) - of_config


def test_experiments_that_differ_later_share_the_export():
    others = {"bf16": ONNX | {"format": "openvino", "precision": "bf16", "max_batch_size": 2}}

    keys = {
        stage: {config(stage, others=others, experiment=e).key(stage) for e in ("mine", "bf16")}
        for stage in ("export", "convert", "deploy")
    }

    assert [len(found) for found in keys.values()] == [1, 2, 2]
    assert all(key.startswith("resnet50-export-") for key in keys["export"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "stages"),
    [
        ({"batch_sizes": [1, 2]}, ["perf_offline"]),
        ({"concurrency": [7]}, ["perf_online", "compare"]),
        ({"latency_budget_ms": 5}, ["compare", "report"]),
        ({"compare": False}, ["compare"]),
        ({"threads": 1}, ["deploy", "perf_offline", "perf_online", "compare"]),
        ({"format": "openvino"}, ["convert", "deploy", "perf_offline", "perf_online", "compare"]),
        ({"checkpoint": "my.pth"}, list(STAGES)),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_changed_field_changes_the_slices_of_the_stages_that_read_it(fields, stages):
    slices = {each: config(each).cache_fields(each) for each in STAGES}
    changed = {each: config(each, fields=fields).cache_fields(each) for each in STAGES}

    assert [each for each in STAGES if slices[each] != changed[each]] == stages


def test_without_a_variant_it_is_the_models_first_and_without_a_size_the_usual():
    given = {"gpu": "Test", "models": {"bert": {"experiments": {"mine": {}}}}}

    assert resolve("bert", "report", **given).cache_fields("report")["experiments"] == ["mine"]
    found = config("export", "bert")
    assert (found.variant, found.max_seq_length, found.crop_size) == ("small", 384, None)
    assert config("export").variant == ""


def test_a_models_release_takes_the_place_of_the_servers():
    server = {"kind": "embedded", "release": "24.10"}
    found = config("deploy", server=server, fields={"release": "21.10"})

    assert config("deploy", server=server).server.release == "24.10"
    assert (found.server.release, found.server.kind) == ("21.10", "embedded")


def test_with_nothing_set_it_is_the_cpu_target_and_its_first_experiment():
    found = resolve("resnet50", "export")

    experiments = yaml.safe_load((ROOT / "params/cpu.yaml").read_text())["models"]["resnet50"]
    chosen = (found.gpu, found.device, found.target, found.experiment, found.server.kind)
    assert chosen == ("CPU", "cpu", "cpu", next(iter(experiments["experiments"])), "embedded")


def test_instances_as_one_number_are_the_same_in_both_scenarios():
    assert {*dict(config("deploy", fields={"instances": 3}).instances).values()} == {3}


def test_a_moved_data_set_and_checkpoint_keep_every_key_and_changed_ones_do_not(tmp_path):
    def keys(folder):
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


def test_relative_paths_are_relative_to_the_project_wherever_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = config("export", fields={"dataset": "datasets/mine", "checkpoint": "weights/my.pth"})
    absolute = config("export", fields={"checkpoint": str(tmp_path / "my.pth")})

    assert dataset_place(found).path == ROOT / "datasets/mine"
    assert checkpoint_place(found).path == ROOT / "weights/my.pth"
    assert checkpoint_place(absolute).path == tmp_path / "my.pth"


def test_only_int8_is_calibrated_by_the_models_own_number_of_samples_unless_told():
    def calibration(model="resnet50", **fields):
        return config("convert", model, fields=fields).calibration

    assert calibration(precision="int8") == (128, 0)
    assert calibration("dlrm", precision="int8") == (8_000, 0)
    assert calibration(precision="int8", calibration_samples=8, calibration_seed=3) == (8, 3)
    assert calibration(calibration_samples=8) is None


def test_the_file_of_a_gpu_is_looked_for_in_files_as_they_are_now(tmp_path, monkeypatch):
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
