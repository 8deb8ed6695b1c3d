#!/bin/sh
# The cargo with which test_wheel.py lets maturin build: what scripts/test-python.sh has built already is not built again.
# Of the extension alone, cargo would choose other features of the dependencies, and build DataFusion once more.
set -eu
if [ "$1" = rustc ]; then
    exec cargo build --locked --workspace --lib --bins --tests --features lightship-cli/otlp \
        --message-format json-render-diagnostics
fi
exec cargo "$@"
