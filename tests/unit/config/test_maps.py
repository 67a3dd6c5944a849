"""Maps on the command line, whole and by key: what Hydra does not take is told with what it takes, by exact message."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.compose import compose
from engine.config.schemas import Tree, load_registry
from engine.config.validate import problems
from engine.core.errors import ConfigErrors

NOT_YET = "not in the free-form map engine.arguments yet"
PARSED = "cannot be parsed: keys of a map stand without quotes, texts with braces in quotes"

CASES = {
    "a new key": (
        ["engine.arguments={block: 16}"],
        [f"engine.arguments={{'block': 16}}: block is {NOT_YET}; write '+engine.arguments={{block: 16}}'"],
    ),
    "keys that are no names": (
        ["engine.arguments={0: x, /a/b.py: y}"],
        [
            f"engine.arguments={{0: 'x', '/a/b.py': 'y'}}: 0, /a/b.py are {NOT_YET}; "
            "write '+engine.arguments={0: x, /a/b.py: y}'"
        ],
    ),
    "a new key beside one that is there": (
        ["scale=node", "engine.path=x", "engine.arguments={cache: 1, block: 2}"],
        [
            f"engine.arguments={{'cache': 1, 'block': 2}}: block is {NOT_YET}; "
            "write engine.arguments.cache=1 '+engine.arguments={block: 2}'"
        ],
    ),
    "a new key with a wrong value": (
        ["engine.arguments={0: [1]}"],
        [
            f"engine.arguments={{0: [1]}}: 0 is {NOT_YET}; write '+engine.arguments={{0: [1]}}'",
            "engine.arguments.0=[1]: wrong type, a list; give a number or a string",
        ],
    ),
    "an unknown key of a group": (
        ["engine={thread: 3}"],
        ["engine.thread=3: unknown key; did you mean engine.threads? allowed: threads, device, path, arguments"],
    ),
    "an unknown key of a component": (
        ["sandbox.limits={memory: 3}"],
        ["sandbox.limits.memory=3: unknown key; did you mean sandbox.limits.memory_mb? allowed: memory_mb"],
    ),
    "a new key two maps down": (
        ["engine={threads: 2, arguments: {block: 16}}"],
        [
            f"engine={{'threads': 2, 'arguments': {{'block': 16}}}}: block is {NOT_YET}; "
            "write engine.threads=2 '+engine.arguments={block: 16}'"
        ],
    ),
    "quoted keys": (
        ['engine.arguments={"0": x}'],
        [f"""engine.arguments='{{"0": x}}': {PARSED}; write '+engine.arguments={{0: x}}'"""],
    ),
    "quoted keys in more quotes": (
        ['engine.arguments="{"0": x}"'],
        [f"""engine.arguments='"{{"0": x}}"': {PARSED}; write '+engine.arguments={{0: x}}'"""],
    ),
    "braces in a text of a map": (
        ["engine.arguments={url: {base}/v1}"],
        [f"""engine.arguments='{{url: {{base}}/v1}}': {PARSED}; write '+engine.arguments={{url: "{{base}}/v1"}}'"""],
    ),
    "braces in a text of a list": (
        ["sandbox.stages=[{state}/bin, x]"],
        [
            f"""sandbox.stages='[{{state}}/bin, x]': {PARSED}; write 'sandbox.stages=["{{state}}/bin", x]'""",
            "sandbox.stages[0]='{state}/bin': no component, needs `_target_` and the settings of the role stage; "
            "give {_target_: config_pieces.Stage, strict: true or false}",
            "sandbox.stages[1]='x': no component, needs `_target_` and the settings of the role stage; "
            "give {_target_: config_pieces.Stage, strict: true or false}",
        ],
    ),
    "a key that is no name, by its path": (
        ["+engine.arguments./a/b.py=x"],
        ["+engine.arguments./a/b.py='x': cannot be parsed: /a/b.py is no name; write '+engine.arguments={/a/b.py: x}'"],
    ),
    "a map that quotes make a text": (
        ["engine.arguments='{0: x}'"],
        [
            "engine.arguments='{0: x}': wrong type, a string, which its quotes make it; "
            "give a mapping: Free-form engine arguments"
        ],
    ),
    "a map that cannot be guessed": (
        ["engine.arguments={a: [}"],
        [f"engine.arguments='{{a: [}}': {PARSED}; write '{{name: value, other: \"a text\"}}', or a file of your own"],
    ),
    "a credential is not repeated": (
        ["engine.arguments={API_KEY: {x}}"],
        [
            f"engine.arguments='{{API_KEY:(hidden)': {PARSED}; "
            "write '{name: value, other: \"a text\"}', or a file of your own"
        ],
    ),
    "nor advised": (
        ["engine.arguments={API_KEY: abc}"],
        [
            f"engine.arguments={{'API_KEY': '(hidden)'}}: API_KEY is {NOT_YET}; write +engine.arguments=VALUE",
        ],
    ),
    "a map for a value": (
        ["engine.threads={a: 1}"],
        ["engine.threads={'a': 1}: wrong type, a mapping; give an integer ≥ 1: CPU threads"],
    ),
    "a list for a map": (
        ["engine.arguments=[1]"],
        ["engine.arguments=[1]: wrong type, a list; give a mapping: Free-form engine arguments"],
    ),
    "a key that ends with nothing": (
        ["engine.arguments.=3"],
        ["engine.arguments.='3': cannot be parsed; write key=value"],
    ),
    "a quoted key": (
        ["+engine.arguments.'/a'=3"],
        ["+engine.arguments.'/a'='3': cannot be parsed: /a is no name; write '+engine.arguments={/a: 3}'"],
    ),
    "a text with both kinds of quotes": (
        ["engine.path=it's"],
        [
            """engine.path="it's": cannot be parsed; quote it for Hydra and the shell: """
            + shlex.quote("""engine.path="it's\"""")
        ],
    ),
    "a key that is no text": (
        ["+engine.arguments={true: 1}"],
        ["engine.arguments=True: a key that is no text, a boolean; write it in quotes, in a file"],
    ),
}


