"""The figures of the learning report, as plain Plotly dictionaries.

Invariant: a colour is `colour:N`, `colour:N:OPACITY` or `colour:text`, which the page replaces, light or dark; what
tells curves apart is never colour alone, but dash or symbol too. All text is escaped: Plotly reads HTML in it.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.observe.curves import Curves
from engine.observe.digits import below, is_correlation
from engine.observe.estimates import METHOD, Estimate
from engine.observe.headline import spread

Trace = dict[str, Any]

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_WINDOW = 5
"""Steps of the running mean."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of the page."""

    id: str
    title: str
    caption: str
    y_title: str
    traces: Sequence[Trace]
    y_axis: Mapping[str, Any]
    """Settings of Plotly's y axis beside its title."""
    x_title: str = "optimisation step"
    x_names: Sequence[str] = ()
    """What 1, 2, … of the x axis stand for; empty: for numbers."""

    @property
    def empty(self) -> bool:
        return not any(value is not None for trace in self.traces for value in trace["y"])


def figures(runs: Sequence[Curves]) -> list[Figure]:
    """Those that have something to show; the first run is the one that the report is about."""
    made = [
        _reward(runs),
        _held_out(runs),
        _metric(runs, "entropy", "Entropy of the policy", "nats", ("train/entropy",), _ENTROPY),
        _metric(runs, "kl", "KL divergence from the start of the run", "nats per token", ("loss/kl",), _KL),
        _metric(runs, "clip", "Clipped sequences", "share of sequences", _CLIP, _CLIPPED),
        _metric(runs, "calls", "Tool calls", "share", _CALLS, _VALIDITY),
        _metric(
            runs,
            "correlation",
            "Engine against trainer: correlation",
            "Pearson r",
            ("alignment/pearson_r",),
            _R,
            tickformat=".7f",
            autorangeoptions={"include": [0.9999, 1.000005]},
        ),
        _metric(
            runs, "gap", "Engine against trainer: largest gap", "|Δ log p|, nats", _GAPS, _GAP, type="log", **_POWERS
        ),
        _metric(runs, "tokens", "Tokens sampled and trained", "tokens", ("tokens/sampled", "tokens/trained"), _TOKENS),
        _stages(runs),
        _metric(runs, "parts", "Parts of a step", "seconds", _PARTS, _PART, type="log"),
    ]
    return [figure for figure in made if not figure.empty]


_CLIP = ("clip_fraction/low", "clip_fraction/high")
_CALLS = ("calls/valid", "calls/malformed", "calls/absent", "trials/empty_patch")
_GAPS = ("alignment/max_abs_dlogp", "probe/max_abs_dlogp")
_PARTS = ("time/rollout_s", "time/train_s", "time/sync_s", "time/validation_s")

_POWERS = {"dtick": 1, "exponentformat": "power"}
"""Of a logarithmic axis: one tick each power of ten."""

_ENTROPY = "Mean over the tokens that were sampled, by the trainer's own distribution before the update."
_KL = "Mean over trajectories of the mean over their tokens (k3 estimate), before each update."
_CLIPPED = "Sequences whose gradient the bound takes away, on the low and on the high side."
_VALIDITY = (
    "Of the policy's answers: at least one call and every one can be run; some call cannot (no such tool, arguments no "
    "JSON object); no call at all. Of the trials: nothing was changed in the repository."
)
_R = "Over the probabilities of the same sampled tokens, same weights. 1 is agreement."
_GAP = "Alignment: sampled tokens, before the update. Probe: fixed tokens, after it."
_TOKENS = "They must be equal: every token that the policy sampled for a kept trial is trained once."
_PART = "Rollout with grading; training; moving and checking the weights; validation."


def _reward(runs: Sequence[Curves]) -> Figure:
    traces: list[Trace] = []
    for index, run in enumerate(runs):
        name = html.escape(run.name)
        traces += _band(index, run.training, name)
        means = [None if one is None else one.mean for one in run.training]
        hover = [_hover(step, one) for step, one in enumerate(run.training, 1)]
        look = {"mode": "markers", "marker": {"size": 7, "symbol": _of(_SYMBOLS, index), "color": f"colour:{index}"}}
        traces.append(_trace(means, hover, name, index, look) | {"legendgroup": name})
        running = _running(means)
        hover = [f"step {step}<br>mean of up to {_WINDOW} steps {_text(v, '.3f')}" for step, v in enumerate(running, 1)]
        line = {"mode": "lines", "line": {"width": 2.5, "dash": _of(_DASHES, index), "color": f"colour:{index}"}}
        traces.append(_trace(running, hover, f"{name}, running mean", index, line) | {"legendgroup": name})
    caption = (
        f"Mean over the kept trials of a step, before its update. {METHOD}. Line: running mean of {_WINDOW} steps."
    )
    return Figure(
        id="reward",
        title="Training reward",
        caption=caption,
        y_title="mean reward",
        traces=traces,
        y_axis={"rangemode": "tozero"},
    )


