"""How many times as fast one experiment is served as another, in turn, with an interval of 95%:

    python -m tests.compare.versus PARAMS MODEL EXPERIMENT OTHER PAIRS BATCH_SIZE...

Both must have been deployed by a run. One client, requests of each batch size.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from helpers import config
from helpers.measure import open_session, served


def main(params: str, model: str, first: str, second: str, pairs: str, *sizes: str) -> None:
    given = config.read_file(Path(params))
    for size in map(int, sizes):
        with ExitStack() as opened:
            both = []
            for experiment in (first, second):
                fields = {"online_batch_size": size, "concurrency": [1]}
                chosen = config.configure(given, model, experiment, "tune", fields)
                assert isinstance(chosen, config.TuneConfig)
                server = opened.enter_context(served(chosen, "offline"))
                if not both:
                    session = opened.enter_context(open_session(chosen, server))
                both.append(session.warm(server, chosen, 1))
            found = session.compare(both[0], both[1], int(pairs), is_race=False)
        print(
            f"{model} batch {size}: {second} is {found.ratio} {first}'s throughput, "
            f"{found.throughput:.1f}/s, {found.rounds} pairs, "
            f"{found.background_cpu_cores:.2f} cores in use by others"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