def told(overrides: list[str], tree: Tree) -> list[str]:
    try:
        return [str(error) for error in problems(compose(overrides, tree), load_registry(tree.schemas))]
    except ConfigErrors as errors:
        return str(errors).splitlines()


@pytest.mark.parametrize("case", CASES)
def test_message(tree: Tree, case: str) -> None:
    overrides, expected = CASES[case]
    assert told(overrides, tree) == expected


@pytest.mark.parametrize("case", CASES)
def test_what_is_advised_is_taken(tree: Tree, case: str) -> None:
    """But for what the schemas say of the value."""
    overrides, expected = CASES[case]
    _, _, advice = expected[0].partition("; write ")
    if "=" not in advice or "=VALUE" in advice or advice == "key=value" or "? allowed" in expected[0]:
        return
    others = [text for text in overrides if text.partition("=")[0] in ("scale", "engine.path")]
    after = told([*(others if len(overrides) > 1 else []), *shlex.split(advice)], tree)
    assert after == expected[1:]


@pytest.fixture
def own(tree: Tree, tmp_path: Path) -> Tree:
    """With `engine=texts` and `engine=numbers`, whose map has a key that reads as a number."""
    (tmp_path / "engine").mkdir()
    head = "_target_: config_pieces.FastEngine\nthreads: 1\ndevice: cpu\npath: x\n"
    (tmp_path / "engine" / "texts.yaml").write_text(head + 'arguments: {"0": a}\n')
    (tmp_path / "engine" / "numbers.yaml").write_text(head + "arguments: {0: a}\n")
    return replace(tree, extra=(tmp_path,))


@pytest.mark.parametrize("option", ["texts", "numbers"])
def test_every_key_is_a_text(own: Tree, option: str) -> None:
    config = compose([f"engine={option}", "+engine.arguments={3: b}"], own).config
    assert config["engine"]["arguments"] == {"0": "a", "3": "b"}


@pytest.mark.parametrize(
    ("option", "given", "advice"),
    [
        ("texts", "engine.arguments={0: b}", "engine.arguments.0=b"),
        ("numbers", "engine.arguments.0=b", "engine.arguments={0: b}"),
    ],
)
def test_one_way_to_name_a_number_is_the_others_advice(own: Tree, option: str, given: str, advice: str) -> None:
    (line,) = told([f"engine={option}", given], own)
    assert line.endswith(f"; write {shlex.quote(advice)}")
    assert compose([f"engine={option}", advice], own).config["engine"]["arguments"] == {"0": "b"}


@pytest.mark.parametrize(
    ("option", "given"), [("texts", "+engine.arguments={0: b}"), ("numbers", "+engine.arguments.0=b")]
)
def test_a_number_and_a_text_are_one_key(own: Tree, option: str, given: str) -> None:
    (line,) = told([f"engine={option}", given], own)
    assert line == "engine.arguments.0='b': is in place already, as a number or a text; leave out the `+`"
