#!/bin/sh
# The tests run against real PostgreSQL and MariaDB servers of their own, which
# they start and remove. This installs the programs where they are missing.
set -eu
missing=""
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="postgresql"
command -v mariadbd >/dev/null 2>&1 || [ -x /usr/sbin/mariadbd ] || missing="$missing mariadb-server"
[ -n "$missing" ] || exit 0
echo "the tests need$([ "${missing# }" = "$missing" ] && echo ' ')$missing: installing"
if [ "$(id -u)" != 0 ]; then
    echo "not root: run 'sudo apt-get install $missing' and try again" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null
