"""The package as its users install it: `pip install ./python`, into an environment that has nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from servers import ROOT

Shell = Callable[..., str]

#: The command of the pages. Without the extra, nothing but the package is installed.
INSTALL = "pip install ./python"

#: Needs neither pyarrow nor any other package.
WITHOUT_PYARROW = """
import sys
import lightship
with lightship.read_sql(sys.argv[1], "select count(*) as n, sum(amount) as amount from sales", "reader") as reader:
    print("rows:", sum(batch.num_rows for batch in reader))
try:
    lightship.read_sql(sys.argv[1], "select 1 as n")
except lightship.ProgrammingError as error:
    print(error)
"""

THROUGH_ADBC = """
import sys
import adbc_driver_lightship.dbapi
with adbc_driver_lightship.dbapi.connect(sys.argv[1]) as connection, connection.cursor() as cursor:
    cursor.execute("select sum(amount) as amount from sales")
    print(cursor.fetch_arrow_table().to_pydict())
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Runs words of a command line in a new virtual environment, in the repository's folder. Returns what was printed,
    or the error if it is to fail."""
    venv = tmp_path_factory.mktemp("wheel") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("LIGHTSHIP_", "PYTHON"))}
    variables |= {
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        # The debug build. As users call it, it is the release build.
        "MATURIN_PEP517_ARGS": "--profile dev --strip",
        "CARGO": str(Path(__file__).with_name("cargo.sh")),
    }

    def run(*words: str, succeeds: bool = True) -> str:
        ended = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
        assert (ended.returncode == 0) == succeeds, f"{words}: {ended.stdout}{ended.stderr}"
        return ended.stdout if succeeds else ended.stderr

    for page in ("README.md", "docs/guide/python.md"):
        assert re.search(rf"^    {re.escape(INSTALL)}$", (ROOT / page).read_text(), re.M), page
    run("bash", "-c", INSTALL)
    return run


def test_the_command_is_that_of_the_package(shell: Shell, sales: str) -> None:
    assert shell("lightship", "--version").startswith("lightship ")
    assert shell("lightship", "--json", "fetch", "-q", sales, "select sum(amount) as amount from sales") == (
        '{"amount":12}\n'
    )
    assert "not found" in shell("lightship", "fetch", sales, "select * from absent", succeeds=False)


def test_a_reader_needs_no_other_package(shell: Shell, sales: str) -> None:
    listed = shell("pip", "list", "--format", "freeze")
    assert "pyarrow" not in listed, listed
    assert "lightship==" in listed
    said = shell("python", "-c", WITHOUT_PYARROW, sales)
    assert "rows: 1\n" in said
    assert "pip install pyarrow" in said


def test_the_adbc_driver_is_in_the_package(shell: Shell, sales: str) -> None:
    shell("pip", "install", "-q", "adbc-driver-manager", "pyarrow")
    assert shell("python", "-c", THROUGH_ADBC, sales).endswith("{'amount': [12]}\n")


def test_the_wheel_is_for_every_python_and_typed(shell: Shell) -> None:
    tag = shell("python", "-c", "import importlib.metadata as m; print(m.distribution('lightship').read_text('WHEEL'))")
    assert re.search(r"^Tag: cp310-abi3-\w+$", tag, re.M), tag
    names = shell("python", "-c", "import importlib.metadata as m; print(*m.files('lightship'), sep='\\n')").split("\n")
    for name in ("lightship/py.typed", "lightship/_lightship.pyi", "adbc_driver_lightship/__init__.py"):
        assert name in names
    assert not [name for name in names if "tests/" in name]
