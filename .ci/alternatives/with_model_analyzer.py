"""Search one repository with Model Analyzer and with `tune`, and compare the winners interleaved.

    python .ci/alternatives/with_model_analyzer.py

The repository is that of a deployed experiment of a parameter file; the batch command runs its
stages first where they are missing. Each search has the same minutes, the same Triton, the same
budget of p99 if there is one, and the same perf_analyzer with the same samples. Model Analyzer's
searches are limited to the experiment's largest batch size and to twice as many clients. At the end
all winners run at the same time, and are loaded in turn.

Model Analyzer has an environment of its own, which is made on the first run and kept in
$MODEL_ANALYZER_ENVIRONMENT, by default in the user's cache.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

import psutil
import yaml
from compare import CACHE, Refused, experiment_parser, install, prepare  # beside this script
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers import results, triton
from helpers.compare.search import Winner
from helpers.config import TuneConfig, changed, configure, read_file, results_folder
from helpers.inference import require
from helpers.measure import Race, Window, exclusive_lock, open_session
from helpers.measure.analyzer import WINDOWS, input_data, shared_memory_patterns
from helpers.measure.sweep import distinct_samples
from helpers.store import Artifact, temporary_folder
from helpers.triton import binaries, embedded, owner
from helpers.triton.server import reserved_ports

WANTED = "triton-model-analyzer==1.58.0"
OWN = CACHE / f"triton-notebooks/{WANTED}"
ENVIRONMENT = Path(os.environ.get("MODEL_ANALYZER_ENVIRONMENT") or OWN)
MODES, TUNE = ("quick", "brute"), "tune"
WINDOW_MS = 2000  # a CPU answers 16 clients of a slow model in one of them
ROUNDS = 6
GRACE_SECONDS = 60  # for Model Analyzer's current measurement


@dataclass(frozen=True)
class Found:
    """What a search found: the repository of its winner, and how that is served and loaded."""

    search: str
    measured: int
    minutes: float
    winner: Mapping[str, object]  # the fields that differ from the experiment's
    clients: int
    throughput: float  # samples/s, as the search measured it
    config: TuneConfig
    folder: Path


def measured(checkpoint):
    """Read what Model Analyzer has measured: model, clients, samples/s and p99 in ms."""
    trials = []
    models = json.loads(checkpoint.read_text())["ResultManager.results"]["_results"]
    for run, measurements in (pair for variants in models.values() for pair in variants.values()):
        (one,) = run["_model_run_configs"]
        variant = one["_model_config_variant"]["model_config"]
        model = json_format.ParseDict(variant, pb.ModelConfig())
        for measurement in measurements.values():
            (one,) = measurement["_model_config_measurements"]
            count = int(one["_model_specific_pa_params"]["concurrency-range"])
            figures = {name: float(each["_value"]) for name, each in one["_non_gpu_data"]}
            figure = figures["perf_throughput"], figures["perf_latency_p99"]
            trials.append((model, count, *figure))
    return trials


def fields(model):
    """Return what Model Analyzer varies, in the names of an experiment's fields."""
    return {
        "instances": sum(group.count for group in model.instance_group),
        "max_batch_size": model.max_batch_size,
        "max_queue_delay_us": model.dynamic_batching.max_queue_delay_microseconds,
    }


def write_programs(folder, regions):
    """Write the programs that Model Analyzer starts: the wheels', with what they need."""
    embedded.link_backend(folder)
    for library in ("libb64.so.0d", "libcudart.so.12"):
        file = next(binaries.libraries().glob(f"{library.partition('.')[0]}-*"))
        (folder / library).symlink_to(file)
    env = {"PATH": f"{Path(sys.executable).parent}:$PATH", **triton.SETTINGS}
    env["LD_PRELOAD"] = str(binaries.python_library())
    assigned = " ".join(f"{name}={value}" for name, value in env.items())
    flags = f"--backend-directory={folder} --backend-config=python,shm-region-prefix-name={regions}"
    for name, line in {
        "tritonserver": f"{assigned} exec {binaries.require('Triton')} {flags}",
        "perf_analyzer": f"LD_LIBRARY_PATH={folder} exec {binaries.require('perf_analyzer')}",
    }.items():
        (folder / name).write_text(f'#!/bin/sh\n{line} "$@"\n')
        (folder / name).chmod(0o755)


