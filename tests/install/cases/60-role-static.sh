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

# The role and install.sh take turns on a box: what they make of the same configuration is the same.
ansible localhost --connection local --module-name ansible.builtin.template \
  --args "src=$ROOT/ansible/roles/monky_deployd/templates/dropin.conf.j2 dest=$example/role.conf" \
  --extra-vars '{"monky_deployd_pull_timeout_s": 700, "monky_deployd_healthy_timeout_s": 40, "monky_deployd_state_dir": "/srv/monky"}' >/dev/null 2>&1
# shellcheck disable=SC2016 # for that shell
bash -euc '. <(sed "\$d" "$1"); globals; opt[dry-run]="" root=$2 work=$2; systemctl() { :; }; install() { mkdir -p "${@: -1}"; }
  printf "pull_timeout_s: 700\nhealthy_timeout_s: 40\nstate_dir: /srv/monky\n" >"$2/config.yaml"; fit_the_unit' - "$ROOT/packaging/install.sh" "$example" >/dev/null
diff "$example/role.conf" "$example/etc/systemd/system/monky-deployd.service.d/configuration.conf" >&2 || die "the role and install.sh do not agree on the unit's drop-in"

cd "$ROOT"
ANSIBLE_PLAYBOOK=$bin/ansible-playbook cargo test -q --locked --test role -- --include-ignored
