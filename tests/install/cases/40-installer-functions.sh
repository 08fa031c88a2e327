#!/usr/bin/env bash
# The installer in a folder that plays the machine: programs that change a system (apt-get, systemctl, docker, ziti …) are stand-ins
# that write down how they were called; bash, coreutils, curl and the agent that judges the configuration are real. Needs no box and
# no root. 50-installer-*.sh have it install a real package on a real systemd.
# Invariant: every test can fail, and a run without any is a failure.
# shellcheck disable=SC2016,SC2034,SC2094 # stand-ins are quoted programs; the script's own variables are set for it
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd -P)
repo=$(realpath "$here/../../..")
export LC_ALL=C
script=${INSTALL_SH:-$repo/packaging/install.sh}
registry=$repo/tests/install/registry.py
real_agent=${MONKY_DEPLOYD_BIN:-$repo/target/debug/monky-deployd}
[[ -n ${MONKY_DEPLOYD_BIN:-} ]] || (cd "$repo" && cargo build --locked --quiet) || exit 1
all=$(mktemp -d "${TMPDIR:-/tmp}/monky-installer.XXXXXX")
servers=()
# In every secret of this run, and of no other.
word=CANARY$$
trap 'for pid in "${servers[@]}"; do kill "$pid"; done; rm -rf "$all"' EXIT

# ---- Stand-ins. Each appends a line to $T/calls; if there is a file $T/watch, it writes what the process list shows of
# secrets to $T/leaks.

stub() { # NAME BODY
  cat >"$T/bin/$1" <<STUB
#!/bin/bash
printf '%s %s\n' $1 "\$*" >>"$T/calls"
if [[ -e "$T/watch" ]]; then
  # The pattern does not find itself.
  grep -alE '${word/Y/[Y]}' /proc/[0-9]*/cmdline /proc/self/environ 2>/dev/null | while read -r at; do
    printf '$1 saw it in %s: %s\n' "\$at" "\$(tr '\0' ' ' <"\$at")" >>"$T/leaks"
  done
fi
$2
STUB
  chmod 755 "$T/bin/$1"
}

machine() {
  mkdir -p "$T"/{bin,run/systemd/system,etc,var/lib}
  : >"$T/calls"
  : >"$T/leaks"
  printf 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n' >"$T/etc/os-release"
  stub dpkg 'case $1 in --print-architecture) echo amd64 ;; --compare-versions) [[ $2 != "$4" && $(printf "%s\n%s\n" "$2" "$4" | sort -V | tail -n1) == "$2" ]] ;; esac'
  # "Installed" is what apt-get wrote here.
  stub dpkg-query "case \$2 in *Conffiles*) cat '$T/conffiles' 2>/dev/null ;; *) v=\$(cat '$T/installed' 2>/dev/null) && echo \"installed \$v\" ;; esac"
  # A package of the tests is two lines: name and version.
  stub dpkg-deb "case \$1 in -f) [[ \$3 == Package ]] && sed -n 1p \"\$2\" || sed -n 2p \"\$2\" ;; -x) mkdir -p \"\$3/usr/bin\" && ln -s '$real_agent' \"\$3/usr/bin/monky-deployd\" ;; esac"
  stub apt-get "for a; do [[ \$a == *.deb ]] && sed -n 2p \"\$a\" >'$T/installed' && cp '$T/agent-stub' '$T/bin/monky-deployd'; done; [[ ! -e '$T/apt-fails' ]] || { echo 'E: no route to the repository' >&2; exit 100; }"
  stub apt-cache 'printf "%s:\n  Installed: (none)\n  Candidate: (none)\n" "$2"'
  stub docker "case \"\$*\" in 'compose version --short') echo 2.26.1 ;; info*) echo /var/lib/docker ;; esac"
  stub dockerd 'echo Usage'
  # The agent's user is not on this machine.
  real_install=$(command -v install)
  stub install "a=(); while ((\$#)); do case \$1 in -o | -g) shift ;; *) a+=(\"\$1\") ;; esac; shift; done; exec '$real_install' \"\${a[@]}\""
  stub systemctl "case \"\$*\" in is-enabled*|is-active*) [[ -e '$T/timer-on' ]] ;; 'enable --quiet --now monky-deployd.timer') touch '$T/timer-on' ;; cat*) exit 1 ;; esac"
  stub runuser 'shift 3; exec "$@"'
  stub id 'echo 0'
  stub ziti-edge-tunnel 'while (($#)); do [[ $1 == --identity ]] && out=$2; shift; done; printf "{\"ztAPI\": \"https://x\", \"id\": {\"key\": \"k\"}}" >"$out"'
  rm "$T/bin/id"
  stub id "[[ \$* != '-u ziti' ]] || exit 1; echo 0"
  cat >"$T/agent-stub" <<STUB
#!/bin/bash
printf 'monky-deployd %s\n' "\$*" >>"$T/calls"
case "\$1" in
  --help) echo '  tick   One pass'; echo '  check  Preflight' ;;
  bootstrap) cat >"$T/stored-grant"; mkdir -p "$T/var/lib/monky-deployd"; touch "$T/var/lib/monky-deployd/bootstrap.jwt" ;;
  status) cat "$T/status.json" 2>/dev/null ;;
  tick) echo "its words"; exit "\$(cat "$T/tick-status" 2>/dev/null || echo 0)" ;;
  check) echo 'ok configuration'; exit "\$(cat "$T/check-status" 2>/dev/null || echo 0)" ;;
  *) exec "$real_agent" "\$@" ;;
esac
STUB
  chmod 755 "$T/agent-stub"
  printf 'monky-deployd\n0.2.0-1\n' >"$T/package.deb"
  printf -- '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n' >"$T/ca.pem"
  jwt "$(($(date +%s) + 600))" GRANT >"$T/bootstrap.jwt"
  jwt "$(($(date +%s) + 600))" ENROL >"$T/enrol.jwt"
  export PATH="$T/bin:$PATH"
}

base64url() { base64 -w0 | tr '+/' '-_' | tr -d '='; }

jwt() { # EXP NAME
  printf '%s.%s.%s\n' "$(printf '{"alg":"RS256"}' | base64url)" "$(printf '{"iss":"x","exp":%s,"jti":"%s"}' "$1" "$2" | base64url)" "$word-${2//[^A-Z]/}-signature"
}

# The script's functions, in this shell.
functions() {
  # shellcheck source=/dev/null
  . <(sed '$d' "$script")
  globals
  work=$T/work
  root=$T
  mkdir -p "$work"
  local name
  while IFS='|' read -r name _; do opt["$name"]=""; done < <(flags)
}

# The whole script, with the folder as its root; as if it were piped.
installer() {
  {
    sed '$d' "$script"
    # shellcheck disable=SC2016
    printf 'eval "$(declare -f globals | sed "1s/globals/globals_of_the_script/")"\nglobals() { globals_of_the_script; root=%q; }\n' "$T"
    tail -n1 "$script"
  } >"$T/script"
  bash -s -- "$@" <"$T/script" >"$T/out" 2>&1
}

