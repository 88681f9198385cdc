"""Rename fields, columns and values of old files to the current terms."""

import json
from typing import Any

PARAMETERS = {"half_width": "margin_of_error", "point_seconds": "measurement_seconds"}
FIELDS = PARAMETERS | {  # of `<stage>.json`, and so the columns of results.csv
    "artefact": "artifact",
    "rungs": "checks",
    "verdict": "quality",
    "executed_batch": "average_batch_size",
    "pace": "machine_gflops",
    "bare_throughput": "in_process_throughput",
    "served_bare_ratio": "relative_throughput",
    "served_bare_low": "relative_throughput_low",
    "served_bare_high": "relative_throughput_high",
    "ratio_verdict": "relative_quality",
    "serving_ms": "serving_overhead_ms",
    "floor_ms": "noop_latency_ms",
    "floor_reason": "noop_reason",
    "adapter_ms": "residual_overhead_ms",
    "adapter_low_ms": "residual_overhead_low_ms",
    "adapter_high_ms": "residual_overhead_high_ms",
    "limit": "roofline_bound",
    "limit_share": "roofline_share",
}
QUALITIES = {
    "wide": "imprecise",
    "disturbed": "noisy",
    "few requests": "too few requests",
    "few pairs": "too few pairs",
    "overloaded": "saturated",
}
VALUES = {  # by the field that has them
    "quality": QUALITIES,
    "relative_quality": QUALITIES,
    "budget": {"not known": "unconfirmed"},
    "scenario": {"open loop": "request rate"},
    "metric": {"agreement": "match_rate"},
    "reference": {"framework": "reference"},
}


def renamed_parameters(content: object) -> object:
    """Return the content of a parameter file with the current names of its fields."""
    return _renamed(content, PARAMETERS)


def renamed_result(text: bytes) -> bytes:
    """Return the text of an old or a new `<stage>.json` with the current names."""
    if b'"artefact":' not in text:
        return text
    return json.dumps(_renamed(json.loads(text), FIELDS)).encode()


def _renamed(content: Any, names: dict[str, str]) -> Any:
    if isinstance(content, list):
        return [_renamed(item, names) for item in content]
    if not isinstance(content, dict):
        return content
    renamed = {names.get(key, key): _renamed(value, names) for key, value in content.items()}
    for key, values in VALUES.items() if names is FIELDS else ():
        if key in renamed:
            renamed[key] = values.get(str(renamed[key]), renamed[key])
    return renamed
