"""Values of parameters as Arrow data."""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightship._errors import ProgrammingError, wrong

if TYPE_CHECKING:
    import pyarrow


def row_of(parameters: Any) -> pyarrow.Table | None:
    """One row with the values in order; None without values. Python's types decide Arrow's."""
    if parameters is None:
        return None
    if isinstance(parameters, Mapping):
        raise wrong(
            ProgrammingError,
            "expected parameters as a sequence, not by name",
            "write ? for each in the SQL, and give the values in the same order",
        )
    if isinstance(parameters, (str, bytes, bytearray)) or not hasattr(parameters, "__iter__"):
        raise wrong(ProgrammingError, f"expected parameters as a sequence, not {type(parameters).__name__}")
    values = list(parameters)
    if not values:
        return None
    from lightship._api import pyarrow_for

    pyarrow = pyarrow_for("parameters")
    columns = [_column(pyarrow, number, value) for number, value in enumerate(values, 1)]
    return pyarrow.Table.from_arrays(columns, names=[f"${number}" for number in range(1, len(values) + 1)])


def _column(pyarrow: Any, number: int, value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return pyarrow.array([value.bytes], pyarrow.binary(16))
    if isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    # Integers that have no 64 bits are numbers with as many digits.
    if type(value) is int and value.bit_length() > 63 and value != -(2**63):
        value = decimal.Decimal(value)
    try:
        return pyarrow.array([value])
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise wrong(
            ProgrammingError,
            f"parameter ${number}: a value of {type(value).__name__} can't be sent: {error}",
            "give it as text, and cast it in the SQL",
        ) from error
