"""The report says what the GPU was like before, during and after the measurements."""

from helpers.report.tables import gpu_state
from helpers.results import GpuState, Measurement, Result, Row
from tests.machine.nvml import RECORD


def measured(finished: str, temperature: int, utilisation: float, *changes: str) -> Result:
    record = RECORD | {"temperature_c": temperature}
    state = GpuState(start=record, end=record, changes=changes, load_from=("NVML",))
    row = Row(
        batch_size=1,
        concurrency=1,
        quality="stable",
        gpu_utilisation=utilisation,
        gpu_memory_mb=3500.0,
    )
    measurement = Measurement(rows=(row,), distinct_rows=1, background_before=0.0, gpu=state)
    return Result(
        model="resnet50",
        experiment="a",
        stage="perf_online",
        gpu="NVIDIA T4",
        state="done",
        finished=finished,
        measurement=measurement,
    )


def test_the_report_has_the_gpus_state_before_during_and_after() -> None:
    late = measured("2026-02-02", 70, 0.5, "ecc changed", "and more")
    early = measured("2026-01-01", 30, 0.75)

    said = gpu_state({"late perf_online": late, "early perf_online": early})

    before, after = said["GPU before the first measurement"], said["GPU after the last measurement"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert (before["temperature (°C)"], after["temperature (°C)"]) == (30, 70)
    assert after["sm clock (MHz)"] == 1155
    assert said["GPU under load (lowest to highest mean)"] == {
        "gpu utilisation": "50% to 75%",
        "gpu memory (MB)": "3,500 to 3,500",
    }
    assert said["GPU changes"] == {"late perf_online": "ecc changed; and more"}


def test_on_a_cpu_the_report_has_nothing_of_a_gpu() -> None:
    result = measured("2026-01-01", 30, 0.75)
    assert result.measurement
    on_cpu = result.measurement.model_copy(update={"gpu": None})

    assert gpu_state({"a": result.model_copy(update={"measurement": on_cpu})}) == {}
