"""The committed reference page is what the schemas say now, and no key is missing from it."""

from engine.config.reference import PAGE, render
from engine.config.schemas import TREE, load_registry


def test_the_committed_page_is_current() -> None:
    expected = render(TREE, load_registry())
    assert PAGE.read_text() == expected, "run: python -m engine.config.reference > docs/reference/configuration.md"


def test_every_option_component_and_key_is_on_the_page() -> None:
    page = PAGE.read_text()
    for target, schema in load_registry().components.items():
        assert f"`_target_: {target}`" in page
        for key in schema["properties"]:
            assert key == "_target_" or f"| `{key}` |" in page
    for file in TREE.configs.glob("*/*.yaml"):
        assert f"- `{file.parent.name}={file.stem}`: " in page
