"""Reports, plans and explanations."""

from __future__ import annotations

import copy
import pickle

import pytest

import lightship


def test_a_report(node: str) -> None:
    cursor = lightship.connect(node).execute("select value from generate_series(1, 100000) as t(value)")
    assert cursor.report is None
    cursor.fetchall()
    report = cursor.report
    assert report.rows == report["rows"] == report.sources[0].rows == 100_000
    assert report.plan.window_batches >= 1
    assert repr(report).startswith("Report: 100,000 rows, 781.2 KiB in ")
    assert "<th style='text-align:left'>rows</th>" in report._repr_html_()
    assert report.to_dict()["rows"] == 100_000
    assert "bytes_arrow" in dir(report)
    assert pickle.loads(pickle.dumps(report)) == copy.deepcopy(report) == report
    with pytest.raises(AttributeError, match="Report has no 'speed'; it has rows"):
        _ = report.speed


def test_explain(node: str, sales: str) -> None:
    explanation = lightship.explain(node, "select 1 as one")
    assert "physical_plan" in explanation
    assert "physical_plan" in repr(explanation)
    assert "<pre>" in explanation._repr_html_()
    assert len(lightship.explain(node, "-- a comment\nselect 1", analyze=True)) >= 1
    with pytest.raises(lightship.ProgrammingError, match="only queries on nodes"):
        lightship.explain(sales, "select 1")
    with pytest.raises(lightship.ProgrammingError):
        lightship.explain(node, "-")


def test_tune() -> None:
    plan = lightship.tune(link="50mbit", rows=4_000_000, row_bytes=450, drivers=["jdbc", "psycopg"])
    assert plan.plan.batch_rows > 0
    assert len(plan.settings) == 2
    assert "jdbc" in repr(plan).lower()
    with pytest.raises(lightship.ProgrammingError, match="--speed"):
        lightship.tune(speed=3)
    with pytest.raises(lightship.ProgrammingError, match="cost of messages is unknown"):
        lightship.tune(rows=1, row_bytes=1)


def test_calibrate_and_tune(node: str) -> None:
    profile = lightship.calibrate(node, seconds=0.3)
    assert profile.calibration.first.samples > 0
    assert "alpha" in repr(profile)
    plan = lightship.tune(node, "select value from generate_series(1, 1000) as t(value)", rows=1000)
    assert plan.query.rows == 1000
    with pytest.raises(lightship.ProgrammingError, match="not a link"):
        lightship.calibrate("host")


def test_errors_can_be_pickled(sales: str) -> None:
    with pytest.raises(lightship.Error) as caught:
        lightship.read_sql(sales, "select nothing from sales")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.kind) == (type(caught.value), str(caught.value), caught.value.kind)
