#!/bin/sh
# The tests run against real PostgreSQL and MariaDB servers of their own, which
# they start and remove, over networks of their own (ip, tc), and in a browser. This
# installs the programs where they are missing. The clients in Python have an environment of their own; those in
# Java are single files, which the JDK compiles, with drivers that Maven downloads. The ADBC drivers of others have a
# script of their own (test-drivers.sh).
set -eu
packages=""
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || packages="postgresql"
[ -x /usr/sbin/mariadbd ] || packages="$packages mariadb-server"
{ [ -x /usr/bin/chromium ] || [ -x /usr/bin/chromium-browser ] || [ -x /usr/bin/google-chrome ]; } ||
    packages="$packages chromium"
python3 -c 'import ensurepip, venv' 2>/dev/null || packages="$packages python3-venv"
command -v javac >/dev/null || packages="$packages openjdk-17-jdk-headless"
command -v mvn >/dev/null || packages="$packages maven"
# Networks need root; without it, their tests say that they are skipped.
[ "$(id -u)" != 0 ] || { command -v ip && command -v tc; } >/dev/null || packages="$packages iproute2"
command -v npm >/dev/null || packages="$packages npm"
drivers="$(dirname "$0")/test-drivers.sh"
[ -n "$packages" ] || exec "$drivers"
echo "the tests need these packages, which are missing: $packages; installing"
if [ "$(id -u)" != 0 ]; then
    echo "not root: run 'sudo apt-get install $packages' and try again" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $packages >/dev/null
exec "$drivers"
