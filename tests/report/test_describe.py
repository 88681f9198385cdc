"""A performance stage says what to notice in its own measurements, and draws them."""

import pytest

from helpers.config import resolve
from helpers.inference import physical_cores
from helpers.report import describe, figures, latency_parts, performance, text
from helpers.results import LATENCY_COMPONENTS
from helpers.results.fingerprints import files_read
from helpers.store import ROOT, file_digest
from tests.report.builders import captions, measurement, stage_frame, stage_rows, texts


def config(**fields):
    return resolve("resnet50", "perf_online").model_copy(update=fields)


def measured(*given):
    return measurement(*stage_rows(*given), server_samples=9)


def compared(ratio, low, high, **more):
    """The columns of a batch size that was compared with in-process, at 100 samples/s."""
    ends = {"relative_throughput_low": low, "relative_throughput_high": high}
    return {"in_process_throughput": 100.0, "relative_throughput": ratio, **ends, **more}


P50, LARGE = {"p50_low_ms": 9.0, "p50_high_ms": 11.0}, {"batch_size": 4, "throughput": 200.0}
LARGE |= {"p50_latency_ms": 12.0}
NEAR = {"p50_low_ms": 10.5, "p50_high_ms": 12.5}
SMALL = compared(0.29, 0.28, 0.3, in_process_throughput=625.0, serving_overhead_ms=3.9)
SMALL |= {"noop_latency_ms": 3.1, "residual_overhead_ms": 0.8, "residual_overhead_low_ms": 0.5}
MANY = compared(0.96, 0.94, 0.98, in_process_throughput=5000.0, serving_overhead_ms=4.2)
MANY |= {"batch_size": 500, "noop_latency_ms": 3.3, "residual_overhead_ms": 0.9}
GAINS = "With batch size 4 throughput is 200 samples/s, 2.00× that with batch size 1. p50 is 12 ms"
CALL = "At batch size 1 an in-process call takes"
NO_OVERHEAD = f"{CALL} 10 ms. There is no measurable serving overhead (throughput"
ADDS = f"{CALL} 1.6 ms, and serving adds 3.9 ms: 29% of the in-process throughput."


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (  # a batch that gains, and one that only takes longer
            [
                {"throughput": 30.0, "p50_latency_ms": 33.3},
                {"batch_size": 4, "throughput": 34.2, "p50_latency_ms": 117.0},
                {"batch_size": 8, "throughput": 34.4, "p50_latency_ms": 233.0},
            ],
            "With batch size 4 throughput is 34.2 samples/s, 14% more than with batch size 1. p50 "
            "is 117 ms instead of 33.3 ms (3.51×). Beyond batch size 4 throughput does not "
            "measurably grow: with batch size 8 it is 34.4 samples/s. p50 is 233 ms instead of 117 "
            "ms (1.99×). With batch size 8 the average latency is 10 ms, 70% of it server "
            "inference.",
        ),
        (
            [{"batch_size": 512, "throughput": 9000}, {"throughput": 300, "p50_latency_ms": 3.0}],
            "With batch size 512 throughput is 9,000 samples/s, 30.00× that with batch size 1. p50 "
            "is 10 ms instead of 3 ms (3.33×). Throughput still grows at batch size 512, the last "
            "with a known throughput.",
        ),
        (  # intervals that overlap
            [
                {"throughput": 30.0},
                {"batch_size": 4, "throughput": 34.0, "throughput_low": 30, "throughput_high": 38},
                {"batch_size": 8, "throughput": 36.0},
            ],
            "With batch size 4 throughput is 34 samples/s, not measurably more than with batch "
            "size 1.",
        ),
        ([P50, LARGE | NEAR], f"{GAINS} instead of 10 ms (1.20×, no clear difference)."),
        ([P50, LARGE | NEAR | {"p50_low_ms": 11.5}], f"{GAINS} instead of 10 ms (1.20×)."),
        ([P50, LARGE], f"{GAINS} instead of 10 ms (1.20×)."),
        (  # where a call is short, serving adds mostly the overhead of the no-op model
            [SMALL, MANY],
            f"{ADDS} The no-op model takes 3.1 ms; the residual overhead is 0.8 ms, copies between "
            "the models of an ensemble included. At batch size 500 an in-process call takes 100 "
            "ms, and serving adds 4.2 ms: 96% of the in-process throughput. With",
        ),
        ([SMALL | {"residual_overhead_low_ms": -1}], f"{ADDS} The no-op model takes 3.1 ms. With"),
        ([SMALL | {"noop_latency_ms": None}], f"{ADDS} With"),
        ([compared(1.03, 1.01, 1.05, serving_overhead_ms=0.1)], f"{NO_OVERHEAD} 103%)."),
        ([compared(0.97, 0.9, 0.98, serving_overhead_ms=-0.3)], f"{NO_OVERHEAD} 97%)."),
        (
            [compared(0.5, None, None, serving_overhead_ms=9.0, noop_latency_ms=1.0)],
            f"{CALL} 10 ms. The serving overhead was 9 ms, from too few pairs of runs for a 95% "
            "CI. With",
        ),
        (  # a repeated batch takes no part, nor does what is not known
            [
                *({"batch_size": 4}, {"batch_size": 512, "throughput": 900.0, "repeated": True}),
                {"batch_size": 8, "throughput": 500.0, "quality": "noisy"},
            ],
            "Only batch size 4 has a known throughput: 100 samples/s. With batch size 4 the",
        ),
        (
            [{"quality": "noisy"}] * 2,
            "No batch size has a known throughput (2 noisy). The table has the reasons.",
        ),
    ],
)
def test_what_an_offline_stage_notices(given, said):
    assert said in " ".join(describe.offline(stage_frame(*given)))


