"""Workbooks of openpyxl, xlwt and pandas, as Lightship reads them."""

from __future__ import annotations

import datetime
from pathlib import Path

import openpyxl
import pandas
import pytest
import xlwt

import lightship

ROWS = [
    ("Name", "born", "seen", "n", "amount", "is it", "code", "at"),
    ("Ada", datetime.date(1905, 12, 10), datetime.datetime(2024, 2, 29, 12, 0), 1, 1.5, True, "007", None),
    ("", datetime.date(1912, 6, 23), datetime.datetime(2024, 3, 1, 0, 0, 1, 250_000), -7, 2, False, "x", None),
    (None, None, None, None, None, None, None, None),
    ("Grace", None, None, 2**40, None, None, "1", datetime.time(18, 30)),
]

EXPECTED = {
    "Name": ["Ada", None, "Grace"],
    "born": [datetime.date(1905, 12, 10), datetime.date(1912, 6, 23), None],
    "seen": [datetime.datetime(2024, 2, 29, 12, 0), datetime.datetime(2024, 3, 1, 0, 0, 1, 250_000), None],
    "n": [1, -7, 2**40],
    "amount": [1.5, 2.0, None],
    "is it": [True, False, None],
    "code": ["007", "x", "1"],
    "at": [None, None, "18:30:00"],
}


@pytest.fixture
def book(tmp_path: Path) -> openpyxl.Workbook:
    """A workbook of which the first sheet is hidden. The table does not begin at A1."""
    book = openpyxl.Workbook()
    book.active.title = "Hidden"
    book.active.append(["no"])
    book.active.sheet_state = "hidden"
    sheet = book.create_sheet("People & more")
    for row, values in enumerate(ROWS, 4):
        for column, value in enumerate(values, 3):
            sheet.cell(row, column, value)
    other = book.create_sheet("Other")
    other.append(["a", "b"])
    other.append([1, "#N/A"])
    return book


def read(location: Path | str, sql: str = "select * from {}", name: str = "people") -> dict[str, list]:
    return lightship.read_sql(str(location), sql.format(name)).to_pydict()


