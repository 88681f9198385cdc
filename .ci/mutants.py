"""Faults that the tests must notice: `python .ci/mutants.py [WORD ...]` puts each into the
working copy, or those whose lines have one of the words, runs the tests that must then fail, and
takes it out again. It ends with 1 if a fault was not noticed.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# FILE: OLD TEXT => NEW TEXT, and below it the tests, in folders of tests/
MUTANTS = """
helpers/__main__.py: command = get_command(app) => return 0
  pipeline/test_cli.py::test_a_dry_run_into_a_file_leaves_it_alone
helpers/hps/updates.py: return store.start(work, store, source) if work else None => return None
  hps/test_kafka.py::test_a_broker_that_is_not_there_is_told_and_keeps_nobody_from_answering
helpers/models/resnet50/data.py: pool.shutdown(cancel_futures=True) => pass
  models/test_resnet50.py::test_who_leaves_batches_early_leaves_no_thread_that_reads_on
helpers/measure/background.py: return max(part() for _ in range(SPEED_PARTS)) => return 2.0
  measure/test_measure.py::test_the_machine_s_speed_is_that_of_the_moment_in_which_nothing_else_ran
helpers/measure/peaks.py: gflops, memory = rates => gflops, memory = {precision: 50.0}, 10.0
  measure/test_limits.py::test_a_peak_is_what_was_computed_and_copied_in_the_shortest_time
helpers/triton/serving.py: -p 127.0.0.1:8000:8000 => -p 127.0.0.1:8000:8000 -p 0.0.0.0:8001:8001
  triton/test_docker.py::test_nobody_is_told_to_open_a_server_to_others
helpers/triton/server.py: OPENER = build_opener(ProxyHandler({})) => OPENER = build_opener()
  triton/test_server.py::test_a_proxy_in_the_environment_changes_nothing
helpers/machine/checks.py: SHM_GB, DISK_GB, GPU_GB = 1.0, => SHM_GB, DISK_GB, GPU_GB = 0.0,
  machine/test_doctor.py::test_a_machine_that_lacks_a_little_is_told_how_to_fix_it
helpers/machine/checks.py: Check("Python", known, => Check("Python", True,
  machine/test_doctor.py::test_a_machine_that_lacks_a_little_is_told_how_to_fix_it
helpers/machine/checks.py: preflight.numbers(glibc) >= GLIBC => True
  machine/test_doctor.py::test_a_machine_that_lacks_a_little_is_told_how_to_fix_it
helpers/measure/background.py: return max(0.0, (after - before) / (now - started)) => return 0.0
  measure/test_measure.py::test_what_others_compute_is_monitored
helpers/measure/background.py: fcntl.flock(locked, fcntl.LOCK_EX) => pass
  measure/test_measure.py::test_one_measurement_runs_at_a_time
helpers/measure/interleave.py: own * cores[:, None] => cores[:, None]
  measure/test_interleave.py::test_the_load_of_others_is_removed_as_by_a_regression_of_the_pairs
helpers/pipeline/own/draft.py: for factor in (0, -1): => for factor in ():
  pipeline/own/test_cases.py::test_what_cannot_be_served_is_refused_in_one_line
helpers/models/_own/huggingface.py: := sorted(found["missing_keys"]): => := []:
  pipeline/own/test_huggingface.py::test_weights_without_the_head_are_refused
helpers/pipeline/own/options.py: CLOSE = 1e-3 => CLOSE = 1e3
  pipeline/own/test_cases.py::test_a_format_that_computes_something_else_is_left_out
helpers/pipeline/own/origin.py: COPIES = 4 => COPIES = 0
  pipeline/own/test_new.py::test_a_model_that_needs_more_memory_than_there_is_is_refused
helpers/triton/supervisor.py: not in used and path.stat().st_uid == os.getuid() => not in used
  triton/test_supervisor.py::test_what_another_user_left_is_not_swept
helpers/store/lock.py: status.st_uid == os.getuid() => True
  store/test_workspace.py::test_temporary_folders_that_are_young_or_of_another_user_are_kept
helpers/store/lock.py: time.time() - status.st_mtime > YOUNG_SECONDS => True
  store/test_workspace.py::test_temporary_folders_that_are_young_or_of_another_user_are_kept
helpers/measure/analyzer.py: advice = NO_ACCESS if => advice = "" if
  measure/test_analyzer.py::test_who_has_no_access_to_shared_memory_is_told_what_to_set
"""


def run_tests(tests):
    """Run them; say whether all passed, and end if they could not be run."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # nothing compiled of a fault stays
    given = [f"tests/{test}" for test in tests.split()]
    done = subprocess.run([*command, *given], cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(done.stdout + done.stderr)
    return done.returncode == 0


def main(words):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended: the file is as it was"))
    lines = [line.strip() for line in MUTANTS.strip().splitlines()]
    chosen = list(zip(lines[::2], lines[1::2], strict=True))
    chosen = [each for each in chosen if not words or any(w in " ".join(each) for w in words)]
    if not run_tests(" ".join(tests for _, tests in chosen)):
        sys.exit("a test fails without any fault")
    survivors = 0
    for line, tests in chosen:
        name, _, change = line.partition(": ")
        old, _, new = change.partition(" => ")
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            sys.exit(f"{name} has {text.count(old)} times, and should have once: {old}")
        try:
            path.write_text(text.replace(old, new), encoding="utf-8")
            survived = run_tests(tests)
        finally:
            path.write_text(text, encoding="utf-8")
        survivors += survived
        print("SURVIVED" if survived else "killed", line, flush=True)
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