NEEDED=(--env qa-02 --tenancy-host tenancy.example --bao-addr https://bao.example:8200)

serve() { # FOLDER LOG FLAGS… : prints the port. With $header only who sends it is answered.
  local folder=$1 log=$2 port_file=$T/port.$RANDOM
  shift 2
  REGISTRY_HEADER=${header:-} python3 "$registry" "$folder" "$log" "$port_file" "$@" >/dev/null 2>&1 &
  servers+=($!)
  echo $! >>"$T/pids"
  for _ in {1..100}; do [[ -s $port_file ]] && break; sleep 0.05; done
  cat "$port_file"
}

published() { # makes a registry's folder with the package in it
  local at=$T/registry/generic/monky-deployd/0.2.0
  mkdir -p "$at"
  cp "$T/package.deb" "$at/monky-deployd_0.2.0_amd64.deb"
  (cd "$at" && sha256sum monky-deployd_0.2.0_amd64.deb >monky-deployd_0.2.0_amd64.deb.sha256)
}

# ---- What a test says

fail() {
  printf '    %s\n' "$@"
  [[ ! -s $T/out ]] || sed 's/^/    | /' "$T/out"
  exit 1
}
says() { grep -F -- "$1" "$T/out" >/dev/null || fail "it does not say: $1"; }
is_silent_about() { ! grep -F -- "$1" "$T/out" >/dev/null || fail "it says: $1"; }
called() { grep -F -- "$1" "$T/calls" >/dev/null || fail "not called: $1" "$(cat "$T/calls")"; }
not_called() { ! grep -F -- "$1" "$T/calls" >/dev/null || fail "called: $1"; }
ends() { # STATUS COMMAND…
  local want=$1 got=0
  shift
  "$@" || got=$?
  [[ $got == "$want" ]] || fail "ended with $got, not with $want: $*"
}
same() { [[ $1 == "$2" ]] || fail "is:   $1" "must: $2"; }
# Everything on the machine but what the stand-ins write down, and but the times of folders: something may have come and gone.
fingerprint() { (cd "$T" && find etc var opt -type f -o -type d 2>/dev/null | sort | while read -r f; do if [[ -f $f ]]; then stat -c '%n %a %Y' "$f" && sha256sum "$f"; else stat -c '%n %a' "$f"; fi; done); }
# OpenZiti's program where the proxy unit has it.
has_ziti() { mkdir -p "$T/usr/bin" && ln -s "$T/bin/ziti" "$T/usr/bin/ziti"; }
# A box that was installed and has ticked.
has_ticked() { mkdir -p "$T/var/lib/monky-deployd" && touch "$T/var/lib/monky-deployd/state.json"; }

# ---- Tests

an_unknown_flag_a_missing_value_and_a_stray_word_are_usage_errors() {
  ends 2 installer --env qa --sitee x
  says "there is no flag --sitee"
  ends 2 installer --env
  says "--env needs a value"
  ends 2 installer --laptop=yes
  says "--laptop takes no value"
  ends 2 installer $word-STRAY
  is_silent_about $word-STRAY
  ends 2 installer --env Bad_Env
  ends 2 installer "${NEEDED[@]}" --transport carrier-pigeon
  ends 2 installer "${NEEDED[@]}" --docker-data-root /data/../etc
  ends 2 installer "${NEEDED[@]}" --set novalue
  ends 2 installer "${NEEDED[@]}" --bao-ca "$T/nowhere.pem"
  same "$(cat "$T/calls")" ""
}

what_is_missing_is_named_with_its_flag() {
  ends 2 installer --deb "$T/package.deb" --env qa-02 --bao-addr https://bao.example:8200
  says "--tenancy-host is needed"
  ends 2 installer --deb "$T/package.deb" --tenancy-host t --bao-addr https://bao.example:8200
  says "--env is needed"
  ends 2 installer "${NEEDED[@]}"
  says "--gitlab-url URL"
  ends 2 installer "${NEEDED[@]}" --source gitea
  says "--gitea-url URL"
}

help_names_every_flag_and_every_exit_status() {
  ends 0 installer --help
  local name
  while read -r name; do says "--$name"; done < <(sed -n "/^flags() {/,/^TABLE/p" "$script" | sed -n 's/^\([a-z-]*\)|.*/\1/p')
  says "3 installed, but"
  # The guide too, with the variables.
  cp "$repo/docs/install.md" "$T/out"
  while IFS='|' read -r name _ variable _; do
    says "\`--$name"
    [[ -z $variable ]] || says "\`$variable\`"
  done < <(sed -n "/^flags() {/,/^TABLE/p" "$script" | grep -E '^[a-z-]+\|')
}

shellcheck_finds_nothing_in_the_installer_and_its_tests() {
  shellcheck -x "$repo/packaging/install.sh" "$repo"/tests/install/cases/*-installer*.sh >"$T/out" 2>&1 || fail "shellcheck (apt-get install shellcheck):"
}

a_download_that_was_cut_runs_nothing() {
  local size at
  size=$(stat -c %s "$script")
  # Every byte would take minutes: 60 places, and the last ones before the call.
  for at in $(seq 200 $((size / 57)) $((size - 20))) $((size - 18)) $((size - 25)); do
    # Some cuts leave half a line that is no bash: an error is as good as nothing.
    head -c "$at" "$script" | bash -s -- "${NEEDED[@]}" --deb "$T/package.deb" >"$T/out" 2>/dev/null || true
    [[ ! -s $T/out && ! -s $T/calls ]] || fail "cut at $at of $size it did something"
  done
}

elsewhere_than_on_what_was_tried_it_says_so_and_stops() {
  printf 'PRETTY_NAME="Fedora Linux 40"\nVERSION_ID=40\nID=fedora\n' >"$T/etc/os-release"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "this is Fedora Linux 40"
  says "Nothing was changed."
  for version in 22.04 24.04; do
    printf 'ID=ubuntu\nVERSION_ID="%s"\n' $version >"$T/etc/os-release"
    ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb" --dry-run
  done
}

it_asks_for_root_and_for_systemd() {
  stub id 'echo 1000'
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "this needs root"
  stub id "[[ \$* != '-u ziti' ]] || exit 1; echo 0"
  rm -r "$T/run/systemd"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "systemd is not process 1"
}

a_first_run_does_everything_in_order_and_a_second_run_nothing() {
  # shellcheck disable=SC2054
  local flags=("${NEEDED[@]}" --deb "$T/package.deb" --site cbs --bootstrap-file "$T/bootstrap.jwt" --enrol-jwt "$T/enrol.jwt" --bao-ca "$T/ca.pem" --laptop)
  ends 0 installer "${flags[@]}"
  says "Done."
  called "systemctl enable --quiet --now monky-deployd.timer"
  called "monky-deployd check"
  same "$(cat "$T/stored-grant")" "$(cat "$T/bootstrap.jwt")"
  same "$(stat -c %a "$T/opt/openziti/etc/identities/monky-qa-02.json")" 600
  same "$(stat -c %a "$T/etc/monky-deployd/config.yaml")" 644
  same "$(stat -c %a "$T/etc/monky-deployd/bao-ca.pem")" 644
  same "$(stat -c %a "$T/etc/monky-deployd")" 755
  local order
  order=$(grep -nE '^(ziti-edge-tunnel enroll|apt-get .*package.deb|monky-deployd bootstrap|systemctl enable --quiet --now|monky-deployd check)' "$T/calls" | cut -d: -f1 | tr '\n' ' ')
  same "$(wc -w <<<"$order")" 5
  same "$order" "$(tr ' ' '\n' <<<"$order" | sort -n | tr '\n' ' ' | sed 's/^ //')"
  local before
  before=$(fingerprint)
  : >"$T/calls"
  ends 0 installer "${flags[@]}"
  says "Nothing had to be changed."
  same "$(fingerprint)" "$before"
  not_called "apt-get"
  not_called "systemctl enable"
  not_called "systemctl restart"
  not_called "monky-deployd bootstrap"
  same "$(find "$T/etc" -name '*.before-*')" ""
}

a_dry_run_changes_nothing_and_says_everything() {
  local before
  before=$(fingerprint)
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb" --bootstrap-file "$T/bootstrap.jwt" --enrol-jwt "$T/enrol.jwt" --bao-ca "$T/ca.pem" --docker-data-root /data/docker --dry-run
  same "$(fingerprint)" "$before"
  not_called "apt-get"
  not_called "systemctl enable"
  not_called "systemctl restart"
  not_called "enroll"
  for what in "would enrol this box" "would install the CA" "would write $T/etc/monky-deployd/config.yaml" "would install monky-deployd 0.2.0-1" "would set data-root" "would store the bootstrap grant" \
    "would enable and start monky-deployd.timer" "would run monky-deployd check"; do says "$what"; done
}

temporary_files_are_removed_whatever_happens() {
  mkdir "$T/tmp"
  TMPDIR=$T/tmp ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb" --token $word-TOKEN
  TMPDIR=$T/tmp ends 2 installer --env Qa --token $word-TOKEN
  printf 'other\n1\n' >"$T/wrong.deb"
  TMPDIR=$T/tmp ends 1 installer "${NEEDED[@]}" --deb "$T/wrong.deb"
  same "$(ls -A "$T/tmp")" ""
}

no_secret_is_in_the_process_list_or_in_a_childs_environment() {
  published
  local port
  port=$(header="Deploy-Token: $word-TOKEN" serve "$T/registry" "$T/log")
  # curl is real, and looked at like the others.
  local real
  real=$(command -v curl)
  stub curl "exec '$real' \"\$@\""
  touch "$T/watch"
  ends 0 installer "${NEEDED[@]}" --gitlab-url "http://127.0.0.1:$port/generic" --token $word-TOKEN --bootstrap-file "$T/bootstrap.jwt" --enrol-jwt "$T/enrol.jwt"
  called "curl --disable"
  same "$(cat "$T/leaks")" ""
  rm "$T/installed" "$T/bin/monky-deployd"
  MONKY_TOKEN=$word-TOKEN ends 0 installer "${NEEDED[@]}" --gitlab-url "http://127.0.0.1:$port/generic"
  called "apt-get"
  same "$(cat "$T/leaks")" ""
  is_silent_about CANARY
  # The test can see a leak.
  "$T/bin/systemctl" status $word-VISIBLE
  [[ -s $T/leaks ]] || fail "the stand-ins do not see what is in the process list"
}

flags_from_the_environment_survive_a_token_in_the_arguments() {
  MONKY_SITE="Hall 3, rack 2" MONKY_LAPTOP=1 ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb" --token $word-TOKEN
  grep -F 'site: "Hall 3, rack 2"' "$T/etc/monky-deployd/config.yaml" >/dev/null || fail "the site is lost"
  grep -F 'laptop_mode: true' "$T/etc/monky-deployd/config.yaml" >/dev/null || fail "laptop_mode is lost"
}

# -- JWTs

a_jwt_is_judged_by_its_end_before_anything_is_changed() {
  functions
  local now name
  now=$(date +%s)
  # Payloads of every length, so of every padding.
  for name in a bb ccc dddd '~~~???>>>'; do
    jwt $((now + 60)) "$name" >"$T/j"
    (living_jwt "$T/j" it them) >"$T/out" 2>&1 || fail "a living one is refused ($name)"
    jwt $((now - 60)) "$name" >"$T/j"
    ! (living_jwt "$T/j" it them) >"$T/out" 2>&1 || fail "an expired one is taken ($name)"
    says "expired at"
    says "1 minutes ago"
    is_silent_about CANARY
  done
  jwt "$now" now >"$T/j"
  ! (living_jwt "$T/j" it them) >/dev/null 2>&1 || fail "one that ends now is taken"
  for bad in '' 'no jwt' 'a.b' 'a.b.c.d' 'a.!!.c' '{"exp":1}'; do
    printf '%s' "$bad" >"$T/j"
    ! (living_jwt "$T/j" it them) >"$T/out" 2>&1 || fail "taken: $bad"
    says "holds no JWT"
  done
  jwt $((now - 7200)) OLD >"$T/old.jwt"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --enrol-jwt "$T/old.jwt"
  says "--enrol-jwt: $T/old.jwt expired"
  says "Nothing was changed."
  not_called enroll
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --bootstrap-file "$T/old.jwt"
  says "--bootstrap-file: $T/old.jwt expired"
  says "Nothing was changed."
  [[ ! -e $T/etc/monky-deployd ]] || fail "something was written"
}

# -- Enrolment

an_identity_is_written_whole_or_not_at_all() {
  local to=$T/opt/openziti/etc/identities/monky-qa-02.json
  # It writes half of it, for everyone to read, and fails.
  stub ziti-edge-tunnel 'while (($#)); do [[ $1 == --identity ]] && out=$2; shift; done; umask 022; printf "{\"ztAPI\"" >"$out"; echo "controller said no" >&2; exit 1'
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --enrol-jwt "$T/enrol.jwt"
  says "controller said no"
  [[ ! -e $to ]] || fail "half an identity is there"
  # It says that all went well.
  stub ziti-edge-tunnel 'while (($#)); do [[ $1 == --identity ]] && out=$2; shift; done; printf "{\"ztAPI\"" >"$out"'
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --enrol-jwt "$T/enrol.jwt"
  says "left no whole identity"
  [[ ! -e $to ]] || fail "half an identity is there"
  stub timeout 'exit 124'
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --enrol-jwt "$T/enrol.jwt"
  says "did not come back"
  rm "$T/bin/timeout"
  same "$(find "$T/opt" -type f)" ""
  same "$(find "$T/opt" -name '.enrol*')" ""
}

ziti_writes_it_open_and_eats_the_token_but_neither_shows() {
  rm "$T/bin/ziti-edge-tunnel"
  stub ziti 'while (($#)); do case $1 in --jwt) jwt=$2 ;; --out) out=$2 ;; esac; shift; done; umask 022; printf "{\"ztAPI\": 1, \"id\": {}}" >"$out"; chmod 644 "$out"; rm "$jwt"'
  has_ziti
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb" --enrol-jwt "$T/enrol.jwt" --transport proxy --proxy-services 'tenancy:8441 bao:8442' --proxy-bao 127.0.0.1:8442
  called "ziti edge enroll --jwt"
  same "$(stat -c %a "$T/etc/monky-deployd/identity.json")" 600
  [[ -s $T/enrol.jwt ]] || fail "the operator's file is gone"
}

with_proxy_the_unit_is_told_what_to_carry_and_started() {
  stub ziti 'while (($#)); do [[ $1 == --out ]] && out=$2; shift; done; printf "{\"id\": {}}" >"$out"'
  has_ziti
  local flags=("${NEEDED[@]}" --deb "$T/package.deb" --transport proxy)
  ends 2 installer "${flags[@]}"
  says "--proxy-services is needed"
  ends 2 installer "${flags[@]}" --proxy-services 'tenancy'
  # Not enrolled: nothing to start it with.
  ends 0 installer "${flags[@]}" --proxy-services 'tenancy:8441'
  same "$(cat "$T/etc/monky-deployd/proxy.env")" "SERVICES=tenancy:8441"
  not_called "enable --quiet --now monky-deployd-proxy.service"
  rm "$T/timer-on"
  printf '# mine\nOTHER=1\n' >>"$T/etc/monky-deployd/proxy.env"
  ends 0 installer "${flags[@]}" --proxy-services 'tenancy:8441 bao:8442' --enrol-jwt "$T/enrol.jwt"
  same "$(cat "$T/etc/monky-deployd/proxy.env")" $'# mine\nOTHER=1\nSERVICES=tenancy:8441 bao:8442'
  called "enable --quiet --now monky-deployd-proxy.service"
  grep -Fx '  tenancy: 127.0.0.1:8441' "$T/etc/monky-deployd/config.yaml" >/dev/null || fail "the agent does not dial the listener"
  # Started before its file was written: by a run that broke off in between.
  stub systemctl "case \"\$*\" in show*ActiveEnterTimestamp*) cat '$T/since' ;; esac"
  TZ=UTC date -d 'yesterday' '+%a %Y-%m-%d %H:%M:%S.%6N %Z' >"$T/since"
  ends 0 installer "${flags[@]}"
  called "systemctl restart monky-deployd-proxy.service"
  : >"$T/calls"
  TZ=UTC date -d 'tomorrow' '+%a %Y-%m-%d %H:%M:%S.%6N %Z' >"$T/since"
  ends 0 installer "${flags[@]}"
  not_called "systemctl restart"
}

a_ziti_that_the_proxy_unit_would_not_find_is_told_before_anything_is_changed() {
  stub ziti 'exit 0'
  local flags=("${NEEDED[@]}" --deb "$T/package.deb" --transport proxy --proxy-services tenancy:8441)
  ends 1 installer "${flags[@]}"
  says "ziti is at $T/bin/ziti, and monky-deployd-proxy.service runs /usr/bin/ziti"
  says "install -m 755 $T/bin/ziti /usr/bin/ziti"
  says "Nothing was changed."
  grep -q '^ExecStart=/usr/bin/ziti ' "$repo/packaging/monky-deployd-proxy.service" || fail "the unit runs another one"
  has_ziti
  ends 0 installer "${flags[@]}"
  says "tunneler: $T/usr/bin/ziti is here"
}

an_identity_that_is_there_is_kept_even_if_the_token_has_expired() {
  mkdir -p "$T/opt/openziti/etc/identities"
  echo mine >"$T/opt/openziti/etc/identities/monky-qa-02.json"
  jwt 1 OLD >"$T/old.jwt"
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb" --enrol-jwt "$T/old.jwt"
  same "$(cat "$T/opt/openziti/etc/identities/monky-qa-02.json")" mine
  not_called enroll
}

# -- Configuration

a_new_configuration_is_what_the_flags_say() {
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb" --site 'a "b" \c # d' --tenancy-port 8443 --bao-ca "$T/ca.pem" --tenancy-ca "$T/ca.pem" --laptop --set keep_releases=5 --set registry_host=r.example:5000
  "$real_agent" --config "$T/etc/monky-deployd/config.yaml" config show >"$T/out"
  for line in 'env_id: qa-02' 'site: "a \"b\" \\c # d"' '  host: tenancy.example' '  port: 8443' '  ca_file: /etc/monky-deployd/tenancy-ca.pem' '  addr: https://bao.example:8200' \
    '  ca_file: /etc/monky-deployd/bao-ca.pem' 'laptop_mode: true' 'keep_releases: 5' 'registry_host: r.example:5000'; do grep -Fx -- "$line" "$T/out" >/dev/null || fail "not in it: $line"; done
}

each_key_of_the_example_can_be_set_and_nothing_else_changes() {
  functions
  local key value section="" name opened n=0
  cp "$repo/config.example.yaml" "$T/example"
  "$real_agent" --config "$T/example" config show >"$T/before"
  # The agent's own table, from what it prints: every key that has a value, set to another one of its kind.
  while IFS= read -r line; do
    [[ $line =~ ^([a-z_]+):$ ]] && section=${BASH_REMATCH[1]}. && continue
    [[ $line =~ ^(\ *)([a-z_]+):\ (.*)$ ]] || continue
    [[ -n ${BASH_REMATCH[1]} ]] || section=""
    name=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]}
    key=$section$name
    case $value in
      *[!0-9]*) case $key in
        transport | tenancy.scheme | on_unhealthy | log_level | laptop_mode | prod) continue ;;
        bao.addr) value=https://other.example:8201 ;;
        policy.*) value=refuse ;;
        state_dir | *_file) value=/srv/other ;;
        site | '""') value='x, y' ;;
        *) value=other ;;
        esac ;;
      *) value=$((value + 1)) ;;
    esac
    config_set "$T/example" "$key" "$value" >"$T/new"
    "$real_agent" --config "$T/new" config show >"$T/after" 2>"$T/out" || fail "$key: $(diff "$T/example" "$T/new")"
    same "$(config_get "$T/new" "$key")" "$value"
    # One line of what holds is another (env_id is part of two defaults).
    [[ $key == env_id ]] || same "$key $(diff "$T/before" - <"$T/after" | grep -c '^>')" "$key 1"
    # Nothing is taken out of the file but, at most, the old line; a section that is a comment there is opened.
    opened=0
    [[ -z $section ]] || [[ $key != "$section"* ]] || grep -qx "${section%.}:" "$T/example" || opened=1
    same "$key $(diff "$T/example" "$T/new" | grep -c '^>')" "$key $((1 + opened))"
    config_set "$T/new" "$key" "$value" >"$T/again"
    cmp -s "$T/new" "$T/again" || fail "$key: setting it again changes something"
    n=$((n + 1))
  done <"$T/before"
  ((n >= 18)) || fail "only $n keys were tried"
}

a_list_is_set_as_a_list() {
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb" --set 'policy.bind_roots=[/srv, /mnt]'
  grep -qx '  bind_roots: \[/srv, /mnt\]' "$T/etc/monky-deployd/config.yaml" || fail "$(cat "$T/etc/monky-deployd/config.yaml")"
}

a_list_takes_the_place_of_one_that_is_written_an_item_a_line() {
  functions
  printf 'policy:\n  binds: refuse\n  bind_roots: # why\n    - "/srv" # one\n    # two\n\n    - /mnt\n  # images\n  images: warn\nsite: x\n' >"$T/c"
  same "$(config_get "$T/c" policy.bind_roots)" '[/srv, /mnt]'
  same "$(config_get "$T/c" policy.images)" warn
  config_set "$T/c" policy.bind_roots '[/a]' >"$T/d"
  same "$(cat "$T/d")" $'policy:\n  binds: refuse\n  bind_roots: [/a]\n  # images\n  images: warn\nsite: x'
  # Items may stand as deep as their key, and be the end of the file.
  printf 'policy:\n  bind_roots:\n  - /srv\n  - /mnt\n' >"$T/c"
  same "$(config_get "$T/c" policy.bind_roots)" '[/srv, /mnt]'
  config_set "$T/c" policy.bind_roots '[/a]' >"$T/d"
  same "$(cat "$T/d")" $'policy:\n  bind_roots: [/a]'
  # As it is: nothing is touched. Another key: the list stays.
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  cat "$T/c" >>"$T/etc/monky-deployd/config.yaml"
  ends 0 installer --deb "$T/package.deb" --set 'policy.bind_roots=[/srv, /mnt]'
  says "Nothing had to be changed."
  ends 0 installer --deb "$T/package.deb" --set policy.images=warn
  same "$(sed -n '/^policy/,$p' "$T/etc/monky-deployd/config.yaml")" $'policy:\n  images: warn\n  bind_roots:\n  - /srv\n  - /mnt'
  # Also where nobody judges.
  stub dpkg-deb "case \$1 in -f) [[ \$3 == Package ]] && sed -n 1p \"\$2\" || sed -n 2p \"\$2\" ;; -x) exit 1 ;; esac"
  ends 0 installer --deb "$T/package.deb" --reinstall --set 'policy.bind_roots=[/b]'
  "$real_agent" --config "$T/etc/monky-deployd/config.yaml" config show >"$T/out" 2>&1 || fail "broken"
  says "[/b]"
}

the_agent_that_judges_is_not_run_from_tmp() {
  mkdir "$T/tmp"
  stub dpkg-deb "case \$1 in -f) [[ \$3 == Package ]] && sed -n 1p \"\$2\" || sed -n 2p \"\$2\" ;; -x) mkdir -p \"\$3/usr/bin\" && cp '$T/agent-stub' \"\$3/usr/bin/monky-deployd\" && sed -i '2s|.*|echo \"ran \$0\" >>\"$T/calls\"|' \"\$3/usr/bin/monky-deployd\" ;; esac"
  TMPDIR=$T/tmp ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --set colour=blue
  says "Nothing was changed."
  called "ran $T/var/lib/monky-install."
  same "$(grep -c '^ran ' "$T/calls")" "$(grep -c "^ran $T/var/lib/" "$T/calls")"
  same "$(ls -A "$T/tmp" "$T/var/lib")" "$T/tmp:"$'\n\n'"$T/var/lib:"
}

without_a_place_to_run_the_agent_the_installed_one_judges_and_the_old_configuration_comes_back() {
  # As on a disk that is noexec.
  stub dpkg-deb "case \$1 in -f) [[ \$3 == Package ]] && sed -n 1p \"\$2\" || sed -n 2p \"\$2\" ;; -x) mkdir -p \"\$3/usr/bin\" && cp '$T/agent-stub' \"\$3/usr/bin/monky-deployd\" && chmod 644 \"\$3/usr/bin/monky-deployd\" ;; esac"
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "could not be judged before anything is changed: the agent of package.deb does not run"
  local old
  old=$(cat "$T/etc/monky-deployd/config.yaml")
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --reinstall --set colour=blue
  says "the agent that is installed does not take the configuration that these flags give"
  says "colour"
  says "$T/etc/monky-deployd/config.yaml is as it was before"
  says "write $T/etc/monky-deployd/config.yaml (begun, and not ended)"
  same "$(cat "$T/etc/monky-deployd/config.yaml")" "$old"
  same "$(find "$T/etc" -name '*.before-*')" ""
  rm "$T/etc/monky-deployd/config.yaml"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --reinstall --set colour=blue
  says "config.yaml is gone again"
  [[ ! -e $T/etc/monky-deployd/config.yaml ]] || fail "it is there"
}

a_package_that_cannot_be_installed_leaves_the_old_agent_its_configuration() {
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  local before
  before=$(fingerprint)
  touch "$T/apt-fails"
  ends 1 installer --deb "$T/package.deb" --reinstall --set keep_releases=7 --bao-ca "$T/ca.pem"
  says "the package could not be installed"
  same "$(fingerprint)" "$before"
  rm "$T/apt-fails"
  : >"$T/calls"
  ends 0 installer --deb "$T/package.deb" --reinstall --set keep_releases=7 --bao-ca "$T/ca.pem"
  grep -qx 'keep_releases: 7' "$T/etc/monky-deployd/config.yaml" || fail "it was not written"
}

a_configuration_that_nobody_changed_and_the_new_agent_refuses_is_told() {
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  sed -i "s|^  \*) exec|  --config) echo 'colour: no such key'; exit 78 ;;\n&|" "$T/agent-stub"
  ends 1 installer --deb "$T/package.deb" --reinstall
  says "which nobody has changed: colour: no such key"
}

another_state_directory_is_made_and_the_unit_may_write_there() {
  local dropin=$T/etc/systemd/system/monky-deployd.service.d/configuration.conf
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  [[ ! -e $dropin ]] || fail "a drop-in that says nothing new"
  not_called daemon-reload
  ends 0 installer --deb "$T/package.deb" --set state_dir=/var/lib/other/state --set healthy_timeout_s=900
  same "$(stat -c %a "$T/var/lib/other/state")" 700
  called "install -d -m 0700 -o monky-deployd -g monky-deployd $T/var/lib/other/state"
  same "$(grep -v '^#' "$dropin")" $'[Service]\nTimeoutStartSec=3000\nReadWritePaths=/var/lib/other/state'
  same "$(stat -c %a "$dropin" "${dropin%/*}")" $'644\n755'
  same "$(grep -c '^systemctl daemon-reload' "$T/calls")" 1
  stub stat "[[ \$* != *'%U'* ]] || { echo monky-deployd 700; exit; }; exec '$(command -v stat)' \"\$@\""
  ends 0 installer --deb "$T/package.deb"
  says "Nothing had to be changed."
  # A run that broke off before systemd read it.
  stub systemctl "case \"\$*\" in show*NeedDaemonReload*) echo yes ;; esac"
  ends 0 installer --deb "$T/package.deb"
  same "$(grep -c '^systemctl daemon-reload' "$T/calls")" 2
  ends 0 installer --deb "$T/package.deb" --set state_dir=/var/lib/monky-deployd --set healthy_timeout_s=300
  same "$(grep -v '^#' "$dropin")" $'[Service]\nTimeoutStartSec=1800'
}

a_state_directory_that_is_somebody_elses_is_not_taken_over() {
  mkdir -p "$T/srv/data"
  touch "$T/srv/data/precious"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --set state_dir=/srv/data
  says "and is not empty"
  says "Nothing was changed."
}

a_timer_that_somebody_stopped_is_left_alone_and_a_first_one_is_started() {
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  # Not ticked yet: a first run that broke off before the timer.
  rm "$T/timer-on"
  mkdir -p "$T/var/lib/monky-deployd"
  ends 0 installer --deb "$T/package.deb"
  [[ -e $T/timer-on ]] || fail "it is off"
  has_ticked
  rm "$T/timer-on"
  : >"$T/calls"
  ends 0 installer --deb "$T/package.deb" --reinstall
  says "monky-deployd.timer was stopped or disabled, and is left so. To start it: systemctl enable --now monky-deployd.timer"
  says "once its timer is started"
  is_silent_about "within the next minute"
  not_called "systemctl enable"
  ends 0 installer --deb "$T/package.deb" --set state_dir=/var/lib/other
  says "is left so"
  # Removed and installed again: the removal stopped it.
  sed -i /^state_dir/d "$T/etc/monky-deployd/config.yaml"
  rm "$T/installed"
  ends 0 installer --deb "$T/package.deb"
  [[ -e $T/timer-on ]] || fail "it is off"
}

an_upgrade_brings_no_tunneler_that_nobody_asked_for() {
  ends 0 installer "${NEEDED[@]}" --no-tunneler --deb "$T/package.deb"
  rm -f "$T/bin/ziti-edge-tunnel" "$T/bin/ziti"
  ends 0 installer --deb "$T/package.deb" --reinstall
  ! grep -q 'ziti' "$T/calls" || fail "$(grep ziti "$T/calls")"
}

keys_of_sections_that_are_not_there_yet_make_them() {
  functions
  printf 'env_id: x\n' >"$T/c"
  config_set "$T/c" proxy.tenancy 127.0.0.1:1 >"$T/d"
  config_set "$T/d" proxy.bao 127.0.0.1:2 >"$T/c"
  same "$(cat "$T/c")" $'env_id: x\nproxy:\n  bao: 127.0.0.1:2\n  tenancy: 127.0.0.1:1'
  printf '' >"$T/c"
  config_set "$T/c" bao.addr https://x:1 >"$T/d"
  same "$(cat "$T/d")" $'bao:\n  addr: https://x:1'
  # In the example it is a comment: it opens there, with the key behind its own comment.
  config_set "$repo/config.example.yaml" proxy.bao 127.0.0.1:9 >"$T/d"
  same "$(config_get "$T/d" proxy.bao)" 127.0.0.1:9
  "$real_agent" --config "$T/d" config check >"$T/out" 2>&1 || fail "the agent does not take it"
  # Four blanks, comments between, an empty section at the end.
  printf 'tenancy:\n    # why\n    host: a # old\n\n# about bao\nbao:\n' >"$T/c"
  config_set "$T/c" tenancy.port 8443 >"$T/d"
  config_set "$T/d" bao.addr https://x:1 >"$T/c"
  same "$(cat "$T/c")" $'tenancy:\n    port: 8443\n    # why\n    host: a # old\n\n# about bao\nbao:\n  addr: https://x:1'
  same "$(config_get "$T/c" tenancy.host)" a
}

a_changed_flag_changes_its_key_alone_and_keeps_the_old_file() {
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  printf '# mine\nhealthy_timeout_s: 77\n' >>"$T/etc/monky-deployd/config.yaml"
  local old
  old=$(<"$T/etc/monky-deployd/config.yaml")
  ends 0 installer --deb "$T/package.deb" --tenancy-host other.example
  says "tenancy.host: tenancy.example -> other.example"
  same "$(cat "$T"/etc/monky-deployd/config.yaml.before-*)" "$old"
  same "$(cat "$T/etc/monky-deployd/config.yaml")" "${old//tenancy.example/other.example}"
}

the_packages_own_example_is_no_configuration() {
  mkdir -p "$T/etc/monky-deployd"
  cp "$repo/config.example.yaml" "$T/etc/monky-deployd/config.yaml"
  printf ' /etc/monky-deployd/config.yaml %s\n' "$(md5sum <"$repo/config.example.yaml" | cut -d' ' -f1)" >"$T/conffiles"
  ends 2 installer --deb "$T/package.deb" --env qa-02
  says "--tenancy-host is needed"
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  same "$(find "$T/etc" -name '*.before-*')" ""
  same "$(grep -c '^#' "$T/etc/monky-deployd/config.yaml")" "$(grep -c '^#' "$repo/config.example.yaml")"
}

a_box_does_not_become_another_by_a_slip() {
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  ends 1 installer "${NEEDED[@]}" --env qa-03 --deb "$T/package.deb"
  says "says that this box is qa-02, and the flags say qa-03"
  says "Nothing was changed."
  ends 1 installer "${NEEDED[@]}" --set env_id=qa-03 --deb "$T/package.deb"
  says "says that this box is qa-02, and the flags say qa-03"
}

what_the_agent_would_refuse_is_not_written() {
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --set colour=blue
  says "colour"
  says "Nothing was changed."
  [[ ! -e $T/etc/monky-deployd/config.yaml ]] || fail "it was written"
  ends 1 installer --env a-prod --tenancy-host t --bao-addr https://b:1 --laptop --deb "$T/package.deb"
  says "laptop_mode"
  # Written in a way that is YAML, and that the installer does not edit.
  mkdir -p "$T/etc/monky-deployd"
  printf 'env_id: qa-02\ntenancy: {host: a}\nbao: {addr: "https://b:1"}\n' >"$T/etc/monky-deployd/config.yaml"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "is not understood here"
}

a_private_key_is_no_ca() {
  printf -- '-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n' >>"$T/ca.pem"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --bao-ca "$T/ca.pem"
  says "there is a private key in"
  echo nothing >"$T/ca.pem"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --bao-ca "$T/ca.pem"
  says "there is no certificate in"
}

# -- The package

the_token_goes_in_the_header_that_the_source_knows() {
  published
  local port
  port=$(serve "$T/registry" "$T/log")
  echo $word-TOKEN >"$T/token"
  ends 0 installer "${NEEDED[@]}" --gitlab-url "http://127.0.0.1:$port/generic/" --token-file "$T/token"
  same "$(grep -c "^    Deploy-Token: $word-TOKEN\$" "$T/log")" 2
  same "$(grep '^GET' "$T/log")" $'GET /generic/monky-deployd/0.2.0/monky-deployd_0.2.0_amd64.deb\nGET /generic/monky-deployd/0.2.0/monky-deployd_0.2.0_amd64.deb.sha256'
  same "$(cat "$T/installed")" 0.2.0-1
  rm "$T/installed"
  : >"$T/log"
  ends 0 installer "${NEEDED[@]}" --gitea-url "http://127.0.0.1:$port/generic" --token-file "$T/token"
  same "$(grep -c "^    Authorization: token $word-TOKEN\$" "$T/log")" 2
  same "$(grep -c 'Deploy-Token' "$T/log")" 0
  is_silent_about CANARY
}

an_empty_token_sends_no_header() {
  published
  local port
  port=$(serve "$T/registry" "$T/log")
  : >"$T/token"
  for flags in "--token-file $T/token" "--token=" ""; do
    rm -f "$T/installed"
    # shellcheck disable=SC2086
    ends 0 installer "${NEEDED[@]}" --source gitea --gitea-url "http://127.0.0.1:$port/generic" $flags
  done
  same "$(grep -c '^GET' "$T/log")" 6
  same "$(grep -ciE 'token|authorization' "$T/log")" 0
}

a_version_that_is_there_is_not_downloaded_again() {
  echo 0.2.0-1 >"$T/installed"
  cp "$T/agent-stub" "$T/bin/monky-deployd"
  ends 0 installer "${NEEDED[@]}" --gitlab-url http://127.0.0.1:9/generic
  says "is installed already"
  echo 0.3.0-1 >"$T/installed"
  ends 0 installer "${NEEDED[@]}" --gitlab-url http://127.0.0.1:9/generic
  says "newer than 0.2.0, and is kept"
  ends 1 installer "${NEEDED[@]}" --gitlab-url http://127.0.0.1:9/generic --version 0.2.0
  says "did not succeed"
}

nothing_is_installed_of_what_is_not_what_it_should_be() {
  published
  local port at=$T/registry/generic/monky-deployd/0.2.0 pid
  port=$(serve "$T/registry" "$T/log")
  local url=http://127.0.0.1:$port/generic
  try() { # WORDS FLAGS…
    local words=$1
    shift
    ends 1 installer "${NEEDED[@]}" --gitlab-url "$url" "$@"
    says "$words"
    says "Nothing was changed."
    not_called apt-get
    [[ ! -e $T/etc/monky-deployd ]] || fail "something was written"
  }
  echo "$(printf 0%.0s {1..64})  monky-deployd_0.2.0_amd64.deb" >"$at/monky-deployd_0.2.0_amd64.deb.sha256"
  try "and must be 0000"
  echo '<html>sign in</html>' >"$at/monky-deployd_0.2.0_amd64.deb.sha256"
  try "holds no sha256"
  rm "$at/monky-deployd_0.2.0_amd64.deb.sha256"
  try "404"
  try "and must be 1111" --sha256 "$(printf 1%.0s {1..64})"
  try "404" --version 9.9.9
  published
  printf 'cron\n1\n' >"$at/monky-deployd_0.2.0_amd64.deb"
  (cd "$at" && sha256sum monky-deployd_0.2.0_amd64.deb >monky-deployd_0.2.0_amd64.deb.sha256)
  try "is no package of monky-deployd"
  published
  url=http://127.0.0.1:$(serve "$T/registry" "$T/log" --cut 7)/generic
  try "did not succeed"
  url=http://127.0.0.1:$(header="Deploy-Token: other" serve "$T/registry" "$T/log")/generic
  try "says 401" --token $word-TOKEN
  is_silent_about CANARY
  url=http://127.0.0.1:$(serve "$T/registry" "$T/log" --redirect "http://127.0.0.1:1")/generic
  try "did not succeed"
  url=http://127.0.0.1:$(serve "$T/registry" "$T/log" --redirect "http://mirror.example")/generic
  try "redirects to plain http"
  url=http://registry.example/generic
  try "the token would be readable" --token $word-TOKEN
  try "plain http"
  # A registry that is not there.
  url=http://127.0.0.1:1/generic
  try "did not succeed"
}

the_token_does_not_follow_a_redirect_to_another_host() {
  published
  local store front
  store=$(serve "$T/registry" "$T/store.log")
  front=$(header="Deploy-Token: $word-TOKEN" serve "$T/registry" "$T/front.log" --redirect "http://localhost:$store")
  ends 0 installer "${NEEDED[@]}" --gitlab-url "http://127.0.0.1:$front/generic" --token $word-TOKEN
  same "$(cat "$T/installed")" 0.2.0-1
  same "$(grep -c $word-TOKEN "$T/front.log")" 2
  same "$(grep -c '^GET' "$T/store.log")" 2
  same "$(grep -c $word-TOKEN "$T/store.log")" 0
}

a_token_cannot_smuggle_anything_into_curls_configuration() {
  printf 'x"\noutput = "/etc/passwd\n' >"$T/token"
  ends 2 installer "${NEEDED[@]}" --gitlab-url http://127.0.0.1:1/generic --token-file "$T/token"
  says "characters that no token has"
  ends 2 installer "${NEEDED[@]}" --gitlab-url $'http://127.0.0.1:1/generic"\nheader = "a' --token x
}

# -- Docker

daemon_json_is_merged_and_what_is_not_understood_is_left() {
  functions
  merge() { (merge_data_root "$T/d.json" /data/docker) >"$T/merged" 2>/dev/null; }
  rm -f "$T/d.json"
  merge && same "$(tr -d ' \n' <"$T/merged")" '{"data-root":"/data/docker"}'
  : >"$T/d.json"
  merge && same "$(tr -d ' \n' <"$T/merged")" '{"data-root":"/data/docker"}'
  printf ' { }\n' >"$T/d.json"
  merge && same "$(tr -d ' \n' <"$T/merged")" '{"data-root":"/data/docker"}'
  printf '{"log-opts": {"max-size": "10m"}, "data-root": "/old", "live-restore": true, "labels": ["é"]}' >"$T/d.json"
  merge && same "$(tr -d ' \n' <"$T/merged")" '{"log-opts":{"max-size":"10m"},"data-root":"/data/docker","live-restore":true,"labels":["é"]}'
  for bad in '{"a": 1,}' '[1]' '{"a": 1, "a": 2}' '// mine' '{"a": 1' '"x"'; do
    printf '%s' "$bad" >"$T/d.json"
    ! merge || fail "taken: $bad"
  done
  # Without python3: jq; without both: nothing that holds settings is touched.
  only() { # what is in PATH
    mkdir -p "$T/few"
    local one
    rm -f "$T"/few/*
    for one in cat tr grep sed "$@"; do ln -s "$(command -v "$one")" "$T/few/$one"; done
  }
  printf '{"live-restore": true}' >"$T/d.json"
  if command -v jq >/dev/null; then
    only jq
    (PATH=$T/few merge) || fail "jq is not used"
    same "$(tr -d ' \n' <"$T/merged")" '{"live-restore":true,"data-root":"/data/docker"}'
    printf '[1]' >"$T/d.json"
    ! (PATH=$T/few merge) || fail "jq takes an array"
  fi
  only
  printf '{"live-restore": true}' >"$T/d.json"
  ! (PATH=$T/few merge) || fail "it was merged without a tool that can"
  grep -F 'neither python3 nor jq' "$work/json.log" >/dev/null || fail "it does not say why"
  printf '{}' >"$T/d.json"
  (PATH=$T/few merge) || fail "an empty one needs no tool"
}

a_data_root_with_containers_in_it_is_not_left_behind_unasked() {
  stub docker "case \"\$*\" in 'compose version --short') echo 2.26.1 ;; info*) cat '$T/docker-root' ;; 'ps -aq') echo a; echo b ;; 'volume ls -q') echo v ;; esac"
  stub systemctl "case \"\$*\" in 'restart docker.service') echo /data/docker >'$T/docker-root' ;; cat*) exit 1 ;; esac"
  echo /var/lib/docker >"$T/docker-root"
  local flags=("${NEEDED[@]}" --deb "$T/package.deb" --docker-data-root /data/docker)
  ends 1 installer "${flags[@]}"
  says "holds 2 containers and 1 volumes"
  says "--leave-old-docker-data"
  says "Nothing was changed."
  ends 0 installer "${flags[@]}" --leave-old-docker-data
  says "Docker will start empty in /data/docker"
  same "$(tr -d ' \n' <"$T/etc/docker/daemon.json")" '{"data-root":"/data/docker"}'
  # Once it is so, it is so.
  : >"$T/calls"
  ends 0 installer "${flags[@]}"
  says "in /data/docker already"
  not_called "systemctl restart"
}

after_a_move_of_data_root_what_is_applied_is_brought_up_again_or_it_is_told() {
  stub docker "echo \"docker at \$DOCKER_HOST \$HOME \$DOCKER_CONTEXT\" >>'$T/calls'; case \"\$*\" in 'compose version --short') echo 2.26.1 ;; info*) cat '$T/docker-root' ;; esac"
  stub systemctl "case \"\$*\" in 'restart docker.service') echo /data/docker >'$T/docker-root' ;; is-enabled*|is-active*) [[ -e '$T/timer-on' ]] ;; enable*timer) touch '$T/timer-on' ;; cat*) exit 1 ;; show*Environment*) echo 'X=1 DOCKER_HOST=unix:///run/other.sock' ;; esac"
  sed -i "2s|.*|printf 'monky-deployd %s at %s\\n' \"\$*\" \"\$DOCKER_HOST\" >>\"$T/calls\"|" "$T/agent-stub"
  echo '{"applied": null}' >"$T/status.json"
  local flags=("${NEEDED[@]}" --deb "$T/package.deb" --docker-data-root /data/docker)
  again() { # STATUS FLAGS…
    local status=$1
    shift
    echo /var/lib/docker >"$T/docker-root"
    : >"$T/calls"
    DOCKER_HOST=tcp://elsewhere:2375 DOCKER_CONTEXT=mine ends "$status" installer "$@"
  }
  again 0 "${flags[@]}"
  not_called "tick --force"
  # Neither the engine of whoever runs this, nor a context: the box's own; and the agent at the one that its unit says.
  same "$(grep '^docker at' "$T/calls" | grep -v 'docker at  /nonexistent' | sort -u)" "docker at unix:///var/run/docker.sock /nonexistent "
  called "monky-deployd check at unix:///run/other.sock"
  echo '{"applied": {"sha": "x"}}' >"$T/status.json"
  again 0 "${flags[@]}"
  called "monky-deployd tick --force"
  says "==> bring up what is applied, in the new data-root"
  # What does not come up is told.
  stub sleep :
  echo 75 >"$T/tick-status"
  again 0 "${flags[@]}"
  says "it did not come up: its words"
  says "until this succeeds: sudo -u monky-deployd monky-deployd tick --force"
  same "$(grep -c '^monky-deployd tick --force' "$T/calls")" 3
  # So it is if the timer was stopped, and if the run ends before.
  has_ticked
  rm "$T/timer-on"
  again 0 "${flags[@]}"
  says "nothing brings it up while the timer is stopped: sudo"
  not_called "tick --force"
  sed -i 's/^  bootstrap).*/  bootstrap) exit 1 ;;/' "$T/bin/monky-deployd"
  again 1 "${flags[@]}" --bootstrap-file "$T/bootstrap.jwt"
  says "What is applied does not run in the new data-root. To bring it up: sudo -u monky-deployd"
}

