"""The programs of the guide run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import lightship

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


@pytest.mark.parametrize("page", ["python.md", "adbc.md"])
def test_the_guide(page: str, postgres: str, node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = os.environ.get("LIGHTSHIP_ADBC_DRIVER", "")
    if page == "adbc.md" and not driver:
        pytest.skip("LIGHTSHIP_ADBC_DRIVER names the driver")
    orders = "select i as id, i % 7 as amount, case i % 2 when 0 then 'north' else 'south' end as region"
    lightship.copy(postgres, f"{orders} from generate_series(1, 1000) i", postgres, table="orders", mode="replace")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    programs = re.findall(r"^```python\n(.*?)^```", (GUIDE / page).read_text(), re.M | re.S)
    assert programs
    for program in programs:
        program = program.replace("postgresql://me@db/shop", postgres).replace("lightship://db.example", node)
        program = program.replace('driver="lightship"', f"driver={driver!r}")
        exec(program, names)