@pytest.mark.parametrize("extension", ["xlsx", "xlsm", "XLSX"])
def test_a_sheet_is_a_table(book: openpyxl.Workbook, tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"people.{extension}"
    book.save(path)
    assert read(path) == EXPECTED
    assert read(path, 'select n, "Name" from {} where amount > 1.75') == {"n": [-7], "Name": [None]}
    assert read(path, "select count(*) as rows from {}") == {"rows": [3]}


def test_days_of_the_calendar(tmp_path: Path) -> None:
    days = [datetime.date(1900, 3, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)]
    for epoch in (openpyxl.utils.datetime.WINDOWS_EPOCH, openpyxl.utils.datetime.MAC_EPOCH):
        book = openpyxl.Workbook()
        book.epoch = epoch
        book.active.append(["day", "long"])
        these = [day for day in days if day >= epoch.date()]
        for day in these:
            book.active.append([day, datetime.timedelta(days=1, hours=12)])
        book.save(tmp_path / "people.xlsx")
        found = read(tmp_path / "people.xlsx")
        assert found == {"day": these, "long": ["36:00:00"] * len(these)}
    # Excel has no days before 1900: openpyxl writes a negative number, which stays one.
    book = openpyxl.Workbook()
    book.active.append(["day"])
    book.active.append([datetime.date(1815, 12, 10)])
    book.save(tmp_path / "people.xlsx")
    assert read(tmp_path / "people.xlsx") == {"day": [-30701]}


def test_sheets_are_named(book: openpyxl.Workbook, tmp_path: Path) -> None:
    path = tmp_path / "people.xlsx"
    book.save(path)
    assert read(f"{path}?sheet=Hidden") == {"no": []}
    assert read(f"{path}?sheet=People %26 more", "select n from {} limit 1") == {"n": [1]}
    with pytest.raises(lightship.Error, match=r"no sheet `Nothing`; its sheets are `Hidden`, `People & more`, `Other`"):
        read(f"{path}?sheet=Nothing")
    with pytest.raises(lightship.Error, match=r"`delimiter` is an option of CSV, but .* is Excel"):
        read(f"{path}?delimiter=;")


def test_options_of_values(book: openpyxl.Workbook, tmp_path: Path) -> None:
    path = tmp_path / "people.xlsx"
    book.save(path)
    # openpyxl writes this text as the error that it looks like.
    assert read(f"{path}?sheet=Other") == {"a": [1], "b": [None]}
    sheet = book["Other"]
    sheet.append(["x", "-"])
    sheet.append([3, "#DIV/0!", None, "beyond"])
    book.save(path)
    found = read(f"{path}?sheet=Other&null=-&null=x")
    assert found == {"a": [1, None, 3], "b": [None, None, "#DIV/0!"], "column_4": [None, None, "beyond"]}
    assert read(f"{path}?sheet=Other&all-text")["a"] == ["1", "x", "3"]
    assert read(f"{path}?sheet=Other&header=false") == {
        "column_1": ["a", "1", "x", "3"],
        "column_2": ["b", None, "-", "#DIV/0!"],
        "column_4": [None, None, None, "beyond"],
    }
    with pytest.raises(lightship.Error, match=r"sheet `Other`, row 3: column `a`: `x` is not a 32-bit integer"):
        read(f"{path}?sheet=Other&types=a=integer")
    with pytest.raises(lightship.Error, match=r"row 4: a value in column D, which the table does not have"):
        read(f"{path}?sheet=Other&sample=1")


def test_ranges_of_cells(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["Sales of 2024"], [], ["region", "amount", "note"], ["north", 3, "x"], ["south", 4, None], ["all", 7]):
        book.active.append(row)
    path = tmp_path / "people.xlsx"
    book.save(path)
    assert read(f"{path}?range=A3:B5") == {"region": ["north", "south"], "amount": [3, 4]}
    assert read(f"{path}?range=B3:") == {"amount": [3, 4, 7], "note": ["x", None, None]}
    assert read(f"{path}?range=a4:a&header=false") == {"column_1": ["north", "south", "all"]}
    with pytest.raises(lightship.Error, match=r"range=A3: expected cells, as in A3:D100"):
        read(f"{path}?range=A3")


def test_other_workbooks(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {
            "a": [1, 2],
            "b": ["x", "02"],
            "c": [datetime.datetime(2024, 2, 29, 12, 0), datetime.datetime(2024, 3, 1)],
            "d": [datetime.time(9, 5), datetime.time(18, 0)],
            "e": [True, False],
        }
    )
    expected = {
        "a": [1, 2],
        "b": ["x", "02"],
        "c": [datetime.datetime(2024, 2, 29, 12, 0), datetime.datetime(2024, 3, 1)],
        "d": ["09:05:00", "18:00:00"],
        "e": [True, False],
    }
    frame.to_excel(tmp_path / "people.ods", engine="odf", index=False)
    assert read(tmp_path / "people.ods") == expected
    book = xlwt.Workbook()
    sheet = book.add_sheet("S")
    for column, name in enumerate(frame.columns):
        sheet.write(0, column, name)
        style = xlwt.easyxf(num_format_str={"c": "YYYY-MM-DD HH:MM:SS", "d": "HH:MM:SS"}.get(name, "General"))
        for row in range(2):
            sheet.write(row + 1, column, expected["d"][row] if name == "d" else frame[name].tolist()[row], style)
    # The name of another kind of workbook changes nothing.
    for name in ("people.xls", "people.xlsx"):
        book.save(tmp_path / name)
        assert read(tmp_path / name) == expected


def test_large_sheets_are_read_in_batches(tmp_path: Path) -> None:
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("S")
    sheet.append(["i", "text"])
    for row in range(50_000):
        sheet.append([row, f"text {row % 7}"])
    book.save(tmp_path / "people.xlsx")
    sql = "select count(*) as n, sum(i) as s, count(distinct text) as d, max(text) as m from {}"
    assert read(tmp_path / "people.xlsx", sql) == {
        "n": [50_000],
        "s": [sum(range(50_000))],
        "d": [7],
        "m": ["text 6"],
    }
    # A reader that wants no more ends.
    assert read(tmp_path / "people.xlsx", "select i from {} limit 3") == {"i": [0, 1, 2]}


def test_what_is_no_workbook(book: openpyxl.Workbook, tmp_path: Path) -> None:
    path = tmp_path / "people.xlsx"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(lightship.Error, match="not a workbook of Excel"):
        read(path)
    assert read(f"{path}?format=csv") == {"a": [1], "b": [2]}
    book.save(path)
    whole = path.read_bytes()
    for length in (8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(lightship.Error, match=r"people.xlsx: incomplete or damaged Excel file"):
            read(path)
    openpyxl.Workbook().save(path)
    with pytest.raises(lightship.Error):
        read(path, "select a from {}")
    # By its contents.
    (tmp_path / "people.dat").write_bytes(whole)
    assert read(tmp_path / "people.dat", "select n from {} limit 1") == {"n": [1]}
