"""How many threads a model instance computes with."""

import os

from helpers.config import DeployConfig


def physical_cores() -> int:
    """Count the physical cores this process may use: hyper-threads do not speed up dense
    arithmetic.
    """
    import psutil

    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def threads(config: DeployConfig, scenario: str) -> int:
    """Give the threads of one instance in `scenario` ("offline" or "online"): as configured, or an
    equal share of the cores.
    """
    count = config.instances.offline if scenario == "offline" else config.instances.online
    return config.threads or max(1, physical_cores() // count)
