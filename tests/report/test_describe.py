"""A performance stage says what to notice in its own measurements, and draws them."""

from typing import Any

import pytest
from pandas import DataFrame

from helpers.config import OnlineConfig, resolve
from helpers.inference import physical_cores
from helpers.report import describe, figures, performance, recommend, text
from helpers.results import LATENCY_COMPONENTS, Measurement, Row
from helpers.results.fingerprints import files_read
from helpers.store import ROOT, file_digest

PARTS = dict(zip(LATENCY_COMPONENTS, (0.1, 0.4, 2.0, 0.1, 7.0, 0.2, 0.2), strict=True))


def rows(*given: dict[str, Any]) -> DataFrame:
    """Rows that are stable and known to ±2% unless they say otherwise."""
    found = []
    for fields in given:
        throughput = fields.get("throughput", 100.0)
        usual = {
            "batch_size": 1,
            "concurrency": 1,
            "quality": "stable",
            "throughput": throughput,
            "throughput_low": throughput * 0.98,
            "throughput_high": throughput * 1.02,
            "p50_latency_ms": 10.0,
            "avg_latency_ms": 10.0,
            **PARTS,
        }
        found.append(Row.model_validate(usual | fields).model_dump())
    return DataFrame(found, columns=list(Row.model_fields))


def config(**fields: Any) -> OnlineConfig:
    found = resolve("resnet50", "perf_online")
    assert isinstance(found, OnlineConfig)
    return found.model_copy(update=fields)


# Offline


def test_a_batch_that_gains_and_one_that_only_takes_longer() -> None:
    found = describe.offline(
        rows(
            {"batch_size": 1, "throughput": 30.0, "p50_latency_ms": 33.3},
            {"batch_size": 4, "throughput": 34.2, "p50_latency_ms": 117.0},
            {"batch_size": 8, "throughput": 34.4, "p50_latency_ms": 233.0},
        )
    )

    assert found == [
        "With batch size 4 throughput is 34.2 samples/s, 14% more than with batch size 1. p50 is "
        "117 ms instead of 33.3 ms (3.51×).",
        "Beyond batch size 4 throughput does not measurably grow: with batch size 8 it is 34.4 "
        "samples/s. p50 is 233 ms instead of 117 ms (1.99×).",
        "With batch size 8 the average latency is 10 ms, 70% of it server inference.",
    ]


def test_throughput_that_still_grows_says_so() -> None:
    found = describe.offline(
        rows(
            {"batch_size": 512, "throughput": 9000.0},
            {"batch_size": 1, "throughput": 300.0, "p50_latency_ms": 3.0},
        )
    )

    assert found[:2] == [
        "With batch size 512 throughput is 9,000 samples/s, 30.00× that with batch size 1. p50 is "
        "10 ms instead of 3 ms (3.33×).",
        "Throughput still grows at batch size 512, the last with a known throughput.",
    ]


def test_a_growth_whose_intervals_overlap_is_not_measurable() -> None:
    wide = {"batch_size": 4, "throughput": 34.0, "throughput_low": 30.0, "throughput_high": 38.0}

    found = describe.offline(
        rows({"throughput": 30.0}, wide, {"batch_size": 8, "throughput": 36.0})
    )

    assert found[0].startswith(
        "With batch size 4 throughput is 34 samples/s, not measurably more th"
    )


def test_why_a_small_batch_is_far_from_in_process_is_computed() -> None:
    """A call is short there, and what serving adds is mostly the overhead of the no-op model."""
    small = {
        "in_process_throughput": 625.0,
        "relative_throughput": 0.29,
        "serving_overhead_ms": 3.9,
    }
    small |= {"noop_latency_ms": 3.1, "residual_overhead_ms": 0.8, "residual_overhead_low_ms": 0.5}
    large = {"batch_size": 500, "in_process_throughput": 5000.0, "relative_throughput": 0.96}

    found = describe.offline(
        rows(
            small,
            large
            | {"serving_overhead_ms": 4.2, "noop_latency_ms": 3.3, "residual_overhead_ms": 0.9},
        )
    )

    assert found[1:3] == [
        "At batch size 1 an in-process call takes 1.6 ms, and serving adds 3.9 ms: 29% of the "
        "in-process throughput. The no-op model takes 3.1 ms; the residual overhead is 0.8 ms, "
        "copies between the models of an ensemble included.",
        "At batch size 500 an in-process call takes 100 ms, and serving adds 4.2 ms: 96% of the "
        "in-process throughput.",
    ]
    (line,) = describe.offline(rows(small | {"residual_overhead_low_ms": -0.1}))[1:2]
    assert line.endswith("The no-op model takes 3.1 ms.")


