#!/usr/bin/env bash
# The Ansible role without a box: linters, the documentation of its arguments, and its template against the agent's own reading.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

bin=$("$ROOT/tests/ansible/venv.sh")
export LC_ALL=C.UTF-8 # Ansible takes no other
export PATH="$bin:$PATH" NO_COLOR=1 ANSIBLE_ROLES_PATH=$ROOT/ansible/roles

cd "$ROOT/ansible"
yamllint --strict .
# Its cache would lie among the sources.
ansible-lint --offline -q --strict --nocolor
ansible-doc --type role --roles-path roles monky_deployd | grep -q monky_deployd_tenancy_port || die "ansible-doc does not know the role's arguments"
ansible-playbook --syntax-check -i localhost, "$ROOT/tests/ansible/play.yml" >/dev/null

# The example of forty boxes is one.
example=$(mktemp -d)
trap 'rm -rf "$example"' EXIT
python3 "$ROOT/tests/ansible/example.py" README.md "$example"
hosts=$(ansible-playbook -i "$example/inventory" "$example/site.yml" --list-hosts | grep -c 'plant-')
[[ $hosts == 40 ]] || die "the example in ansible/README.md has $hosts boxes"

cd "$ROOT"
ANSIBLE_PLAYBOOK=$bin/ansible-playbook cargo test -q --locked --test role -- --include-ignored
