"""The bars of `benchmarks/proxy.py`: what this project's proxy may cost at most. No peer is held to them."""

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Bars:
    """Gathers figures against their bars."""

    lines: list[tuple[bool, str]] = field(default_factory=list)

    def most(self, name: str, figure: float, limit: float, unit: str) -> None:
        self.lines.append((figure <= limit, f"{name}: {figure:.2f} {unit}, at most {limit:g}"))

    def all(self, name: str, figure: int, wanted: int) -> None:
        self.lines.append((figure == wanted, f"{name}: {figure} of {wanted}"))

    def broken(self, own: bool, reason: str) -> None:
        """A measurement that stopped; only this project's own counts."""
        if own:
            self.lines.append((False, f"stopped: {reason}"))

    def show(self) -> bool:
        """Print them; whether none was missed."""
        print("\nthis project's bars")
        for passed, text in self.lines:
            print(f"  {'pass' if passed else 'MISS'}  {text}")
        return all(passed for passed, _ in self.lines)
