#!/bin/sh
# Installs the ADBC drivers of other vendors that the tests load, in target/adbc-drivers: SQLite's, from PyPI, and
# DuckDB's library, from npm (the one in DuckDB's Python package can be loaded only by Python).
set -eu
cd "$(dirname "$0")/.."
sqlite=1.13.0
duckdb=1.5.6-r.1
folder="${CARGO_TARGET_DIR:-target}/adbc-drivers"
installed="$folder/sqlite-$sqlite-duckdb-$duckdb"
[ ! -f "$installed" ] || exit 0
echo "installing the ADBC drivers that the tests load"
rm -rf "$folder"
mkdir -p "$folder"
work="$folder/.install"
mkdir "$work"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --no-deps --target "$work/python" "adbc-driver-sqlite==$sqlite"
cp "$work/python/adbc_driver_sqlite/libadbc_driver_sqlite.so" "$folder/"
case "$(uname -m)" in
aarch64 | arm64) machine=arm64 ;;
*) machine=x64 ;;
esac
npm pack --silent --pack-destination "$work" "@duckdb/node-bindings-linux-$machine@$duckdb" >/dev/null
tar xzf "$work"/*.tgz -C "$work" package/libduckdb.so
mv "$work/package/libduckdb.so" "$folder/"
touch "$installed"