a_docker_that_does_not_come_up_gets_its_old_settings_back() {
  mkdir -p "$T/etc/docker"
  printf '{"live-restore": true}' >"$T/etc/docker/daemon.json"
  stub docker "case \"\$*\" in 'compose version --short') echo 2.26.1 ;; info*) echo /var/lib/docker ;; esac"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --docker-data-root /data/docker
  says "is as it was before"
  same "$(cat "$T/etc/docker/daemon.json")" '{"live-restore": true}'
  same "$(grep -c '^systemctl restart docker.service' "$T/calls")" 2
  printf '{"live-restore": true,}' >"$T/etc/docker/daemon.json"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --docker-data-root /data/docker
  says "is not understood"
  says 'add this line to it by hand: "data-root": "/data/docker"'
  same "$(cat "$T/etc/docker/daemon.json")" '{"live-restore": true,}'
  stub systemctl "case \"\$*\" in cat*docker*) echo 'ExecStart=/usr/bin/dockerd -H fd:// --data-root /mnt' ;; esac"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb" --docker-data-root /data/docker
  says "on the command line of dockerd"
}

a_missing_compose_plugin_comes_from_apt_or_it_says_how() {
  stub docker "case \"\$*\" in 'compose version --short') [[ -e '$T/compose' ]] && echo 2.30.0 ;; info*) echo /var/lib/docker ;; esac"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "must be 2.21 or newer"
  says "/usr/libexec/docker/cli-plugins/docker-compose"
  says "docker-compose-plugin"
  [[ ! -e $T/etc/monky-deployd ]] || fail "something was written"
  stub apt-cache 'case $2 in docker-compose-v2) c=2.24.6+ds1-0ubuntu1 ;; *) c="(none)" ;; esac; printf "%s:\n  Candidate: %s\n" "$2" "$c"'
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  called "install -y --no-install-recommends docker-compose-v2"
  stub apt-cache 'printf "%s:\n  Candidate: 5:2.40.3-1~debian.12~bookworm\n" "$2"'
  : >"$T/calls"
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  called "install -y --no-install-recommends docker-compose-plugin"
  # One that is too old is as good as none.
  stub docker "case \"\$*\" in 'compose version --short') echo v2.20.3 ;; esac"
  stub apt-cache 'printf "%s:\n  Candidate: 2.3.3\n" "$2"'
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "here is 2.20.3, and must be"
}

