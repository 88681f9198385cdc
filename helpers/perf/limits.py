"""How near a row is to what the machine can do at most: the roofline of Williams, Waterman and
Patterson, "Roofline: an insightful visual performance model for multicore architectures" (2009).

A sample takes at least its operations at the peak of the precision, and at least its bytes at the
peak of the memory: whichever takes longer is the nearer limit.
"""

from helpers.inference import Work
from helpers.results import Peaks, Row


def limited(row: Row, work: Work, peaks: Peaks, precision: str) -> Row:
    """Add to a row which limit is the nearer one, and its share of it."""
    peak = peaks.gflops.get(precision)
    if not row.throughput or not peak or not work.flop:  # a graph may have no products
        return row
    moved = work.bytes(precision, row.average_batch_size or row.batch_size)
    intensity = work.flop / moved
    by_memory = intensity * peaks.memory_gb_s
    gflops = row.throughput * work.flop / 1e9
    return row.model_copy(
        update={
            "gflops": gflops,
            "intensity": intensity,
            "roofline_bound": "memory" if by_memory < peak else "compute",
            "roofline_share": gflops / min(peak, by_memory),
        }
    )
