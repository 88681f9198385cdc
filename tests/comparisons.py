"""Planted comparisons of experiments."""

from helpers.results import BudgetCheck, ComparedExperiment, Comparison, Estimate


def known(value, relative=0.03):
    """A figure that is known to about ±3%, or as `relative` says."""
    return Estimate(value=value, low=value / (1 + relative), high=value * (1 + relative))


def ratio(value, relative=0.03):
    """A ratio; that to oneself is exact."""
    return Estimate(value=1.0) if value == 1 else known(value, relative)


def check(state="met", p99_ms=55.0, clients=4, requests=1000):
    about = {"state": state, "clients": clients, "requests": requests, "needed": 368}
    return BudgetCheck(**about, p99_latency_ms=p99_ms)


UNCONFIRMED, TOO_SLOW = check("unconfirmed", requests=60), check("not met", 241.0)


def compared(budget_ms=None, budgets=None, **speeds):
    """Experiments of so many times the speed of the first; text is the reason why one has none.

    With 100 samples/s a request takes 10 ms. `budgets` has the check of an experiment.
    """
    top = max((speed for speed in speeds.values() if not isinstance(speed, str)), default=1.0)
    experiments = [
        ComparedExperiment(experiment=name, reason=speed)
        if isinstance(speed, str)
        else ComparedExperiment(
            experiment=name,
            rounds=9,
            throughput=known(100 * speed),
            ratio_to_baseline=ratio(speed),
            ratio_to_fastest=ratio(speed / top),
            p50_latency_ms=known(10 / speed),
            p90_latency_ms=known(11 / speed),
            budgets=tuple(each for owner, each in (budgets or {}).items() if owner == name),
        )
        for name, speed in speeds.items()
    ]
    about = {"baseline": next(iter(speeds)), "clients": 4, "batch_size": 1}
    return Comparison(**about, latency_budget_ms=budget_ms, experiments=tuple(experiments))