def settings(folder, config, mode, data):
    with reserved_ports(0, 0, 0) as ports:
        http, grpc, metrics = ports
    is_cpu, budget_ms = config.device == "cpu", config.latency_budget_ms
    settings = {
        "model_repository": f"{folder}/models",
        "triton_http_endpoint": f"127.0.0.1:{http}",
        "triton_grpc_endpoint": f"127.0.0.1:{grpc}",
        "triton_metrics_url": f"http://127.0.0.1:{metrics}/metrics",
        "client_protocol": "http",
        "run_config_search_mode": mode,
        "run_config_search_max_model_batch_size": config.max_batch_size,
        "run_config_search_max_concurrency": 2 * config.max_batch_size,
        **dict.fromkeys(("skip_summary_reports", "skip_detailed_reports"), True),
        "perf_analyzer_flags": {
            **{"input-data": [str(data)], "shared-memory": config.shared_memory},
            **{"measurement-mode": "time_windows", "measurement-interval": WINDOW_MS},
            # as in helpers/measure/analyzer.py
            **{"stability-percentage": 999, "max-trials": WINDOWS},
        },
        "profile_models": {config.model: {"cpu_only": is_cpu}},
    }
    settings |= {"gpus": []} if is_cpu else {}
    return settings | ({"latency_budget": int(budget_ms)} if budget_ms else {})


def run(command, folder, seconds):
    """Run Model Analyzer for so long and until its current measurement ends. Then end its servers
    and clients, whose sessions are their own.
    """
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "no_proxy": "*", "NO_PROXY": "*"}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log) as process,
    ):
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
        finally:
            with suppress(psutil.NoSuchProcess):
                own = psutil.Process(process.pid)
                for each in (*own.children(recursive=True), own):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()


def profile(mode, config, repository, minutes, own):
    """Let Model Analyzer search for so many minutes. Raises `Refused` if it measured nothing."""
    source, samples = own / "models" / config.model, distinct_samples(config)
    shutil.copytree(repository / config.model, source)
    given = triton.read_configuration(source)
    # it skips variants with a smaller batch size than these, and Triton does not load them
    del given.dynamic_batching.preferred_batch_size[:], given.model_warmup[:]
    (source / "config.pbtxt").write_text(text_format.MessageToString(given))
    regions = owner.new_shm_prefix()
    write_programs(own, regions)
    started = time.monotonic()
    with exclusive_lock(), input_data(samples) as data:
        (own / "settings.yaml").write_text(yaml.safe_dump(settings(own, config, mode, data)))
        command = [str(ENVIRONMENT / "bin/model-analyzer"), "profile", "-f", "settings.yaml"]
        run(command, own, 60 * minutes)
        outputs = [output.name for output in given.output]
        triton.remove_shared_memory([f"{regions}*", *shared_memory_patterns([*samples], outputs)])
    spent = (time.monotonic() - started) / 60
    trials = [trial for path in own.glob("checkpoints/*.ckpt") for trial in measured(path)]
    if not trials:
        raise Refused(f"Model Analyzer ({mode}) measured nothing: {triton.last_lines(own / 'log')}")
    budget_ms = config.latency_budget_ms or inf
    model, count, throughput, _ = max(trials, key=lambda trial: (trial[3] <= budget_ms, trial[2]))
    shutil.copytree(source, own / "winner" / config.model)
    (own / "winner" / config.model / "config.pbtxt").write_text(text_format.MessageToString(model))
    before = fields(given)
    winner = {name: value for name, value in fields(model).items() if before[name] != value}
    batches = {"batch_sizes": [1], "preferred_batch_sizes": []}
    served = changed(config, {"max_batch_size": model.max_batch_size, **batches})
    return Found(mode, len(trials), spent, winner, count, throughput, served, own / "winner")


