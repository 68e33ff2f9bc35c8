"""The sweep that writes the tables of Hopper's constants, without a GPU."""

import ast

import numpy as np
import pytest

from benchmarks import tune
from numba_bs.choose import tables, wgmma
from numba_bs.choose.wgmma_sdd import stages_of


def test_every_entry_has_a_name_and_is_a_candidate():
    entries = tune.keys()
    named = {"DSD": set(), "SDD": set()}
    for name, (table, key, candidates) in entries.items():
        named["DSD" if table is tables.DSD else "SDD"].add(key)
        assert table[key] in candidates, name
        assert len(set(candidates)) == len(candidates), name
    assert named == {"DSD": set(tables.DSD), "SDD": set(tables.SDD)}
    assert len(entries) == len(tables.DSD) + len(tables.SDD)


@pytest.mark.parametrize("block", tune.DSD)
def test_candidates_of_dsd_fit(block):
    for candidate in tune.DSD[block]:
        rows, chunks, row_groups, *_, out_tiles = candidate
        config = wgmma._config(True, min(block, 64), *candidate)
        assert config.stages >= 2, candidate
        assert rows * chunks % out_tiles == 0
        assert rows * chunks * min(block, 64) // 2 <= 192  # sums of a thread
        assert config.cap <= 32
        assert config.stage_cols * chunks <= 32
        assert row_groups <= 3


def test_candidates_of_sdd_fit():
    for width, parts, row_groups, col_groups, _ in tune.SDD:
        assert stages_of(64 * row_groups, width * parts * col_groups) >= 2
        assert width * parts // 2 <= 192
        assert width * parts * col_groups // 16 <= 32  # strips of a tile: lanes


def test_what_is_found_replaces_its_line_alone():
    name, (_, key, candidates) = next(iter(tune.keys().items()))
    before = tune.FILE.read_text()
    after = tune.text({name: [(612.3, candidates[1]), (600.9, candidates[0])]})
    changed = [
        (old, new)
        for old, new in zip(before.splitlines(), after.splitlines(), strict=True)
        if old != new
    ]
    ((_, line),) = changed
    assert line == f"    {key}: {candidates[1]},  # 612, next 601"
    found = {}
    exec(compile(ast.parse(after), "tables.py", "exec"), found)
    assert found["DSD"] == tables.DSD | {key: candidates[1]}
    assert found["SDD"] == tables.SDD


def test_every_line_can_be_replaced():
    found = {
        name: [(100.0, table[key])] for name, (table, key, _) in tune.keys().items()
    }
    lines = tune.text(found).splitlines()
    assert sum(line.endswith("  # 100") for line in lines) == len(found)


class Machine:
    """Counts."""

    def synchronise(self):
        pass


def sweep(monkeypatch, rate):
    """Return what a sweep of one entry finds, and what it told of."""
    problem = type("Problem", (), {"machine": Machine()})()
    name, entry = next(iter(tune.keys().items()))
    told = []
    monkeypatch.setattr(tune, "rate", rate)
    return tune.sweep(problem, name, entry, told.append), entry, told


def test_a_sweep_ranks_and_leaves_the_table_as_it_was(monkeypatch):
    before, tried = dict(tables.DSD), []

    def rate(problem, name, key):
        tried.append(tables.DSD[key])
        return float(len(tried) % 4)

    found, (_, _, candidates), told = sweep(monkeypatch, rate)
    assert tried == candidates
    speeds = [speed for speed, _ in found]
    assert speeds == sorted(speeds, reverse=True)
    assert {candidate for _, candidate in found} == set(candidates)
    assert told == [None] * len(candidates)
    assert before == tables.DSD


def test_what_is_wrong_or_fails_is_left_out(monkeypatch):
    outcomes = iter([None, ValueError("no room"), *np.arange(1.0, 99)])

    def rate(*_):
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    found, (_, _, candidates), told = sweep(monkeypatch, rate)
    assert {candidate for _, candidate in found} == set(candidates[2:])
    assert len(told) == len(candidates)
    assert "no room" in told[1]


def test_it_says_what_it_needs(monkeypatch, capsys):
    def none(kind):
        raise RuntimeError("--device gpu: no GPU here")

    before = tune.FILE.read_text()
    monkeypatch.setattr(tune, "find_machine", none)
    assert tune.main([]) == 2
    assert "no GPU here" in capsys.readouterr().out
    assert tune.FILE.read_text() == before
