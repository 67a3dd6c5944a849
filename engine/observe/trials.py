"""Metrics of a step's trials: whether the policy speaks the harness's language, and what a trial costs.

Invariant: a function of the trials alone. What is said of the policy counts kept trials only, as training does; stage
times count every trial that was brought to its end.
"""

from collections.abc import Iterator, Sequence

from engine.core.records import Exchange, Scored, Trajectory
from engine.observe.atif.calls import READ, read_calls
from engine.observe.atif.threads import threads
from engine.observe.summary import quantiles
from engine.wire.recorded import calls_made, can_run, tools_offered


def trial_metrics(scored: Sequence[Scored]) -> dict[str, float]:
    """Flat metrics of the last attempts of a step's trials; what is not defined (no kept trial) is left out."""
    kept = [one.trajectory for one in scored if one.verdict is not None]
    metrics: dict[str, float] = {}
    if kept:
        answers = [[x for x in trajectory.exchanges if _answered(x)] for trajectory in kept]
        empty = sum(1 for trajectory in kept if trajectory.patch is None or trajectory.patch.empty)
        metrics |= {
            "trials/turns": sum(map(len, answers)) / len(kept),
            "trials/empty_patch": empty / len(kept),
            **_calls([exchange for some in answers for exchange in some]),
            **_parts(kept),
        }
    return metrics | dict(_stages(scored))


def _answered(exchange: Exchange) -> bool:
    """A turn of the policy's that reached the harness."""
    return exchange.kind == "policy" and bool(exchange.response)


def _calls(answers: Sequence[Exchange]) -> dict[str, float]:
    """Shares of the answers to requests that offered tools; empty where none did (a harness of plain text)."""
    total = valid = absent = 0
    for exchange in answers:
        offered = tools_offered(exchange.protocol, exchange.request)
        if not offered:
            continue
        calls = calls_made(exchange.protocol, exchange.response)
        total += 1
        absent += not calls
        valid += bool(calls) and all(can_run(call, offered) for call in calls)
    if not total:
        return {}
    return {
        "calls/valid": valid / total,
        "calls/malformed": (total - valid - absent) / total,
        "calls/absent": absent / total,
    }


def _parts(kept: Sequence[Trajectory]) -> dict[str, float]:
    """Means over the trials; a conversation without a branch has neither."""
    branched = [one for one in kept if len(one.segments) > 1]
    kinds = [
        part.kind
        for one in branched
        for part in threads(read_calls([{name: getattr(x, name) for name in READ} for x in one.exchanges]))
    ]
    return {
        "trials/compactions": kinds.count("continuation") / len(kept),
        "trials/sub_agents": kinds.count("sub_agent") / len(kept),
    }


def _stages(scored: Sequence[Scored]) -> Iterator[tuple[str, float]]:
    seconds: dict[str, list[float]] = {}
    for one in scored:
        for name, value in one.trajectory.timings.items():
            seconds.setdefault(name, []).append(value)
    for name, values in sorted(seconds.items()):
        for quantile, value in quantiles(values).items():
            yield f"stages/{name}_{quantile}_s", value
