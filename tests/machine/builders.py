"""Experiments, what this machine knows of packages, and the lines of `doctor`."""

from helpers.config import configure, read_file, resolve
from helpers.machine import packages
from helpers.machine.packages import needed
from helpers.store import ROOT
from tests.conftest import ONNX


def config(**changes):
    """One experiment's stage `convert`; a target's or a server's fields may be among `changes`."""
    place = {name: changes.pop(name) for name in ("gpu", "device", "server") if name in changes}
    experiments = {"experiments": {"mine": ONNX | changes}}
    return resolve("resnet50", "convert", models={"resnet50": experiments}, **place)


def told(capsys):
    """The lines of `doctor`: name -> word and what is said."""
    lines = capsys.readouterr().out.splitlines()
    split = [(line[:4].strip(), *line[5:].split(": ", 1)) for line in lines]
    return {name: (word, text) for word, name, text in split}


def knowing(monkeypatch, target="cpu", **known):
    """Have this process know all that experiments import, without a fault but for these."""
    given = read_file(ROOT / f"params/{target}.yaml")
    chosen = [(m, each) for m in given.file.models for each in given.experiments(m)]
    names = {n for each in chosen for n in needed(configure(given, *each, "convert"))}
    found = ({}, dict.fromkeys(names) | known)
    monkeypatch.setattr(packages, "_known", lambda: found)
