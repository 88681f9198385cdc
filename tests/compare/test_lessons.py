"""What lessons compare, and what they say of figures: no difference that is not known is stated."""

import re
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest

from helpers import compare as lessons
from helpers.compare import variants
from helpers.compare.findings import frame
from helpers.compare.lesson_chart import in_words
from helpers.config import resolve
from helpers.errors import ArtifactError
from helpers.measure import Point, measure_interleaved
from helpers.measure.rows import Window, measure_row


def config(lesson, **overrides):
    return resolve("resnet50", lesson, overrides=overrides)


def test_the_batchers_differ_in_nothing_but_the_batcher():
    none, *others = lessons.batchers(config("dynamic_batching", threads=2))

    assert [none.scenario, *{each.scenario for each in others}] == ["offline", "online"]
    assert [each.name for each in others] == [
        *("delay 0 ms", "delay 1 ms", "delay 10 ms"),
        *("delay 1 ms, prefers 4 and 8", "delay 10 ms, prefers 4 and 8"),
    ]
    own, given = {"max_queue_delay_us", "preferred_batch_sizes"}, none.config.model_dump()
    for each in others:
        assert each.config.model_dump(exclude=own).items() <= given.items()
    table = lessons.described([none, *others], "max_queue_delay_us", "preferred_batch_sizes")
    assert [row["max_queue_delay_us"] for row in table] == [None, 0, 1000, 10_000, 1000, 10_000]
    assert [row["preferred_batch_sizes"] for row in table] == [None, [], [], [], [4, 8], [4, 8]]


def test_without_a_batcher_there_are_as_many_instances_and_threads_as_with_one():
    given = {"instances": {"offline": 1, "online": 2}}

    none, other, *_ = lessons.batchers(config("dynamic_batching", **given))

    assert none.config.instances.offline == other.config.instances.online == 2
    assert none.config.threads == other.config.threads > 0


@pytest.mark.parametrize(
    ("cores", "pairs"),
    [
        (1, [(1, 1), (2, 1)]),
        (2, [(1, 1), (1, 2), (2, 1), (2, 2)]),
        (8, [(1, 1), (1, 8), (2, 4), (2, 8)]),
    ],
)
def test_instances_share_the_cores_in_each_way(cores, pairs, monkeypatch):
    monkeypatch.setattr(variants, "physical_cores", lambda: cores)

    found = lessons.sharings(config("instances"))

    assert [(each.config.instances.online, each.config.threads) for each in found] == pairs
    for pair, each in zip(pairs, found, strict=True):
        assert re.findall(r"\d+", each.name) == [str(count) for count in pair]
    assert found[0].name == "1 instance × 1 thread"
    assert found[-1].name.startswith("2 instances × ")


def test_precisions_are_those_of_one_format_and_the_others_have_a_reason():
    found, left = lessons.precisions(config("precision"))

    assert [each.config.precision for each in found] == ["fp32", "bf16", "int8"]
    assert {each.config.format for each in found} == {"openvino"}
    for each in found[:2]:  # shared with an experiment
        own = resolve("resnet50", "convert", experiment=f"openvino-{each.config.precision}")
        assert each.config.key("convert") == own.key("convert")
    assert left == {"fp16": "openvino does not support fp16 on a cpu. Use one of fp32, bf16, int8."}


def test_both_protocols_are_compared_with_and_without_shared_memory():
    found = lessons.protocols(config("protocol"))

    assert [(each.name, each.config.protocol, each.config.shared_memory) for each in found] == [
        ("HTTP", "http", "none"),
        ("HTTP with shared memory", "http", "system"),
        ("gRPC", "grpc", "none"),
        ("gRPC with shared memory", "grpc", "system"),
    ]


def test_what_is_said_of_protocols_is_what_was_measured():
    names = ("HTTP", "HTTP with shared memory", "gRPC", "gRPC with shared memory")
    speeds = dict(zip(names, (40, 50, 44, 50), strict=True))

    found = lessons.notice_protocol(
        [point(name, count, speeds[name]) for count in (1, 4) for name in names]
    )

    assert found[0].startswith("1 client: p50 is 25")
    assert "ms with HTTP and 22.7 ms with gRPC: 0.9" in found[0]
    assert found[1].endswith(", no measurable difference.")
    assert found[4].startswith("4 clients: gRPC has 1.1")
    assert "no measurable difference between gRPC with shared memory and HTTP with" in found[5]


@pytest.mark.parametrize(
    ("largest", "size", "most"), [(8, 1, 8), (8, 4, 2), (1, 1, 2), (64, 1, 16)]
)
def test_many_clients_fill_the_largest_batch(largest, size, most):
    sizes = {"max_batch_size": largest, "online_batch_size": size, "preferred_batch_sizes": []}

    assert lessons.clients(config("instances", **sizes)) == (1, most)