def test_a_changed_sentence_is_a_reason_to_draw_a_report_again_but_not_to_measure():
    files = {"prose/sentences.md.j2", "prose/published.md.j2", "template/answer.html.j2"}
    drawn, measured = files_read("report"), files_read("perf_offline")

    for path in (f"helpers/report/{name}" for name in files):
        assert drawn[path] == file_digest(ROOT / path)
        assert path not in measured
    tables = "helpers/compare/comparison_tables.py"
    assert tables in drawn
    assert tables not in files_read("compare")


# Online


def test_where_throughput_stops_growing_what_the_batcher_did_and_the_budget():
    at = [(1, 20.0, 1.0, 52.0), (4, 42.0, 3.6, 110.0), (16, 42.4, 8.0, 420.0)]
    given = [
        {"concurrency": n, "throughput": rate, "average_batch_size": size, "p99_latency_ms": p99}
        for n, rate, size, p99 in at
    ]

    found = describe.online(stage_frame(*given), config(latency_budget_ms=200.0), True)

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
    unknown = describe.online(stage_frame({"quality": "noisy"}), config(), True)
    assert unknown[0].startswith("No number of clients has a known throughput (1 noisy).")


@pytest.mark.parametrize(("limit", "how"), [(5.0, "over"), (500.0, "within"), (None, "")])
def test_a_batcher_that_joined_nothing_is_told_and_a_budget_that_all_or_none_keep(limit, how):
    same = {"batch_size": 64, "average_batch_size": 64.0, "p99_latency_ms": 50.0}
    given = stage_frame(same, same | {"concurrency": 4})

    found = " ".join(describe.online(given, config(latency_budget_ms=limit), True))

    assert (
        "The average batch size is 64 with 1 client and 64 with 4 clients; that of a request is "
        "64. The batcher joined no requests."
    ) in found
    said = f"p99 is {how} the budget of {limit or 0:g} ms with 1 client (50 ms), 4 clients (50 ms)."
    assert (said in found, "budget" in found) == (bool(limit), bool(limit))


def test_whether_client_and_server_share_the_cores_depends_on_where_the_server_is():
    server = config().server.model_copy(update={"kind": "remote", "url": "10.0.0.5:8000"})
    elsewhere = describe.cores(config(server=server), False)

    here = describe.cores(config(), True)
    assert here.startswith(f"The load generator and the server share the {physical_cores()} core")
    assert "(10.0.0.5:8000), so the load generator takes none of its cores" in elsewhere
    assert "on the GPU" in describe.cores(config(device="gpu"), True)


def test_sentences_are_a_list_in_which_nothing_is_markup():
    assert text.bullets(["a * b", "c"], "What to notice").data == (
        "**What to notice**\n\n- a &#42; b\n- c\n"
    )


# What a notebook shows


def test_several_points_are_drawn_with_their_sentences_as_alternative_text_and_one_is_not(shown):
    offline, online = measured({}, {"batch_size": 4}), measured({}, {"concurrency": 4})

    performance.notice_offline(offline)
    performance.notice_online(online, config(), True)

    sentences = [describe.offline(offline.frame()), describe.online(online.frame(), config(), True)]
    assert [each.alt for each in shown[::2]] == [" ".join(each) for each in sentences]
    assert all(each.data[:4] == b"\x89PNG" for each in shown[::2])
    shown.clear()
    performance.notice_offline(measured({}, {"batch_size": 4, "repeated": True}))
    performance.notice_online(measured({}), config(), True)
    assert [hasattr(each, "alt") for each in shown] == [False] * 2  # the sentences alone


