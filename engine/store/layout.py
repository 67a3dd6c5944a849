"""Names of everything inside a run directory.

Invariant: only what bears a name that is given here is the run's; a copy, a folder or a note that a person put beside
it is passed over.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from engine.core.records import Split, TrialKey


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Paths of one run."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def lock(self) -> Path:
        """Held by the process that works here."""
        return self.root / "lock"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def steps(self) -> Path:
        return self.root / "steps"

    @property
    def tokenizer(self) -> Path:
        """The model's own, so that tokens can be read where the model is not at hand."""
        return self.root / "tokenizer.json"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def alerts(self) -> Path:
        return self.root / "alerts"

    def alarms(self) -> list[tuple[int, Path]]:
        """Step and file of each alarm."""
        found = ((_ALARM.fullmatch(path.name), path) for path in self.alerts.glob("step=*"))
        return sorted((int(name[1]), path) for name, path in found if name)

    @property
    def reports(self) -> Path:
        """What is made of a run for people and other programs, at any time."""
        return self.root / "reports"

    @property
    def learning(self) -> Path:
        """The learning report."""
        return self.reports / "learning.html"

    @property
    def difficulty(self) -> Path:
        """How hard the run's tasks are, beside those of others."""
        return self.reports / "difficulty.html"

    @property
    def scratch(self) -> Path:
        """Files that only a live run needs: weights on their way, staged trees."""
        return self.root / "scratch"

    @property
    def ledgers(self) -> Path:
        """One file per step: what became of each trial."""
        return self.root / "ledger"

    def ledger(self, step: int) -> Path:
        return self.ledgers / f"step={step:06d}.jsonl"

    def artifact(self, digest: str) -> Path:
        """What trials made beside their patches, by contents."""
        return self.root / "artifacts" / digest

    def step(self, step: int) -> Path:
        return self.steps / f"step={step:06d}.parquet"

    def recomputed(self, step: int) -> Path:
        """What the trainer made of the step's trials, of all in one file."""
        return self.root / "recomputed" / f"step={step:06d}.parquet"

    def rollouts(self, split: Split) -> Path:
        """One folder for each step that has trials of a split."""
        return self.root / ("trajectories" if split == "train" else split)

    def trials(self, step: int, split: Split) -> Path:
        return self.rollouts(split) / f"step={step:06d}"

    def trial(self, step: int, split: Split, key: TrialKey) -> Path:
        return self.trials(step, split) / f"{key}.parquet"

    def routing(self, step: int, split: Split, key: TrialKey) -> Path:
        """Routed experts of one trial: a blob of the step, deleted once trained unless kept."""
        return self.root / "routing" / f"step={step:06d}" / f"{split}-{key}.npz"

    def routings(self) -> dict[int, Path]:
        """Step → folder, for each step whose routed experts are still there."""
        return numbered(self.root / "routing", "step=")

    def checkpoint(self, version: int) -> Path:
        return self.checkpoints / f"version={version:06d}"


_ALARM = re.compile(r"step=([0-9]{6,})-[a-z_-]+\.json")
_TRIAL = re.compile(r"e[0-9]+-.+-s[0-9]+-a[0-9]+", re.DOTALL)


def numbered(folder: Path, before: str, after: str = "") -> dict[int, Path]:
    """The entries of `folder` that are numbered as here (`step=000001.parquet`), by their numbers, in order."""
    form = re.compile(re.escape(before) + "([0-9]{6,})" + re.escape(after))
    found = ((form.fullmatch(path.name), path) for path in folder.glob(f"{before}*"))
    named = {int(name[1]): path for name, path in found if name and (len(name[1]) == 6 or name[1][0] != "0")}
    return dict(sorted(named.items()))


def is_trial(name: str) -> bool:
    """Whether a name is that of a trial's key."""
    return _TRIAL.fullmatch(name) is not None
