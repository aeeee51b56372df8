"""Topics: one list, and what cannot run is named."""

from __future__ import annotations

import pkgutil
import sys

import pytest

from bench import __main__ as main
from bench import topics
from bench.topic import Topic


def test_every_file_of_topics_is_a_topic():
    files = {module.name for module in pkgutil.iter_modules(topics.__path__)}
    assert files == {module.__name__.rpartition(".")[2] for module in topics.MODULES}
    assert len(topics.TOPICS) == len(topics.MODULES)
    assert len(topics.TABLES) == sum(len(topic.tables) for topic in topics.TOPICS.values())


@pytest.mark.parametrize("name", topics.TOPICS)
def test_a_topic_asked_for_that_cannot_run_is_a_failure(name, monkeypatch, capsys):
    lacking = Topic(name, lambda quick: iter(()), {}, gpus=999)
    monkeypatch.setattr(main, "TOPICS", {name: lacking})
    monkeypatch.setattr(sys, "argv", ["bench", "--only", name])
    assert main.main() == 1
    assert f"{name}: got --only {name}, but it needs GPUs: 999" in capsys.readouterr().err


def test_a_topic_names_the_package_that_it_lacks():
    topic = Topic("x", lambda quick: iter(()), {}, gpus=0, packages=("json", "no_such_package"))
    assert topic.missing(quick=False) == "needs no_such_package, which is not installed"
    assert Topic("x", topic.rows, {}, gpus=0, in_quick=False).missing(quick=False) is None
    assert Topic("x", topic.rows, {}, gpus=0, in_quick=False).missing(quick=True)
