from .clearing import clear
from .planning import DATA_SECONDS, Job, due, explain, plan, stale
from .publishing import publish, publish_front, publish_indexes, stage_states, targets
from .running import (
    KEPT_BACK,
    Plan,
    Runner,
    kernel_environment,
    kernel_server,
    opened,
    read_plans,
    run,
    run_plans,
    write_status,
)
from .tuning import tune

__all__ = [
    "DATA_SECONDS",
    "KEPT_BACK",
    "Job",
    "Plan",
    "Runner",
    "clear",
    "due",
    "explain",
    "kernel_environment",
    "kernel_server",
    "opened",
    "plan",
    "publish",
    "publish_front",
    "publish_indexes",
    "read_plans",
    "run",
    "run_plans",
    "stage_states",
    "stale",
    "targets",
    "tune",
    "write_status",
]