def test_without_a_no_op_model_only_what_serving_adds_is_said() -> None:
    """Only the embedded server has one."""
    (line,) = [
        each
        for each in describe.offline(
            rows(
                {
                    "in_process_throughput": 100.0,
                    "relative_throughput": 0.9,
                    "serving_overhead_ms": 1.1,
                }
            )
        )
        if "in-process" in each
    ]

    assert line.endswith("serving adds 1.1 ms: 90% of the in-process throughput.")


@pytest.mark.parametrize(
    ("ratio", "added_ms", "ends"), [(1.01, -0.1, (None, None)), (0.97, 0.3, (0.9, 1.04))]
)
def test_where_serving_adds_nothing_measurable_it_says_so(
    ratio: float, added_ms: float, ends: tuple[float | None, float | None]
) -> None:
    found = describe.offline(
        rows(
            {
                "in_process_throughput": 100.0,
                "relative_throughput": ratio,
                "relative_throughput_low": ends[0],
                "relative_throughput_high": ends[1],
                "serving_overhead_ms": added_ms,
            }
        )
    )

    assert found[1] == (
        "At batch size 1 an in-process call takes 10 ms. There is no measurable serving overhead "
        f"(throughput {ratio:.0%})."
    )


def test_a_repeated_batch_and_rows_that_are_not_known_take_no_part() -> None:
    known, repeated = {"batch_size": 4}, {"batch_size": 512, "throughput": 900.0, "repeated": True}
    noisy = {"batch_size": 8, "throughput": 500.0, "quality": "noisy"}

    found = describe.offline(rows(known, repeated, noisy))

    assert found[0].startswith("Only batch size 4 has a known throughput: 100 samples/s.")
    assert describe.offline(rows(noisy, noisy)) == [
        "No batch size has a known throughput (2 noisy). The table has the reasons."
    ]


def test_a_changed_sentence_is_a_reason_to_draw_a_report_again_but_not_to_measure() -> None:
    assert recommend  # it is loaded
    files = {"prose/sentences.md.j2", "prose/published.md.j2", "template/cards.html.j2"}

    drawn, measured = files_read("report"), files_read("perf_offline")

    for name in files:
        path = f"helpers/report/{name}"
        assert drawn[path] == file_digest(ROOT / path)
        assert path not in measured


# Online


def test_where_throughput_stops_growing_what_the_batcher_did_and_the_budget() -> None:
    at = [(1, 20.0, 1.0, 52.0), (4, 42.0, 3.6, 110.0), (16, 42.4, 8.0, 420.0)]
    given = [
        {"concurrency": n, "throughput": rate, "average_batch_size": size, "p99_latency_ms": p99}
        for n, rate, size, p99 in at
    ]

    found = describe.online(rows(*given), config(latency_budget_ms=200.0), True)

    assert found == [
        "With 4 clients throughput is 42 samples/s, 2.10× that with 1 client. p50 is 10 ms instead "
        "of 10 ms (1.00×).",
        "Beyond 4 clients throughput does not measurably grow: with 16 clients it is 42.4 "
        "samples/s. p50 is 10 ms instead of 10 ms (1.00×).",
        "The average batch size is 1 with 1 client and 8 with 16 clients; that of a request is 1.",
        "With 16 clients the average latency is 10 ms, 70% of it server inference.",
        "The measured p99 is within the budget of 200 ms with 1 client (52 ms), 4 clients (110 "
        "ms), and over it with 16 clients (420 ms). The report shows what is confirmed with 95% "
        "confidence.",
        describe.cores(config(), True),
    ]


def test_a_batcher_that_joined_nothing_is_told() -> None:
    given = [{"concurrency": n, "batch_size": 64, "average_batch_size": 64.0} for n in (1, 4)]

    found = describe.online(rows(*given), config(latency_budget_ms=None), True)

    assert (
        "The average batch size is 64 with 1 client and 64 with 4 clients; that of a request is "
        "64. The batcher joined no requests."
    ) in found
    assert not any("budget" in line for line in found)


