#!/usr/bin/env bash
# Makes Ansible and its linters available in target/, of exactly the versions in requirements.txt; prints the folder of the programs.
set -euo pipefail
cd "$(dirname "$0")"
venv=$(realpath -m ../../target/ansible-venv)
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9
if ! cmp -s requirements.txt "$venv/requirements.txt"; then
  rm -rf "$venv"
  { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement requirements.txt; } >&2
  cp requirements.txt "$venv/requirements.txt"
fi
echo "$venv/bin"
