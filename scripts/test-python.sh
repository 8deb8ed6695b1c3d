#!/bin/sh
# Checks the Python package with ruff and mypy, and tests it with the extension of the cargo build, and a node with
# clients in Python and Java: `scripts/test-python.sh [PYTEST-ARGUMENTS]`. The packages that the tests need come into a
# virtual environment, target/python-venv, unless LIGHTSHIP_VENV names another one; drivers in Java into target/jars.
set -eu
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-target}"
venv="$(realpath -m "${LIGHTSHIP_VENV:-$target/python-venv}")"
# The selection of `cargo test --workspace`: with another one, DataFusion would be built once more with other features.
# CARGO may be a script that runs cargo.
${CARGO:-cargo} build --locked --workspace --lib --bins --tests --features lightship-cli/otlp
requirements=python/tests/requirements.txt
if ! cmp -s "$requirements" "$venv/requirements.txt"; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install -q -r "$requirements"
    cp "$requirements" "$venv/requirements.txt"
fi
package="$target/python"
mkdir -p "$package/lightship" "$package/adbc_driver_lightship"
cp python/lightship/*.py python/lightship/*.pyi python/lightship/py.typed "$package/lightship/"
cp python/adbc_driver_lightship/*.py "$package/adbc_driver_lightship/"
# Each is hundreds of megabytes, with the debug information of the engine.
ln -f "$target/debug/lib_lightship.so" "$package/lightship/_lightship.abi3.so"
LIGHTSHIP_ADBC_DRIVER="$(realpath "$target/debug/libadbc_driver_lightship.so")"
LIGHTSHIP_PROGRAM="$(realpath "$target/debug/lightship")"
LIGHTSHIP_JARS="$(realpath "$target")/jars"
PYTHONPATH="$(realpath "$package")"
export LIGHTSHIP_ADBC_DRIVER LIGHTSHIP_PROGRAM LIGHTSHIP_JARS PYTHONPATH
(cd python && "$venv/bin/ruff" check -q && "$venv/bin/ruff" format --check -q && "$venv/bin/mypy")
exec "$venv/bin/python" -m pytest -c python/pyproject.toml python/tests "$@"
