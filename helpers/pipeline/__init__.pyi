from .clearing import clear
from .local import Here, here
from .planning import DATA_SECONDS, Job, due, explain, plan, stale
from .publishing import publish, publish_front, publish_indexes, stage_states, targets
from .running import (
    KEPT_BACK,
    Plan,
    Runner,
    kernel_environment,
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
    "Here",
    "Job",
    "Plan",
    "Runner",
    "clear",
    "due",
    "explain",
    "here",
    "kernel_environment",
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
