from .clearing import clear
from .planning import DATA_SECONDS, Job, due, explain, plan, why_outdated
from .publishing import publish, publish_front, publish_indexes, stage_states, targets
from .running import (
    BROKEN_INSTALLATION,
    Plan,
    Runner,
    kernel_environment,
    kernel_server,
    open_run,
    read_plans,
    run,
    run_plans,
    write_status,
)
from .tuning import tune

__all__ = [
    "BROKEN_INSTALLATION",
    "DATA_SECONDS",
    "Job",
    "Plan",
    "Runner",
    "clear",
    "due",
    "explain",
    "kernel_environment",
    "kernel_server",
    "open_run",
    "plan",
    "publish",
    "publish_front",
    "publish_indexes",
    "read_plans",
    "run",
    "run_plans",
    "stage_states",
    "targets",
    "tune",
    "why_outdated",
    "write_status",
]
