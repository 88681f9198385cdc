"""Tables say once what all rows share, and have an interval below its number."""

import re
from html import unescape

import pytest
from pandas import DataFrame

from helpers.display import table


def cells(html, kind):
    """Return the texts of all cells of a kind, a line break as a slash."""
    found = re.findall(rf"<{kind}\b[^>]*>(.*?)</{kind}>", html)
    return [unescape(re.sub(r"<[^>]*>", "", each.replace("<br>", "/"))) for each in found]


def test_what_all_rows_share_is_said_once_in_the_caption():
    rows = DataFrame({"experiment": ["a", "b"], "throughput": [1.5, 2.5]})
    rows = rows.assign(crop_size=64, note="<b>", p99_latency_ms=None)

    shown = table(rows, "Some & rows")

    assert cells(shown.html, "th") == ["experiment", "throughput (samples/s)"]
    assert cells(shown.html, "td") == ["a", "1.50", "b", "2.50"]
    assert cells(shown.html, "caption") == [
        "Some & rows/The same in all rows: crop size: 64; note: <b>. Empty in all rows: p99 "
        "latency (ms)."
    ]
    assert "&lt;b&gt;" in shown.html
    assert 'aria-label="Some &amp; rows"' in shown.html
    assert shown.caption == "Some & rows"


def test_a_quality_of_all_rows_keeps_its_badge_and_its_reason():
    rows = [{"size": size, "quality": "noisy", "reason": "a <b> neighbour"} for size in (1, 2)]

    html = table(rows).html

    assert cells(html, "th") == ["size"]
    said = ["The same in all rows: quality: noisy a <b> neighbour."]
    assert (cells(html, "caption"), "<b>" in html) == (said, False)
    assert html.count('class="quality quality-noisy"') == 1


def test_a_single_row_and_rows_without_a_difference_keep_their_columns():
    assert cells(table([{"a": 1, "b": 2}]).html, "th") == ["a", "b"]
    assert cells(table([{"a": 1, "b": 2}] * 2).html, "td") == ["1", "2"] * 2
    assert cells(table([]).html, "th") == []


def test_an_interval_stands_below_its_number_and_a_missing_one_not_at_all():
    rows = {
        "throughput": [100.0, 200.0],
        "throughput, 95% CI": ["90 to 110", "–"],
        "p99_latency_ms": [5.0, 5.0],
        "p99, 95% CI": ["4 to 6", "needs 299 requests"],
    }

    html = table(DataFrame(rows)).html

    assert cells(html, "th") == ["throughput (samples/s)/95% CI", "p99, 95% CI"]
    assert cells(html, "td") == ["100/90 to 110", "4 to 6", "200", "needs 299 requests"]
    assert "The same in all rows: p99 latency (ms): 5." in html


@pytest.mark.parametrize(
    ("name", "values", "header", "shown"),
    [
        ("throughput", [1203.0, float("nan"), 5.0], "throughput (samples/s)", "1,203 – 5"),
        ("largest_difference", [1.234e-6, 2e-7], "largest difference", "1.23e-06 2e-07"),
        ("p99_latency_ms", [2.126, 69.79], "p99 latency (ms)", "2.13 69.79"),
        ("d", [1.234e-6, 2], "d", "1.2e-06 2.0e+00"),  # with its own format
        # a metric that is almost the reference's is not shown as equal
        ("framework", [1.0, 0.99971], "reference", "1.0000 0.9997"),
        ("served", ["ONNX, FP32", 0.5], "served", "ONNX, FP32 0.5000"),
        ("quality", ["failed", "stable"], "quality", "failed stable"),
        ("batch_sizes", [[1, 2], None], "batch sizes", "1, 2 –"),
        ("max_queue_delay_us", [0.5, 65536.0], "max queue delay (µs)", "0.500 65,536.000"),
        ("graph", [True, False], "graph", "yes no"),
        ("max_batch_size", [65536, 1], "max batch size", "65,536 1"),
    ],
)
def test_a_value_is_shown_with_the_digits_and_the_unit_of_its_column(name, values, header, shown):
    html = table([{name: value} for value in values], formats={"d": ".1e"}).html

    assert cells(html, "th") == [header]
    assert " ".join(cells(html, "td")) == shown


def test_a_configuration_is_a_table_of_keys_and_values():
    html = table({"max_batch_size": 65536, "checkpoint": None, "note": "<b>"}).html

    words = [*cells(html, "th"), *cells(html, "td")]
    assert {"max batch size", "65,536", "–", "<b>"} <= {*words}