@pytest.mark.parametrize("limit", [5.0, 500.0])
def test_a_budget_that_all_or_none_keep(limit: float) -> None:
    given = [{"concurrency": n, "p99_latency_ms": 50.0} for n in (1, 4)]

    (line,) = [
        each
        for each in describe.online(rows(*given), config(latency_budget_ms=limit), True)
        if "p99" in each
    ]

    how = "within" if limit > 50 else "over"
    said = f"is {how} the budget of {limit:g} ms with 1 client (50 ms), 4 clients (50 ms). "
    assert line.startswith(f"The measured p99 {said}")


def test_whether_client_and_server_share_the_cores_depends_on_where_the_server_is() -> None:
    here = describe.cores(config(), True)
    server = config().server.model_copy(update={"kind": "remote", "url": "10.0.0.5:8000"})
    elsewhere = describe.cores(config(server=server), False)

    count = physical_cores()
    assert here.startswith(f"The load generator and the server share the {count} core")
    assert "the load generator takes none of its cores" in elsewhere
    assert "10.0.0.5:8000" in elsewhere
    assert "on the GPU" in describe.cores(config(device="gpu"), True)


def test_sentences_are_a_list_in_which_nothing_is_markup() -> None:
    assert text.bullets(["a * b", "c"], "What to notice").data == (  # type: ignore[attr-defined]
        "**What to notice**\n\n- a &#42; b\n- c\n"
    )


# Figures


def measurement(*given: dict[str, Any]) -> Measurement:
    frame = rows(*given)
    every = frame.astype(object).where(frame.notna(), None).to_dict("records")
    made = [Row.model_validate(each) for each in every]
    return Measurement(rows=tuple(made), distinct_rows=8, background_before=0.1, server_samples=9)


def test_one_point_is_not_drawn(shown: list[Any]) -> None:
    performance.notice_offline(measurement({}))
    performance.notice_online(measurement({}), config(), True)
    performance.notice_offline(measurement({}, {"batch_size": 4, "repeated": True}))

    assert [hasattr(each, "alt") for each in shown] == [False] * 3  # the sentences alone


def test_several_are_with_their_sentences_as_alternative_text(shown: list[Any]) -> None:
    offline, online = measurement({}, {"batch_size": 4}), measurement({}, {"concurrency": 4})

    performance.notice_offline(offline)
    performance.notice_online(online, config(), True)

    sentences = [
        describe.offline(offline.frame()),
        describe.online(online.frame(), config(), True),
    ]
    assert [each.alt for each in shown[::2]] == [" ".join(each) for each in sentences]
    assert all(each.data[:4] == b"\x89PNG" for each in shown[::2])


def test_offline_has_the_serving_overhead_only_where_there_is_an_in_process_baseline() -> None:
    served = {"relative_throughput": 0.9, "serving_overhead_ms": -1.0, "noop_latency_ms": 0.5}
    compared = figures.offline_panels(rows(served, served | {"batch_size": 4}))
    without = figures.offline_panels(rows({}, {"batch_size": 4}))

    labels = [axes.get_ylabel() for axes in compared.axes]
    assert labels == [
        "throughput (samples/s)",
        "latency (ms)",
        "relative throughput",
        "time per request (ms)",
    ]
    assert {axes.get_xlabel() for axes in compared.axes} == {"batch size"}
    assert compared.axes[3].get_ylim()[0] < -1
    assert len(without.axes) == 2


def test_online_has_the_budget_as_a_line_and_the_samples_of_a_request() -> None:
    given = rows(
        {"batch_size": 16, "average_batch_size": 16.0, "p99_latency_ms": 50.0},
        {"batch_size": 16, "average_batch_size": 40.0, "p99_latency_ms": 90.0, "concurrency": 4},
    )

    latency, batches = figures.online_panels(given, 200.0).axes[1:3]

    def flat(axes: Any) -> list[float]:
        ends = (list(line.get_ydata()) for line in axes.get_lines() if len(line.get_ydata()) == 2)
        return [low for low, high in ends if low == high and len({low, high}) == 1]

    assert 200.0 in flat(latency)
    assert "budget 200 ms" in [text.get_text() for text in latency.texts]
    assert [text.get_text() for text in latency.get_legend().get_texts()] == ["p99", "p50"]
    assert latency.get_ylim()[1] > 200
    assert 16.0 in flat(batches)
    assert 200.0 not in flat(figures.online_panels(given).axes[1])