# -- The tunneler

openzitis_repository_is_added_or_it_says_how() {
  rm "$T/bin/ziti-edge-tunnel"
  mkdir -p "$T/keys"
  printf -- '-----BEGIN PGP PUBLIC KEY BLOCK-----\nx\n' >"$T/keys/key.gpg"
  local port
  port=$(serve "$T/keys" "$T/log")
  local flags=("${NEEDED[@]}" --deb "$T/package.deb" --ziti-key-url "http://127.0.0.1:$port/key.gpg" --ziti-repo-url "http://127.0.0.1:$port/deb")
  touch "$T/apt-fails"
  ends 1 installer "${flags[@]}"
  says "no route to the repository"
  says "--no-tunneler"
  says "--ziti-repo-url"
  same "$(find "$T/etc/apt" -type f)" ""
  rm "$T/apt-fails"
  ends 1 installer "${flags[@]}" --ziti-key-url "http://127.0.0.1:1/key.gpg"
  says "OpenZiti's repository could not be reached"
  ends 0 installer "${flags[@]}" --no-tunneler
  not_called "install -y --no-install-recommends ziti-edge-tunnel"
  ends 0 installer "${flags[@]}"
  called "install -y --no-install-recommends ziti-edge-tunnel"
  same "$(cat "$T/etc/apt/sources.list.d/openziti.list")" "deb [signed-by=/etc/apt/keyrings/openziti.asc] http://127.0.0.1:$port/deb jammy main"
  same "$(stat -c %a "$T/etc/apt/keyrings/openziti.asc")" 644
}

