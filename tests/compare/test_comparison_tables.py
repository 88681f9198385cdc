"""The tables and the chart of a comparison."""

from helpers.compare import comparison_headline, show_budgets, show_latencies, show_ratios
from helpers.compare.comparison_tables import draw_ratios
from tests.comparisons import TOO_SLOW, UNCONFIRMED, check, compared, known
from tests.report.conftest import shown as shown  # the fixture


def test_ratios_are_drawn_and_a_table_has_only_what_is_known(shown):
    show_ratios([compared(plain=1.0, int8=3.6, lost="its <server> died")])

    image, table = shown
    assert image.alt == (
        "Throughput compared with plain: int8 3.60× (95% CI 3.50 to 3.71); plain 1.00×."
    )
    assert table.caption == "Interleaved rounds (4 clients, batch size 1), with 95% CIs"
    for text in ("3.60 (3.50 to 3.71)", "ratio to the fastest", "its &lt;server&gt; died"):
        assert text in table.html
    assert not any(text in table.html for text in ("cost", "joules", "memory"))
    show_ratios([compared(plain="died", other="died too")])
    assert "died too" in shown[2].html  # without a chart


def test_cost_energy_and_memory_are_shown_where_they_are_known(shown):
    found = compared(plain=1.0)
    more = {"cost_per_million": known(2.5, 0.1), "joules_per_inference": 0.25}
    one = found.experiments[0].model_copy(update=more | {"server_peak_memory_mb": 512.0})

    show_ratios([found.model_copy(update={"experiments": (one,)})])

    for text in ("2.5 (2.27 to 2.75)", "joules per inference", "0.250", "512"):
        assert text in shown[-1].html


def test_groups_and_the_load_of_others_are_told_below_the_chart(shown):
    found = compared(plain=1.0)
    busy = found.experiments[0].model_copy(update={"background_cpu_cores": 0.5})
    about = {"groups": 2, "workload": "traffic", "experiments": (busy,)}
    show_ratios([found.model_copy(update=about)])

    assert shown[-1].caption == (
        "traffic: Interleaved rounds (4 clients, batch size 1), with 95% CIs. Memory was too small "
        "for all servers at once: they ran in 2 groups, and ratios between groups go through "
        "plain. "
        "Other processes used up to 0.5 cores. Where the rounds show what this costs, ratios are "
        "without it; throughputs are as measured"
    )


def test_latencies_of_single_requests_have_intervals(shown):
    show_latencies([compared(plain=1.0, lost="died")])

    (table,) = shown
    assert table.html.count("10 (9.71 to 10.3)") == table.html.count("11 (10.7 to 11.3)") == 1


def test_each_budget_check_is_a_row_and_none_is_not_measured(shown, capsys):
    budgets = {"plain": TOO_SLOW, "int8": UNCONFIRMED, "half": check()}
    show_budgets([compared(200, budgets, plain=1.0, int8=3.0, half=2.0, other=0.5)])

    (table,) = shown
    assert table.caption == "Latency budget of 200 ms at p99, with 95% confidence"
    for text in (
        "too slow: p99 is 241 ms with 4 clients",
        "not confirmed: 60 of 368 requests with 4 clients",
        "p99 is 55 ms with 4 clients: within the budget of 200 ms",
        "not measured",
    ):
        assert table.html.count(text) == 1
    show_budgets([compared(plain=1.0)])
    assert capsys.readouterr().out == "No budget was measured: latency_budget_ms is not set.\n"


def test_the_baseline_and_what_is_recommended_are_in_the_chart():
    (axes,) = draw_ratios(compared(plain=1.0, int8=3.6, lost="died")).axes

    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["plain", "int8"]
    assert [bar.get_width() for bar in axes.patches] == [1.0, 3.6]
    colours = [bar.get_facecolor() for bar in axes.patches]
    assert colours[0] != colours[1]


def test_the_headline_names_every_workload_and_rivals():
    first = compared(a=1.0, b=0.98).model_copy(update={"workload": "small"})

    assert comparison_headline([first, compared(c=1.0)]) == (
        "small: Deploy a: no other experiment is known to be faster. No significant difference "
        "from b | Deploy c: no other experiment was measured"
    )
    assert comparison_headline([]) == "Not measured"
