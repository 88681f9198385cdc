"""The full grid of a search space, measured point by point in turn with the experiment's own
configuration, to hold against what a search found:

    python -m tests.compare.grid PARAMS MODEL RECORD.jsonl [SECONDS]

It goes on where an earlier run stopped, and ends with the best points of the record.
"""

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from helpers import config
from helpers.compare import choices
from helpers.compare.evaluation import CandidateEvaluator


def main(params: str, model: str, record: str, seconds: str = "1e9") -> None:
    chosen = config.configure(config.read_file(Path(params)), model, "", "tune")
    assert isinstance(chosen, config.TuneConfig)
    space, path, ends = choices(chosen), Path(record), time.monotonic() + float(seconds)
    path.touch()
    points = [json.loads(line) for line in path.read_text().splitlines()]
    done = [point["choice"] for point in points]
    with ExitStack() as opened, path.open("a") as file:
        bench = CandidateEvaluator(chosen, space, opened)
        for choice in space:  # the clients change fastest, so a server is used for all of them
            if choice in done or time.monotonic() > ends:
                continue
            start = {**space.start, "concurrency": choice["concurrency"]}
            found = bench.compare(start, choice, 1, until_known=True)
            points.append({"choice": choice, "ratio": found.ratio, "throughput": found.throughput})
            points[-1]["p99_latency_ms"] = found.p99_latency_ms
            file.write(json.dumps(points[-1]) + "\n")
            file.flush()
    print(f"{len(points)} of {space.size} points")
    for point in sorted(points, key=lambda each: each["throughput"], reverse=True)[:5]:
        print(json.dumps(point))


if __name__ == "__main__":
    main(*sys.argv[1:])
