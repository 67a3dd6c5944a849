"""Each class of bad input, by its exact message: one line with the full key, the value and the way out."""

import pytest

from engine.config.compose import compose
from engine.config.schemas import Tree, load_registry
from engine.config.validate import problems
from engine.core.errors import ConfigErrors

TOP = "allowed: engine, experiment, harness, sandbox, scale, seed, run, harnesses"
THREADS = "give an integer ≥ 1: CPU threads"

CASES = {
    "unknown key, top level": (
        ["engin=small"],
        [f"engin='small': unknown key or group; did you mean engine? {TOP}"],
    ),
    "a key without its group": (
        ["max_turns=3"],
        [f"max_turns=3: unknown key or group; did you mean harnesses.agent.max_turns? {TOP}"],
    ),
    "unknown key, nested": (
        ["engine.thread=3"],
        ["engine.thread=3: unknown key; did you mean engine.threads? allowed: threads, device, path, arguments"],
    ),
    "unknown key under an unknown parent": (
        ["motor.threads=3"],
        [
            "motor.threads=3: unknown key; did you mean engine.threads? "
            "allowed: experiment, seed, run, engine, sandbox, harnesses"
        ],
    ),
    "a key below an unknown one": (
        ["engine.motor.threads=3"],
        ["engine.motor.threads=3: unknown key; did you mean engine.threads? allowed: threads, device, path, arguments"],
    ),
    "a key below an unknown one of a free-form map": (
        ["engine.arguments.a.b=3"],
        ["engine.arguments.a.b=3: not in the free-form map engine.arguments yet; write +engine.arguments.a.b=3"],
    ),
    "unknown key, forced in": (
        ["+engine.thread=3"],
        ["engine.thread=3: unknown key; did you mean engine.threads? allowed: threads, device, path, arguments"],
    ),
    "added though it is there": (
        ["+seed=3", "+engine.threads=2"],
        ["seed=3: is in place already; write seed=3", "engine.threads=2: is in place already; write engine.threads=2"],
    ),
    "a key of an option that was not chosen": (
        ["harnesses.other.max_turns=3"],
        [
            "harnesses.other.max_turns=3: unknown key here, it belongs to harness=other; write harness=other as well; "
            "without it allowed: agent"
        ],
    ),
    "unknown name in the map of harnesses": (
        ["harnesses.agnt.max_turns=3"],
        ["harnesses.agnt.max_turns=3: unknown key; did you mean harnesses.agent.max_turns? allowed: agent"],
    ),
    "a key below a value": (
        ["engine.threads.x=3"],
        ["engine.threads.x=3: engine.threads is a single value and has no keys; write engine.threads=VALUE"],
    ),
    "a new key of a free-form map": (
        ["engine.arguments.block=16"],
        ["engine.arguments.block=16: not in the free-form map engine.arguments yet; write +engine.arguments.block=16"],
    ),
    "wrong type": (
        ["engine.threads=many"],
        [f"engine.threads='many': wrong type, a string; {THREADS}"],
    ),
    "wrong type in a free-form map": (
        ["+engine.arguments.block=[1]"],
        ["engine.arguments.block=[1]: wrong type, a list; give a number or a string"],
    ),
    "a whole number written as another": (
        ["engine.threads=2e0"],
        [f"engine.threads=2.0: wrong type, a number; {THREADS}"],
    ),
    "not a number": (
        ["+engine.arguments.block=nan", "+engine.arguments.size=-inf"],
        [
            "engine.arguments.block=nan: not a finite number; give a number or a string",
            "engine.arguments.size=-inf: not a finite number; give a number or a string",
        ],
    ),
    "out of range": (
        ["engine.threads=0"],
        [f"engine.threads=0: out of range; {THREADS}"],
    ),
    "unknown choice of a value": (
        ["engine.device=gpu"],
        ["engine.device='gpu': unknown choice; did you mean cpu? allowed: cpu, cuda"],
    ),
    "unknown option of a group": (
        ["engine=smal"],
        ["engine='smal': unknown option; did you mean small? allowed: exotic, large, small"],
    ),
    "unknown option in a mix": (
        ["harness=[agent,othr]"],
        ["harness='othr': unknown option; did you mean other? allowed: agent, other"],
    ),
    "no option": (
        ["engine=null"],
        ["engine=None: needs the name of an option; allowed: exotic, large, small"],
    ),
    "a second option": (
        ["+engine=large"],
        ["+engine='large': every group is in place already; write engine=large"],
    ),
    "missing value": (
        ["scale=node"],
        ["engine.path='???': missing value; set engine.path=VALUE (give a string: Folder of the model)"],
    ),
    "missing value, also where it is referred to": (
        ["scale=node", "harnesses.other.max_turns=${engine.path}"],
        ["engine.path='???': missing value; set engine.path=VALUE (give a string: Folder of the model)"],
    ),
    "deleted value": (
        ["~engine.device"],
        ["engine.device='???': missing value; leave out ~engine.device (give one of cpu, cuda: Where it computes)"],
    ),
    "deleted group": (
        ["~engine"],
        ["engine='???': missing value; set engine=OPTION"],
    ),
    "no harness": (
        ["~harnesses.agent"],
        ["harnesses={}: out of range; give a mapping with ≥ 1 entries: Harnesses"],
    ),
    "an empty mix": (
        ["harness=[]"],
        ["harnesses='???': missing value; set harness=OPTION"],
    ),
    "wrong form": (
        ["run.root='a b'"],
        ["run.root='a b': wrong form; give a string that matches ^\\S+$: Folder"],
    ),
    "interpolation of nothing": (
        ["engine.threads=${engine.thread}"],
        [
            "engine.threads='${engine.thread}': cannot be resolved (Interpolation key 'engine.thread' not found); "
            "name an existing key, in full, as ${group.key}; a text's own dollar is written \\${…}"
        ],
    ),
    "a name by the clock": (
        ["run.root=runs-${now:%H%M%S}"],
        [
            "run.root='runs-${now:%H%M%S}': another value at each start, so the same command would begin a new run "
            "instead of going on; write a fixed value"
        ],
    ),
    "foreign class": (
        ["engine._target_=config_pieces.Foreign"],
        [
            "engine._target_='config_pieces.Foreign': not an admitted component; "
            "did you mean config_pieces.FastEngine? allowed: config_pieces.FastEngine"
        ],
    ),
    "any callable": (
        ["engine._target_=os.system"],
        ["engine._target_='os.system': not an admitted component; allowed: config_pieces.FastEngine"],
    ),
    "component of another role": (
        ["sandbox.limits._target_=config_pieces.Agent"],
        [
            "sandbox.limits._target_='config_pieces.Agent': fills the role harness, not limits; "
            "did you mean config_pieces.Limits? allowed: config_pieces.Limits"
        ],
    ),
    "no component in a list of them": (
        ["sandbox.stages=[{strict: true}]"],
        [
            "sandbox.stages[0]={'strict': True}: no component, needs `_target_` and the settings of the role stage; "
            "give {_target_: config_pieces.Stage, strict: true or false}"
        ],
    ),
    "wrong value within a list of components": (
        ["sandbox.stages=[{_target_: config_pieces.Stage, strict: 3}]"],
        ["sandbox.stages[0].strict=3: wrong type, an integer; give true or false: Fail closed"],
    ),
    "several values without a sweep": (
        ["engine.threads=1,2"],
        ["engine.threads='1,2': several values for one key; a list is engine.threads=[1,2], a sweep needs --multirun"],
    ),
    "broken override": (
        ["engine.path=a{"],
        ["engine.path='a{': cannot be parsed; quote it for Hydra and the shell: 'engine.path=\"a{\"'"],
    ),
    "no override at all": (
        ["train"],
        ["train='': cannot be parsed; write key=value"],
    ),
    "all at once": (
        ["engine=smal", "engine.thread=1", "seed=-1", "sandbox.limits.memory_mb=x"],
        [
            "engine='smal': unknown option; did you mean small? allowed: exotic, large, small",
            "engine.thread=1: unknown key; did you mean engine.threads? allowed: threads, device, path, arguments",
            "seed=-1: out of range; give an integer ≥ 0: Seed",
            "sandbox.limits.memory_mb='x': wrong type, a string; give an integer ≥ 1: Memory, MiB",
        ],
    ),
    "what follows from another problem is not repeated": (
        ["engine.threads=x"],
        [f"engine.threads='x': wrong type, a string; {THREADS}"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message(tree: Tree, case: str) -> None:
    overrides, expected = CASES[case]
    try:
        found = [str(error) for error in problems(compose(overrides, tree), load_registry(tree.schemas))]
    except ConfigErrors as errors:
        found = str(errors).splitlines()
    assert found == expected


def test_a_right_configuration_has_no_problem(tree: Tree) -> None:
    assert (
        problems(compose(["+engine.arguments.block=16", "harness=[agent,other]"], tree), load_registry(tree.schemas))
        == []
    )