def test_a_lesson_without_the_model_names_the_command_that_makes_it():
    command = "triton-notebooks run params/cpu.yaml --model resnet50 --experiment onnx-fp32"

    with pytest.raises(ArtifactError, match=f"no convert result yet. Run: {command} --stage con"):
        measure_interleaved(lessons.sharings(config("instances")), (1, 2))
    with pytest.raises(ArtifactError, match=f"no export result yet. Run: {command} --stage exp"):
        lessons.compare_precisions(lessons.precisions(config("precision"))[0])


def point(variant, clients, throughput, noise=0.01):
    """Four rounds of clients that answer as fast as the throughput says."""
    random = np.random.default_rng(seed := crc32(f"{variant} {clients} {throughput}".encode()))
    windows = []
    for _ in range(4):
        spent = 1e9 * clients / throughput * random.lognormal(0, noise, 40)
        ends = np.sort(np.cumsum(spent) / clients + spent.mean())
        times = np.stack([ends - spent, ends], axis=1).astype(np.int64)
        windows.append(Window(times, 1, clients, average_batch_size=min(clients, 2.5)))
    row = measure_row(windows, 20, 0.1, 2, figures={"server_peak_memory_mb": 400.0})
    rates = throughput * (1 + noise * np.resize([1, -1] if seed % 2 else [-1, 1], 4))
    return Point(variant, row, tuple(rates), tuple(1000 * clients / rates))


def batching():
    alone = {"no batcher": 40, "delay 0 ms": 40, "delay 1 ms": 38, "delay 10 ms": 30}
    alone |= {"delay 1 ms, prefers 4": 38, "delay 10 ms, prefers 4": 30}
    many = dict.fromkeys(alone, 60.0) | {"no batcher": 40.0}
    return [point(name, n, of[name]) for n, of in ((1, alone), (4, many)) for name in of]


def test_what_is_said_of_the_batcher_is_what_was_measured():
    found = lessons.notice_batching(batching())

    words = (
        r"1 client, so there is nothing to batch: p50 is (\S+) ms with delay 0 ms and (\S+) ms "
        r"with delay 10 ms: 1\.33× \(95% CI \S+ to \S+\)\.$"
    )
    said = re.match(words, found[0]).groups()
    assert [*map(float, said)] == pytest.approx([25, 33.3], rel=0.02)
    assert found[1].endswith("2.5 with delay 10 ms; 2.5 with delay 10 ms, prefers 4.")
    assert "delay 0 ms has 1.5" in found[2]
    assert ") the throughput of no batcher." in found[2]
    assert "no measurable difference between delay 10 ms and delay 0 ms" in found[3]
    assert ", no measurable difference" in found[4]
    assert found[5] == ("Other processes used 0.00 CPU cores. 12 of 12 measurements are stable.")


def test_a_row_that_is_not_stable_is_told_with_its_reason():
    points = batching()
    doubted = points[3].row.model_copy(update={"quality": "imprecise", "reason": "too few"})
    points[3] = replace(points[3], row=doubted)

    assert lessons.notice_batching(points)[-1].endswith(
        "11 of 12 measurements are stable. For example, delay 10 ms with 1 client is imprecise "
        "(too few)."
    )


def test_a_difference_within_the_noise_is_not_measurable():
    quiet = [point(name, count, rate) for count in (1, 4) for name, rate in (("a", 40), ("b", 44))]
    noisy = [
        replace(each, throughputs=np.multiply(each.throughputs, noise))
        for each, noise in zip(quiet, [(1, 1, 1, 1), (1, 1.5, 0.6, 1.2)] * 2, strict=True)
    ]

    assert "b has 1.1" in lessons.notice_precision(quiet)[0]
    assert "no measurable difference between b and a" in lessons.notice_precision(noisy)[0]
    assert "no measurable difference" in lessons.headline(noisy)


def test_the_headline_is_the_fastest_with_many_clients():
    points = [point("a", 1, 90), point("b", 1, 50), point("a", 4, 40), point("b", 4, 80)]

    assert lessons.headline(points).startswith("4 clients: b has ")
    first = [point("a", 1, 50), point("b", 1, 90), point("a", 4, 80), point("b", 4, 40)]
    assert lessons.headline(first) == "4 clients: none was faster than a"


def test_a_table_has_each_figure_with_its_interval_and_a_chart_says_its_ends():
    points = batching()

    shown = lessons.shown(points)

    ratios = [*zip(shown["configuration"], shown["throughput relative to the first"], strict=True)]
    assert (len(ratios), ratios[0]) == (12, ("no batcher", "1.00×"))
    assert ratios[7][1].startswith("1.5")
    alt = in_words(frame(points))
    assert alt.startswith("With 1 client p50 latency is ")
    assert "(no batcher)" in alt.partition("with 4 clients")[2]
    assert len(lessons.facts(points)["points"]) == 12


def test_instances_name_the_memory_of_more_copies():
    names = ("one by one", "one by two", "two by one", "two by two")
    points = [point(name, count, 40) for count in (1, 4) for name in names]

    found = lessons.notice_instances(points)

    assert "Peak memory of the server: 400 MB with one by one, 400 MB with two by two." in found
    assert any(re.match("4 clients: .*two by one and one by two", line) for line in found)
    assert sum(line.startswith("1 client: p50 is") for line in found) == 3