def tune(arguments, config, own):
    """Let `tune` search for so many minutes. Raises `Refused` if it would resume a search."""
    journal = results_folder(config) / "tune_journal.log"
    if journal.exists():
        raise Refused(f"tune has searched before, and would resume. Remove {journal}")
    chosen = ["--model", config.model, "--experiment", config.experiment]
    chosen += ["--minutes", str(arguments.minutes), "--outputs", str(arguments.outputs)]
    command = [sys.executable, "-m", "helpers", "tune", arguments.params, *chosen]
    subprocess.run(command, check=True)
    facts = json.loads((results_folder(config) / "tune.json").read_text())["facts"]
    trials, winner = facts["trials"], Winner.model_validate(facts["winner"])
    spent = sum(trial["seconds"] for trial in trials) + winner.final.seconds
    spent += sum(trial.seconds for trial in winner.why.values())
    served, count = changed(config, facts["differs"]), int(str(winner.choice["concurrency"]))
    triton.write_repository(own, served, require(served, "convert"))
    throughput = winner.final.throughput or 0.0
    return Found(TUNE, len(trials), spent / 60, facts["differs"], count, throughput, served, own)


def interleaved(found):
    """Load all winners in turn, with as many clients as tune's winner has, and as any has."""
    ratios = {}
    with ExitStack() as stack:
        servers = []
        for each in found:
            repository, log = Artifact(each.folder, {}, {}), each.folder / "log"
            server = triton.serve(each.config, repository, "online", log=log)
            servers.append(stack.enter_context(server))
        session = stack.enter_context(open_session(found[-1].config, servers[-1]))
        points = sorted({found[-1].clients, max(each.clients for each in found)})
        pairs = zip(found, servers, strict=True)
        sides = {each.search: session.warm(one, each.config, points[-1]) for each, one in pairs}
        for count in points:
            loaded = {name: replace(side, clients=count) for name, side in sides.items()}
            calls = {name: partial(session.load, side) for name, side in loaded.items()}
            race = Race[Window](lambda run: run.steady.throughput, 1, {})
            race.run(calls, [ROUNDS])
            for error in race.failures.values():
                raise error
            ratios[count] = {name: race.ratio(TUNE, name) for name in MODES}
    return ratios


def table(found, ratios):
    heads = ["search", "measured", "minutes", "winner", "clients", "samples/s by its own"]
    heads += [f"tune's ÷ this, {results.clients_of(count)}" for count in ratios]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for each in found:
        words = ", ".join(f"{name} {value}" for name, value in each.winner.items())
        cells = [each.search, f"{each.measured}", f"{each.minutes:.1f}", words or "as deployed"]
        cells += [f"{each.clients}", f"{each.throughput:.1f}"]
        known = [by_search.get(each.search) for by_search in ratios.values()]
        cells += [ratio.shown(".2f") if ratio else "" for ratio in known]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = experiment_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="of each search")
    arguments = parser.parse_args()
    arguments.outputs = arguments.outputs.absolute()
    install(ENVIRONMENT, [WANTED])
    _, repository = prepare(arguments)
    given = read_file(Path(arguments.params))
    config = configure(given, arguments.model, arguments.experiment, "tune")
    try:
        if config.online_batch_size > 1:
            raise Refused("Model Analyzer's quick search sends one sample in a request")
        with temporary_folder() as folder:
            for search in (*MODES, TUNE):
                (folder / search).mkdir()
            tuned = tune(arguments, config, folder / TUNE)
            chosen = config, repository.folder, arguments.minutes
            found = [*(profile(mode, *chosen, folder / mode) for mode in MODES), tuned]
            print(table(found, interleaved(found)))
    except Refused as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
