"""The public names of plan: each has an example that is run."""

import inspect

import plan


def test_every_public_class_and_function_has_an_example():
    public = [getattr(plan, name) for name in plan.__all__]
    documented = [value for value in public if inspect.isclass(value) or callable(value)]
    assert len(documented) > 15
    assert [v.__name__ for v in documented if ">>>" not in (v.__doc__ or "")] == []


def test_public_names_are_listed_once():
    assert len(set(plan.__all__)) == len(plan.__all__)
