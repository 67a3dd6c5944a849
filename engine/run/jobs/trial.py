"""`job=trial`: one task, tried once and watched; by a harness of the configuration, or by a person's own hands.

    python -m engine experiment=… job=trial job.task=ID [job.harness=NAME|none] [job.shell=before|after] [job.keep=true]

All is as in training but the trainer, which is not started: harness, proxy, engine (with the model's own checkpoint),
sandbox, defences, verifier, and the seed of the task's first trial. Invariant: what it makes lies in a run directory of
its own, which the jobs that read runs read like any other, and never in that of a training run. Refuses a task or a
harness that is not there, naming the nearest, and a shell without a terminal.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import yaml

from engine.config.built import Built
from engine.config.bundle import describe, fingerprint
from engine.config.nearest import listed, nearest
from engine.core.errors import ConfigError, ConfigErrors, RunError
from engine.core.records import Scored, Split, Task, Trial, TrialKey
from engine.core.task_contracts import DoubtedPool
from engine.core.threads import threads_end_here
from engine.observe.progress import Heartbeat, PlainProgress, period
from engine.observe.watch import Watch, end_lines
from engine.run.directory import open_trial_directory
from engine.run.plan import derived_seed
from engine.run.reproduce import fingerprints
from engine.run.terminal import is_terminal
from engine.run.trial import BY_HAND, run_trial
from engine.run.visit import Doing, Visit, When, visit
from engine.run.workbench import check_grading, check_machine, open_shop
from engine.sandbox.images import DebianImageStore
from engine.sandbox.reentry import enter_left, kept_for, names
from engine.store.layout import Layout
from engine.store.state import StateFile
from engine.store.writer import Writer

_EXCLUDED = 3
_FOREVER_S = 86400.0
"""Of a command in a sandbox that was left running: no trial waits for it."""


class TrialJob:
    """Runs one trial, or enters a sandbox that one left.

    Args:
        task: its id; None: the tasks of the pool are listed.
        harness: key under `harnesses`, or `none`; None: the only one there is.
        shell: when a shell is opened in the sandbox; without a harness always.
        commands: run in place of the shell.
        keep: whether the sandbox is left running.
        enter: name of a sandbox that was left running; nothing else is done then.
    """

    def __init__(
        self,
        *,
        task: str | None,
        harness: str | None,
        shell: When,
        commands: Sequence[str],
        keep: bool,
        enter: str | None,
    ) -> None:
        self.task = task
        self.harness = harness
        self.shell: When = "before" if harness == BY_HAND and shell == "none" else shell
        self.commands = commands
        self.keep = keep
        self.enter = enter

    async def run(self, built: Built) -> int:
        """Exit code 0 whatever the reward is, 3 when the trial was excluded; of `enter`, the shell's own."""
        if self.enter is not None:
            return await self._enter(built, self.enter)
        if self.task is None:
            return _list(built)
        self._check_terminal("job.shell", self.shell, needed=self.shell != "none")
        harness, images = self._harness(built), DebianImageStore()
        check = check_grading if self.harness == BY_HAND else check_machine
        check(built, images)
        tasks = built.tasks.load()
        task = _find(tasks, self.task)
        with open_trial_directory(built, task.id) as layout:
            return await self._work(built, images, layout, tasks, _trial(built, task, harness, layout.root.name))

    def _check_terminal(self, key: str, value: object, *, needed: bool) -> None:
        if needed and not self.commands and not is_terminal():
            problem = "a shell needs a terminal, and standard input or output is none here"
            raise ConfigError(key, value, problem, "start it on a terminal, or give job.commands=[…] to run instead")

    def _harness(self, built: Built) -> str:
        there = list(built.harnesses)
        if self.harness is None:
            if len(there) > 1:
                problem = f"the configuration has several harnesses ({', '.join(there)})"
                raise ConfigError("job.harness", None, problem, f"choose one of them, or {BY_HAND}")
            return there[0]
        if self.harness not in (*there, BY_HAND):
            guess = nearest(self.harness, [*there, BY_HAND])
            way_out = f"did you mean {guess}?" if guess else f"choose one of {', '.join(there)}, or {BY_HAND}"
            raise ConfigError("job.harness", self.harness, "the configuration has no such harness", way_out)
        return self.harness

    async def _work(
        self, built: Built, images: DebianImageStore, layout: Layout, tasks: Sequence[Task], trial: Trial
    ) -> int:
        by_hand = trial.harness == BY_HAND
        interval_s = built.observe.progress_interval_s
        watch = Watch(PlainProgress(sys.stderr, interval_s))
        going = self._visit(trial.task, watch)
        writer, state = Writer(layout), StateFile(layout)

        def beat() -> None:
            watch.beat()
            with suppress(RunError):  # a disk that takes no more is told by the job's own next write
                state.beat(interval_s)

        checkpoint = "" if by_hand else fingerprint(built.model.info().path)
        described = describe(built, fingerprints(tasks), checkpoint)
        with state.told("interrupted"), _beating(beat, interval_s):
            state.update("starting")
            writer.text("config.yaml", yaml.safe_dump(described, sort_keys=False))
            _tell_task(built, trial, watch)
            async with (
                threads_end_here(),
                open_shop(built, layout, images, watch.stage, engine=not by_hand) as shop,
            ):
                if not by_hand:
                    writer.tokenizer(built.model.info().path)
                state.update("rollout")
                scored = await run_trial(trial, replace(shop, visitor=going), watch.stage)
                await asyncio.to_thread(writer.trial, 0, scored)
            state.update("finished")
        _report(scored, layout, going.left)
        return _EXCLUDED if scored.trajectory.termination.excluded else 0

    def _visit(self, task: Task, watch: Watch) -> Visit:
        doing = Doing(
            commands=self.commands, cwd=task.workdir, timeout_s=task.agent_timeout_s, label=task.id, show=_print
        )
        return Visit(when=self.shell, doing=doing, lasting=self.keep, watch=watch)

    async def _enter(self, built: Built, name: str) -> int:
        there = names()
        if name not in there:
            guess = nearest(name, there)
            known = f"there are {listed(there)}" if there else "none is"
            problem = "no sandbox of this name was left running on this machine"
            raise ConfigError("job.enter", name, problem, f"did you mean {guess}?" if guess else known)
        self._check_terminal("job.enter", name, needed=True)
        watch = Watch(PlainProgress(sys.stderr, built.observe.progress_interval_s))
        with enter_left(name) as (sandbox, left):
            doing = Doing(commands=self.commands, cwd=left.workdir, timeout_s=_FOREVER_S, label=name, show=_print)
            return await visit(sandbox, doing, {}, watch)