def _held_out(runs: Sequence[Curves]) -> Figure:
    traces = []
    for index, run in enumerate(runs):
        known = [(step, one) for step, one in enumerate(run.validation) if one is not None]
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [one.high - one.mean for _, one in known],
            "arrayminus": [one.mean - one.low for _, one in known],
            "color": f"colour:{index}",
            "thickness": 1.2,
        }
        trace = _trace(
            [one.mean for _, one in known],
            [_hover(step, one) for step, one in known],
            html.escape(run.name),
            index,
            _look(index, index, index),
        )
        traces.append(trace | {"x": [step for step, _ in known], "error_y": bars})
    return Figure(
        id="held-out",
        title="Held-out tasks",
        caption=f"Mean over the validation trials after so many steps; 0: before the first. {METHOD}.",
        y_title="solve rate (mean reward)",
        traces=traces,
        y_axis={"rangemode": "tozero"},
    )


def _metric(
    runs: Sequence[Curves], id_: str, title: str, unit: str, names: Sequence[str], caption: str, **y_axis: Any
) -> Figure:
    """A curve per run and metric: the run gives colour and symbol, the metric the dash; of one run the metric all."""
    traces = []
    for index, run in enumerate(runs):
        for line, name in enumerate(names):
            values = run.series(name)
            if all(value is None for value in values):
                continue
            hover = [f"step {step}<br>{name} {_value(name, value)}" for step, value in enumerate(values, 1)]
            label = html.escape(run.name) if len(names) == 1 else f"{html.escape(run.name)}: {name}"
            look = _look(index, index, index if len(names) == 1 else line)
            if len(runs) == 1:
                label, look = name, _look(line, line, line)
            traces.append(_trace(values, hover, label, index, look))
    return Figure(id=id_, title=title, caption=caption, y_title=unit, traces=traces, y_axis=y_axis)


def _stages(runs: Sequence[Curves]) -> Figure:
    """Medians with a whisker up to the 90th percentile; the stage gives colour and symbol, the run the dash.

    Other runs' wait in the legend: all at once would hide each other."""
    traces = []
    names = sorted({name for run in runs for name in run.metrics() if name.startswith("stages/")})
    stages = [name.removeprefix("stages/").removesuffix("_p50_s") for name in names if name.endswith("_p50_s")]
    for index, run in enumerate(runs):
        for line, stage in enumerate(stages):
            middle, upper = run.series(f"stages/{stage}_p50_s"), run.series(f"stages/{stage}_p90_s")
            if all(value is None for value in middle):
                continue
            hover = [
                f"step {step}<br>{html.escape(stage)} p50 {_text(low, '.3f')} s, p90 {_text(high, '.3f')} s"
                for step, (low, high) in enumerate(zip(middle, upper, strict=True), 1)
            ]
            label = html.escape(stage if len(runs) == 1 else f"{run.name}: {stage}")
            look = _look(line, line, line if len(runs) == 1 else index)
            gaps = [
                0.0 if None in (a, b) else float(b or 0) - float(a or 0) for a, b in zip(middle, upper, strict=True)
            ]
            whisker = {"type": "data", "symmetric": False, "array": gaps, "arrayminus": [0.0] * len(gaps)}
            trace = _trace(middle, hover, label, index, look)
            trace |= {"error_y": whisker | {"color": f"colour:{line}", "thickness": 1}}
            traces.append(trace if index == 0 else trace | {"visible": "legendonly"})
    return Figure(
        id="stages",
        title="Stages of a trial",
        caption="Median, with a whisker up to the 90th percentile, over the trials of a step. "
        "`first_request`: from the harness's start to its first call of the model."
        + (" Other runs: click in the legend." if len(runs) > 1 else ""),
        y_title="seconds",
        traces=traces,
        y_axis={"type": "log"},
    )


def _band(index: int, estimates: Sequence[Estimate | None], group: str) -> Iterator[Trace]:
    """The interval as a shaded area, whose two edges are traces of their own."""
    for edge in ("low", "high"):
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": list(range(1, len(estimates) + 1)),
            "y": [None if one is None else getattr(one, edge) for one in estimates],
            "line": {"width": 0, "color": f"colour:{index}"},
            "hoverinfo": "skip",
            "showlegend": False,
            "legendgroup": group,
            **({"fill": "tonexty", "fillcolor": f"colour:{index}:0.15"} if edge == "high" else {}),
        }


def _trace(y: Sequence[float | None], hover: Sequence[str], name: str, run: int, look: Mapping[str, Any]) -> Trace:
    return {
        "type": "scatter",
        "x": list(range(1, len(y) + 1)),
        "y": list(y),
        "name": name,
        "text": list(hover),
        "hovertemplate": f"%{{text}}<extra>{name}</extra>",
        "meta": {"run": run},
        **look,
    }


def _look(colour: int, symbol: int, dash: int) -> dict[str, Any]:
    return {
        "mode": "lines+markers",
        "line": {"width": 2, "dash": _of(_DASHES, dash), "color": f"colour:{colour}"},
        "marker": {"size": 6, "symbol": _of(_SYMBOLS, symbol), "color": f"colour:{colour}"},
    }


def _of(choices: Sequence[str], index: int) -> str:
    return choices[index % len(choices)]


def _hover(step: int, one: Estimate | None) -> str:
    return f"step {step}" if one is None else f"step {step}<br>{spread(one)}"


def _value(metric: str, value: float | None) -> str:
    return below(value, 7) if value is not None and is_correlation(metric) else _text(value, ".7g")


def _text(value: float | None, form: str) -> str:
    return "not defined" if value is None else format(value, form)


def _running(values: Sequence[float | None]) -> list[float | None]:
    """Mean of each value and up to four before it, where they are defined."""
    result: list[float | None] = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - _WINDOW) : end] if value is not None]
        result.append(sum(known) / len(known) if known else None)
    return result
