"""How many threads an instance computes with."""

import os

from helpers.config import DeployConfig


def physical_cores() -> int:
    """Count the cores this process may use; hyper-threads do not speed dense arithmetic up."""
    import psutil

    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def threads(config: DeployConfig, scenario: str) -> int:
    """Threads of one instance in `scenario`: as configured, else the cores shared out evenly."""
    count: int = getattr(config.instances, scenario)
    return config.threads or max(1, physical_cores() // count)
