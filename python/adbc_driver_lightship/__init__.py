"""The ADBC driver of Lightship, for ``adbc_driver_manager``. It is in the extension of the package ``lightship``."""

from __future__ import annotations

import adbc_driver_manager

from lightship import _lightship

__all__ = ["ENTRYPOINT", "connect", "driver_path"]

ENTRYPOINT = "AdbcDriverLightshipInit"


def driver_path() -> str:
    """The file of the driver."""
    return _lightship.__file__


def connect(uri: str, db_kwargs: dict[str, str] | None = None) -> adbc_driver_manager.AdbcDatabase:
    """Opens a source: any URI that ``lightship fetch`` reads."""
    options = {"entrypoint": ENTRYPOINT, "uri": uri, **(db_kwargs or {})}
    return adbc_driver_manager.AdbcDatabase(driver=driver_path(), **options)
