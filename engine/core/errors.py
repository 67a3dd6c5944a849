"""Every error the engine raises on purpose, one branch per boundary.

    LegoError
    ├── ConfigError              the configuration is wrong; exit code 2
    ├── Interrupted              a person or the machine ended the job in order; exit code 130
    ├── RunError                 the run cannot go on; exit code 3
    │   ├── WeightSyncError      engine and trainer disagree after a weight update
    │   ├── AlignmentError       token streams, log-probabilities or routing do not fit together
    │   └── NoTrainableToken     a batch would train nothing
    └── TrialError               one trial is over; the run goes on
        ├── EnvironmentFailure   sandbox, setup or grader broke: excluded, never reward 0
        │   ├── SandboxError
        │   ├── HarnessError     the harness could not be started or crashed by itself
        │   └── GraderError
        ├── InferenceError       the engine broke while the trial was sampling
        └── PatchError           a patch names a path it must not, or does not fit its tree

Raise the narrowest one. Messages are one line: what, which value, what to do.
"""

from collections.abc import Sequence

from engine.core.credentials import without_values


class LegoError(Exception):
    """Base of all expected errors: shown to a person as one line, without a traceback."""

    exit_code = 3


class ConfigError(LegoError):
    """A wrong configuration value: names the full key, the value (but of no credential) and the way out."""

    exit_code = 2

    def __init__(self, key: str, value: object, problem: str, way_out: str) -> None:
        value = without_values(value, key)
        self.key, self.value, self.problem, self.way_out = key, value, problem, way_out
        super().__init__(f"{key}={value!r}: {problem}; {way_out}")


class ConfigErrors(ConfigError):
    """Several wrong values, one line each."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(first.key, first.value, first.problem, first.way_out)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class Interrupted(LegoError):
    """The job ended before it was done, because it was asked to; all that it did is on disk."""

    exit_code = 130


class RunError(LegoError):
    """The run cannot go on; what is finished is on disk."""


class WeightSyncError(RunError):
    """After a weight update the engine's log-probabilities differ from the trainer's."""


class AlignmentError(RunError):
    """Streams that must have equal length or offset do not; nothing is padded in silence."""


class NoTrainableToken(RunError):
    """A batch in which no token would be trained."""


class TrialError(LegoError):
    """One trial ended early; other trials are not touched."""


class EnvironmentFailure(TrialError):
    """Something around the agent broke: the trial is excluded wholly, with its reason."""


class SandboxError(EnvironmentFailure):
    """A sandbox could not be made, used or removed."""


class HarnessError(EnvironmentFailure):
    """The harness could not start, or failed for reasons that are not the model's."""


class GraderError(EnvironmentFailure):
    """Grading itself broke: no verdict is a verdict."""


class InferenceError(TrialError):
    """The inference engine failed, refused or timed out."""


class PatchError(TrialError):
    """A patch names a path that it must not touch, or does not fit the tree that it is applied to."""