# -- The end

the_exit_status_tells_what_check_found() {
  echo 1 >"$T/check-status"
  ends 3 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "ok configuration"
  says "(exit status 3)"
  is_silent_about "Nothing was changed."
  # It is installed all the same, and the timer runs.
  [[ -e $T/timer-on ]] || fail "the timer is off"
  sed -i "s/echo '  check  Preflight'//" "$T/bin/monky-deployd"
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "has no command 'check'"
}

what_failed_in_the_middle_is_told_with_what_was_done() {
  touch "$T/apt-fails"
  ends 1 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "the package could not be installed: E: no route"
  # It may have changed something before it failed.
  is_silent_about "Nothing was changed."
  says "Changed until then:"
  says "  - install monky-deployd 0.2.0-1 (begun, and not ended)"
  rm "$T/apt-fails"
  ends 0 installer "${NEEDED[@]}" --deb "$T/package.deb" --reinstall
  # What nobody thought of.
  stub systemctl 'case "$*" in is-*) exit 1 ;; enable*) kill -TERM $PPID ;; esac'
  rm "$T/installed"
  ends 143 installer "${NEEDED[@]}" --deb "$T/package.deb"
  says "this was not foreseen"
}

# ---- Runs them

ran=0 failed=()
for name in ${ONLY:-$(declare -F | cut -d' ' -f3 | grep -E '_.*_.*_')}; do
  T=$all/$name
  mkdir -p "$T"
  if (
    trap 'kill $(cat "$T/pids" 2>/dev/null) 2>/dev/null || true' EXIT
    machine
    "$name"
  ) >"$all/$name.log" 2>&1; then
    echo "ok   $name"
  else
    echo "FAIL $name"
    cat "$all/$name.log"
    failed+=("$name")
  fi
  ran=$((ran + 1))
done
echo "$ran tests, ${#failed[@]} failed"
((ran > 0 && ${#failed[@]} == 0))