def test_offline_is_compared_with_the_baseline_only_where_there_is_one(shown):
    baseline = {"in_process_throughput": 110.0, "relative_throughput": 0.9, "requests": 20}
    performance.show_offline(measured({"requests": 20}, {"batch_size": 4, "requests": 20}))
    first, conditions = captions(shown)
    shown.clear()
    performance.show_offline(measured(baseline, baseline | {"batch_size": 4}))

    assert (first, conditions) == ("Offline, with 95% CIs", "Conditions of the measurement")
    in_process = "Compared with the same model in-process, without a server"
    assert captions(shown) == [first, in_process, conditions]
    assert shown[-1].html.startswith(f"<details><summary>{conditions}</summary>")
    assert "different samples sent" in shown[-1].html


def test_the_two_modes_are_shown_apart(shown, capsys):
    rate = {"rate": 12.5, "concurrency": 0, "requests": 20}
    both = measured({"concurrency": 4, "requests": 20}, rate)

    performance.show_online(both)
    performance.show_rates(both)

    clients, _, rates = shown
    assert ("12.5" in clients.html, "12.5" in rates.html) == (False, True)
    assert ("Request-rate mode" in rates.caption, capsys.readouterr().out) == (True, "")
    performance.show_rates(measured({"requests": 20}))
    assert "has no `rates`" in capsys.readouterr().out


SERVED = {"relative_throughput": 0.9, "serving_overhead_ms": -1.0, "noop_latency_ms": 0.5}


def test_offline_has_the_serving_overhead_only_where_there_is_an_in_process_baseline():
    with_baseline = figures.offline_panels(stage_frame(SERVED, SERVED | {"batch_size": 4}))
    without = figures.offline_panels(stage_frame({}, {"batch_size": 4}))

    assert [axes.get_ylabel() for axes in with_baseline.axes] == [
        *("throughput (samples/s)", "latency (ms)"),
        *("relative throughput", "time per request (ms)"),
    ]
    assert {axes.get_xlabel() for axes in with_baseline.axes} == {"batch size"}
    assert with_baseline.axes[3].get_ylim()[0] < -1
    assert len(without.axes) == 2


def test_a_panel_with_one_point_has_bars_and_their_legend():
    *_, ratio, overhead = figures.offline_panels(stage_frame(SERVED, {"batch_size": 4})).axes

    assert [bar.get_width() for bar in ratio.patches] == [0.9]
    looks = [(bar.get_width(), bar.get_hatch()) for bar in overhead.patches]
    assert looks == [(-1.0, ""), (0.5, "//")]
    assert texts(overhead.get_legend()) == ["serving overhead", "no-op model"]


def test_online_has_the_budget_as_a_line_and_the_samples_of_a_request():
    given = stage_frame(
        {"batch_size": 16, "average_batch_size": 16.0, "p99_latency_ms": 50.0},
        {"batch_size": 16, "average_batch_size": 40.0, "p99_latency_ms": 90.0, "concurrency": 4},
    )

    latency, batches = figures.online_panels(given, 200.0).axes[1:3]

    def flat(axes):
        ends = (list(line.get_ydata()) for line in axes.get_lines() if len(line.get_ydata()) == 2)
        return [low for low, high in ends if low == high]

    assert 200.0 in flat(latency)
    assert "budget 200 ms" in [text.get_text() for text in latency.texts]
    assert texts(latency.get_legend()) == ["p99", "p50"]
    assert latency.get_ylim()[1] > 200
    assert 16.0 in flat(batches)
    assert 200.0 not in flat(figures.online_panels(given).axes[1])


# A request as a bar


def test_the_parts_of_a_bar_are_those_of_the_mean_latency():
    (axes,) = latency_parts.draw_requests(stage_frame({}, {"batch_size": 4})).axes

    widths = [bar.get_width() for bar in axes.patches]
    assert (len(widths), sum(widths[::2])) == (2 * len(LATENCY_COMPONENTS), pytest.approx(100))
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["batch 1\n10 ms", "batch 4\n10 ms"]
    written = [text.get_text() for text in axes.texts]
    assert written == [*["queue\n2 ms"] * 2, *["inference\n7 ms"] * 2]


def test_a_negative_network_is_drawn_on_the_left_of_nothing():
    rows = stage_frame({"network_server_send_recv_ms": -1.0})
    (axes,) = latency_parts.draw_requests(rows).axes

    assert min(bar.get_x() + bar.get_width() for bar in axes.patches) == pytest.approx(-10)
    assert axes.get_xlim()[0] < -10


def test_without_parts_nothing_is_drawn_and_the_picture_says_its_shares(shown, capsys):
    performance.show_request(measured(dict.fromkeys(LATENCY_COMPONENTS, None)))

    assert shown == []
    assert "no times of single steps" in capsys.readouterr().out
    performance.show_request(measured({"concurrency": 4}))
    (picture,) = shown
    said = "4 clients: 10 ms, of which client send 1%, network 4%, server queue 20%"
    assert said in picture.alt