def _list(built: Built) -> int:
    """The pool's tasks, a line each."""
    errors = built.tasks.problems()
    if errors:
        raise ConfigErrors(errors)
    tasks = built.tasks.load()
    width = max((len(task.id) for task in tasks), default=0)
    for task in tasks:
        print(f"{task.id:{width}}  {task.split:10}  {_issue(task)}")
    print(f"{len(tasks)} tasks; job.task=ID tries one of them")
    return 0


def _issue(task: Task) -> str:
    """Its first line."""
    return next((line.strip() for line in task.instruction.splitlines() if line.strip()), "")


def _find(tasks: Sequence[Task], name: str) -> Task:
    for task in tasks:
        if task.id == name:
            return task
    guess = nearest(name, [task.id for task in tasks])
    way_out = f"did you mean {guess}? " if guess else ""
    raise ConfigError("job.task", name, "the pool has no such task", f"{way_out}leave it null to list all {len(tasks)}")


def _trial(built: Built, task: Task, harness: str, run: str) -> Trial:
    """The task's first trial, sampled as the run's first step, or its first validation, would."""
    split: Split = "validation" if task.split == "validation" else "train"
    held_out = split == "validation"
    return Trial(
        key=TrialKey(run=run, epoch=0, task=task.id, sample=0, attempt=0),
        task=task,
        harness=harness,
        policy_version=0,
        seed=derived_seed(built.seed, split, 0, task.id, 0),
        temperature=built.schedule.validation_temperature if held_out else built.proxy.temperature,
        top_p=built.schedule.validation_top_p if held_out else built.proxy.top_p,
        split=split,
    )


def _tell_task(built: Built, trial: Trial, watch: Watch) -> None:
    task = trial.task
    watch.say(f"task {task.id} ({task.split}), harness {trial.harness}: {_issue(task)}")
    doubts = built.tasks.doubts([task]) if isinstance(built.tasks, DoubtedPool) else ()
    for doubt in doubts:  # no reason not to look at it
        watch.say(f"doubtful: {doubt.problem}")


def _print(output: bytes) -> None:
    sys.stdout.buffer.write(output)
    sys.stdout.flush()


def _report(scored: Scored, layout: Layout, left: str) -> None:
    """What it came to, and where to go on; the last line is the run's directory."""
    lines = end_lines(scored)
    if left:
        lines += [
            "kept       the sandbox, with all files as they were left; nothing runs in it, and no model answers",
            f"  for      {kept_for(left)} (sandbox.keep_s); the next start of anything after that removes it",
            f"  enter    python -m engine job=trial job.enter={left}",
            "  remove   python -m engine job=reap",
        ]
    lines.append(f"look next  python -m engine job=view run.root={layout.root.parent}")
    print("\n".join([*lines, str(layout.root)]))


@contextmanager
def _beating(beat: Callable[[], None], interval_s: float) -> Iterator[None]:
    heartbeat = Heartbeat(period(interval_s), [beat])
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()
