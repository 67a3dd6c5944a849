"""How a correlation is told: it is nearly 1 and means something by its distance from 1."""


def below(value: float, decimals: int, bound: float = 1.0) -> str:
    """`value` with `decimals`; with as many more as keep a value below `bound` from reading as `bound`, and one."""
    for digits in range(decimals, 18):
        text = f"{value:.{digits}f}"
        if value >= bound or float(text) < bound:
            return text if digits == decimals else f"{value:.{digits + 1}f}"
    return repr(value)


def is_correlation(metric: str) -> bool:
    return metric.endswith("pearson_r")
