"""Modules that the project writes itself."""

import ast

from engine.core.patch import under
from engine.tasks.generated import FAMILIES, generated_bundles


def test_no_two_modules_are_alike() -> None:
    bundles = generated_bundles()
    sources = [bundle.repository[module.path][0] for bundle in bundles for module in bundle.modules]
    assert len(bundles) == len(FAMILIES) >= 5
    assert len(set(sources)) == len(sources) > 200


def test_they_are_the_same_each_time() -> None:
    assert generated_bundles() == generated_bundles()


def test_each_module_has_a_line_that_the_familys_others_can_replace() -> None:
    for family, bundle in zip(FAMILIES, generated_bundles(), strict=True):
        for module in bundle.modules:
            source = bundle.repository[module.path][0].decode()
            assert len(module.mutants) == len(family.lines) - 1
            for mutant in module.mutants:
                ast.parse(mutant.apply(source))
                assert mutant.revert(mutant.apply(source)) == source
            assert module.behaviour.startswith("It must return ")
            assert "{" not in module.behaviour


def test_tests_lie_below_the_test_path_alone() -> None:
    for bundle in generated_bundles():
        assert set(bundle.withheld) == {test for module in bundle.modules for test in module.tests}
        assert all(under(path, bundle.test_paths) for path in bundle.withheld)
        assert not any(under(path, bundle.test_paths) for path in bundle.repository)
        for data, _ in bundle.withheld.values():
            assert data.count(b"assert ") > 3
