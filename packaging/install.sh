#!/usr/bin/env bash
# install.sh makes a machine a box: tunneler, identity, configuration, package, bootstrap grant, timer. Guide: docs/install.md.
#
#   curl -fsSL …/install.sh | sudo bash -s -- --env env-qa-02 --site cbs …          install.sh --help lists every flag
#
# Invariant: whatever can be found wrong is found before anything is changed; what is right already is left alone, so that a
# second run changes nothing; a file is replaced whole or not at all; no secret is ever an argument of a program.
# shellcheck disable=SC2317 # change() calls what it is given
set -euo pipefail
set -o errtrace
umask 077

DEFAULT_VERSION="0.2.0" # from Cargo.toml, by packaging/versions.sh

# ---- Flags: one row each. NAME | VALUE (none: a switch) | ENVIRONMENT | MEANING
flags() {
  cat <<'TABLE'
env|ID|MONKY_ENV|The environment of this box (env_id). Needed the first time.
site|NAME|MONKY_SITE|Where the box is, for people.
tenancy-host|HOST|MONKY_TENANCY_HOST|The control plane's host name. Needed the first time.
tenancy-port|PORT|MONKY_TENANCY_PORT|Its port. Without it: 443.
tenancy-ca|PEM|MONKY_TENANCY_CA|File with the CA of tenancy, if it is not one that the system knows.
bao-addr|URL|MONKY_BAO_ADDR|OpenBao, as https://host:port. Needed the first time.
bao-ca|PEM|MONKY_BAO_CA|File with the CA of OpenBao, if it is not one that the system knows.
set|KEY=VALUE||Any other key of the configuration; may be given more than once.
laptop||MONKY_LAPTOP|Being offline is normal for this box (laptop_mode).
bootstrap-file|FILE|MONKY_BOOTSTRAP_FILE|The one-time bootstrap grant (a JWT) for the first login to OpenBao.
transport|HOW|MONKY_TRANSPORT|system, proxy or sdk. Without it: what is configured, or system.
enrol-jwt|FILE|MONKY_ENROL_JWT|The one-time OpenZiti enrolment token (a JWT).
no-tunneler||MONKY_NO_TUNNELER|Install no tunneler: this box reaches tenancy without one, or has its own.
proxy-tenancy|HOST:PORT|MONKY_PROXY_TENANCY|With proxy: the local listener for tenancy. Without it: 127.0.0.1:8441.
proxy-bao|HOST:PORT|MONKY_PROXY_BAO|With proxy: the local listener for OpenBao. Without it OpenBao is dialled directly.
proxy-services|LIST|MONKY_PROXY_SERVICES|With proxy: the OpenZiti services and their local ports, such as 'tenancy:8441 bao:8442'.
sdk-service|NAME|MONKY_SDK_SERVICE|With sdk: the OpenZiti service of tenancy.
sdk-library|FILE|MONKY_SDK_LIBRARY|With sdk: libziti.so.
ziti-repo-url|URL|MONKY_ZITI_REPO_URL|OpenZiti's package repository, or a mirror of it.
ziti-key-url|URL|MONKY_ZITI_KEY_URL|The key that signs it.
ziti-suite|NAME|MONKY_ZITI_SUITE|Its suite.
deb|FILE|MONKY_DEB|Install this package, download nothing.
version|V|MONKY_VERSION|The version to download. Older than what is installed is allowed if it is said.
source|WHERE|MONKY_SOURCE|gitlab (generic package registry) or gitea (its mirror). Without it: the one whose URL is given.
gitlab-url|URL|MONKY_GITLAB_URL|https://HOST/api/v4/projects/ID/packages/generic
gitea-url|URL|MONKY_GITEA_URL|https://HOST/api/packages/OWNER/generic
token-file|FILE|MONKY_TOKEN_FILE|File with the read-only token for the download. Empty: no header is sent.
token|TOKEN|MONKY_TOKEN|The token itself. In an argument it can be seen in the process list, of sudo too: better the file.
sha256|HEX|MONKY_SHA256|What the package's sha256 must be, from somewhere you trust.
docker-data-root|DIR|MONKY_DOCKER_DATA_ROOT|Where Docker keeps its data (data-root in /etc/docker/daemon.json).
leave-old-docker-data||MONKY_LEAVE_OLD_DOCKER_DATA|Change data-root even if there are containers or volumes: they stay behind, unused.
reinstall||MONKY_REINSTALL|Install the package even if that version is there.
unsupported-os||MONKY_UNSUPPORTED_OS|Go on though this system is none of those that were tried.
dry-run|||Say what would be done, change nothing.
help|||This.
TABLE
}

usage() {
  cat <<'TEXT'
Usage: install.sh --env ID --tenancy-host HOST --bao-addr URL [FLAGS]

Makes this machine a box of monky-deployd. Safe to run again: what is right already is left alone, and keys of
the configuration change only if their flag is given. For Debian 12, Ubuntu 22.04 and 24.04.

TEXT
  local name value variable meaning
  while IFS='|' read -r name value variable meaning; do
    printf '  --%s%s\n        %s%s\n' "$name" "${value:+ $value}" "$meaning" "${variable:+ [\$$variable]}"
  done < <(flags)
  cat <<'TEXT'

Exit status: 0 installed, and `monky-deployd check` found no failure. 1 stopped; what was changed until then is
said. 2 a flag is wrong or missing. 3 installed, but `monky-deployd check` found failures: they are shown.
TEXT
}

globals() {
  declare -g root="" # Tests put a folder here.
  declare -gA opt=() takes=()
  declare -ga rest=() changes=() wanted=() edits=()
  declare -g work="" stage="" trial="" died="" failed_at="" deb="" agent="" token=""
  declare -g package=monky-deployd user=monky-deployd
  declare -g etc=/etc/monky-deployd default_state_dir=/var/lib/monky-deployd
  declare -g dropin=/etc/systemd/system/monky-deployd.service.d/configuration.conf
  # The engine that docker.service runs, which is what the unit's agent talks to.
  declare -g engine=unix:///var/run/docker.sock
  # Both are those of OpenZiti's own guide.
  declare -g ziti_repo=https://packages.openziti.org/zitipax-openziti-deb-stable ziti_key=https://get.openziti.io/tun/package-repos.gpg
  export LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
  # Whoever runs this may talk to another engine than the box's agent, which gets none of these either.
  unset DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG DOCKER_TLS DOCKER_TLS_VERIFY DOCKER_CERT_PATH DOCKER_API_VERSION DOCKER_AUTH_CONFIG
}

# ---- Words

say() { printf '%s\n' "$*"; }
note() { printf 'note: %s\n' "$*"; }

# What happened and where; what to do next.
die() { # WHAT REMEDY…
  died=yes
  printf '\nerror: %s\n' "$1" >&2
  shift
  (($# == 0)) || printf '    -> %s\n' "$@" >&2
  exit 1
}

misused() { # WHAT
  died=yes
  printf 'error: %s\n    -> install.sh --help lists the flags\n' "$1" >&2
  exit 2
}

# The one door to a change of this machine: a dry run ends here.
change() { # WHAT COMMAND…
  local what=$1
  shift
  if [[ ${opt[dry-run]} == yes ]]; then
    say "would $what"
    return
  fi
  say "==> $what"
  # Before it is begun: what fails in its middle may have changed something.
  changes+=("$what (begun, and not ended)")
  "$@"
  changes[-1]=$what
}

finish() {
  local status=$? one
  trap - EXIT
  [[ -z $stage ]] || rm -rf -- "$stage"
  [[ -z $trial ]] || rm -rf -- "$trial"
  [[ -z $work ]] || rm -rf -- "$work"
  if ((status != 0)) && [[ -z $died ]]; then
    printf '\nerror: this was not foreseen (status %s): %s\n' "$status" "${failed_at:-a signal}" >&2
  fi
  if ((status == 1 || status > 3)); then
    if ((${#changes[@]})); then
      printf 'Changed until then:\n' >&2
      for one in "${changes[@]}"; do printf '  - %s\n' "$one" >&2; done
      [[ -z ${force_is_due:-} ]] || printf 'What is applied does not run in the new data-root. To bring it up: %s\n' "$force" >&2
      printf 'Mend it and run this again: what is done already is left alone.\n' >&2
    else
      printf 'Nothing was changed.\n' >&2
    fi
  fi
  exit "$status"
}

# ---- The command line

parse() {
  local name value variable
  while IFS='|' read -r name value variable _; do
    takes[$name]=$value
    opt[$name]=""
    [[ -n $variable && -n ${!variable+is_set} ]] || continue
    if [[ -n $value ]]; then
      opt[$name]=${!variable}
      [[ $name == token ]] || rest+=("--$name" "${!variable}")
    elif [[ ${!variable} =~ ^(1|yes|true)$ ]]; then
      opt[$name]=yes
      rest+=("--$name")
    fi
    unset "$variable"
  done < <(flags)
  while (($#)); do
    [[ $1 != -h ]] || set -- --help
    # Not quoted back: it may be a secret that stands where it should not.
    [[ $1 == --?* ]] || misused "there is a word where a flag should be, the ${#}th from the end"
    name=${1#--}
    name=${name%%=*}
    [[ -n ${takes[$name]+is_set} ]] || misused "there is no flag --$name"
    if [[ -z ${takes[$name]} ]]; then
      [[ $1 != *=* ]] || misused "--$name takes no value"
      opt[$name]=yes
      rest+=("--$name")
      shift
      continue
    fi
    if [[ $1 == *=* ]]; then
      value=${1#*=}
      shift
    else
      (($# > 1)) || misused "--$name needs a value: ${takes[$name]}"
      value=$2
      shift 2
    fi
    case $name in
      set) opt[set]+="$value"$'\n' ;;
      token) opt[token]=$value opt[token-in-argv]=yes ;;
      *) opt[$name]=$value ;;
    esac
    [[ $name == token ]] || rest+=("--$name" "$value")
  done
}

# Values that are wrong by themselves. Whatever goes into the configuration is judged by the agent, later.
validate() {
  local name one
  for name in "${!opt[@]}"; do
    [[ $name == set || $name == token ]] || [[ ${opt[$name]} != *[$'\001'-$'\037\177']* ]] || misused "--$name holds a control character"
  done
  [[ -z ${opt[env]} || ${opt[env]} =~ ^[a-z0-9][a-z0-9-]*$ ]] || misused "--env must be [a-z0-9][a-z0-9-]*, and is '${opt[env]}'"
  [[ ${opt[transport]} =~ ^(|system|proxy|sdk)$ ]] || misused "--transport must be system, proxy or sdk, and is '${opt[transport]}'"
  [[ ${opt[source]} =~ ^(|gitlab|gitea)$ ]] || misused "--source must be gitlab or gitea, and is '${opt[source]}'"
  [[ ${opt[version]} =~ ^(|[0-9][0-9A-Za-z.+~-]*)$ ]] || misused "--version must look like 0.2.0, and is '${opt[version]}'"
  [[ ${opt[sha256]} =~ ^(|[0-9a-fA-F]{64})$ ]] || misused "--sha256 must be 64 hex digits"
  [[ ${opt[proxy-services]} =~ ^(|[A-Za-z0-9._-]+:[0-9]+( [A-Za-z0-9._-]+:[0-9]+)*)$ ]] || misused "--proxy-services must look like 'tenancy:8441 bao:8442', and is '${opt[proxy-services]}'"
  [[ ${opt[docker-data-root]} =~ ^(|/[A-Za-z0-9._/-]+)$ && /${opt[docker-data-root]}/ != */../* ]] ||
    misused "--docker-data-root must be an absolute path of letters, digits, . _ - /, and is '${opt[docker-data-root]}'"
  for name in gitlab-url gitea-url ziti-repo-url ziti-key-url; do
    [[ ${opt[$name]} =~ ^(|https?://[][A-Za-z0-9.:_-]+(/[A-Za-z0-9._~%@:/+-]*)?)$ ]] || misused "--$name must be a plain http(s) URL, and is '${opt[$name]}'"
  done
  while IFS= read -r one; do
    [[ -z $one || $one =~ ^[a-z_]+(\.[a-z_]+)?= ]] || misused "--set must be KEY=VALUE, and is '$one'"
  done <<<"${opt[set]}"
  for name in bao-ca tenancy-ca bootstrap-file deb token-file; do
    [[ -z ${opt[$name]} ]] || [[ -f ${opt[$name]} && -r ${opt[$name]} ]] || misused "--$name: ${opt[$name]} is no file that can be read"
  done
  if [[ -n ${opt[token-file]} ]]; then
    IFS= read -r token <"${opt[token-file]}" || true
  else
    token=${opt[token]}
  fi
  opt[token]=""
  # It becomes a quoted word in curl's configuration: nothing that could end it.
  [[ $token != *[!!-~]* && $token != *[\"\\]* ]] || misused "the token holds characters that no token has"
}

# A token among the arguments would stay in the process list as long as this runs: go on as the same process without it.
# (sudo's own arguments cannot be mended from here.)
leave_the_process_list() {
  [[ -n ${opt[token-in-argv]+is_set} && -n ${opt[token]} ]] || return 0
  note "--token can be seen in the process list while sudo runs; --token-file cannot"
  printf '%s\n' "${opt[token]}" >"$work/token"
  {
    printf 'set -euo pipefail\nset -o errtrace\numask 077\nDEFAULT_VERSION=%q\n' "$DEFAULT_VERSION"
    declare -f
    # shellcheck disable=SC2016 # for the next process
    printf 'main "$@" </dev/null\n'
  } >"$work/install.sh"
  MONKY_INSTALL_WORK=$work exec "$BASH" "$work/install.sh" "${rest[@]}" --token-file "$work/token"
}

private_folder() {
  # From the process that this one was, see above.
  if [[ ${MONKY_INSTALL_WORK:-} == */monky-install.* && -d $MONKY_INSTALL_WORK && -O $MONKY_INSTALL_WORK ]]; then
    work=$MONKY_INSTALL_WORK
  else
    work=$(mktemp -d "${TMPDIR:-/tmp}/monky-install.XXXXXXXX")
  fi
  unset MONKY_INSTALL_WORK
  # For this shell's own temporary files, not for children: most run as somebody who cannot get in.
  export -n TMPDIR
  TMPDIR=$work
}

# ---- Small tools

# Writes stdin to a file: whole or not at all.
put() { # FILE MODE [OWNER]
  local new
  new=$(mktemp "$1.new.XXXXXX")
  stage=$new
  cat >"$new"
  [[ -z ${3:-} ]] || chown "$3" "$new"
  chmod "$2" "$new"
  sync "$new"
  mv -fT "$new" "$1"
  stage=""
}

# Whether a file must be written to be what another one is; says so if not.
differs() { # WHAT FILE FROM
  [[ -f $2 ]] && cmp -s "$3" "$2" || return 0
  say "$1: $2 is right already"
  return 1
}

# For everyone to read.
put_from() { # FILE FROM
  folder "${1%/*}" 0755
  put "$1" 0644 <"$2"
}

folder() { # FOLDER MODE
  [[ -d $1 ]] || install -d -m "$2" "$1"
}

now() { date +%s; }

at_least() { # HAVE WANT
  [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1) == "$2" ]]
}

installed_version() { # PACKAGE
  # Nothing if it is not there, which dpkg-query calls an error.
  { dpkg-query -W -f='${db:Status-Status} ${Version}' "$1" 2>/dev/null || true; } | sed -n 's/^installed //p'
}

# With the usual umask: what apt makes is for everyone to read.
apt() (
  umask 022
  apt-get -qq -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 -o APT::Update::Error-Mode=any "$@" >"$work/apt.log" 2>&1 </dev/null
)

# The end of a program's words, for an error.
tail_of() { tail -n 4 "$1" 2>/dev/null | tr '\n' ' ' | cut -c1-600; }

# The payload of a JWT; fails if the file holds none.
jwt_payload() { # FILE
  local text part
  text=$(tr -d '[:space:]' <"$1")
  [[ $text =~ ^[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]*$ ]] || return 1
  part=$(tr '_-' '/+' <<<"${BASH_REMATCH[1]}")
  while ((${#part} % 4)); do part+="="; done
  base64 -d <<<"$part" 2>/dev/null || return 1
}

# Stops unless a file holds a JWT that lives. Nothing of it is ever printed but its end.
living_jwt() { # FILE WHAT WHO
  local payload end
  [[ -f $1 && -r $1 ]] || die "$2: $1 is no file that can be read"
  payload=$(jwt_payload "$1") || die "$2: $1 holds no JWT (three parts joined by dots)" "get it anew from $3; one line, as it was handed out"
  if [[ ! $payload =~ \"exp\"[[:space:]]*:[[:space:]]*([0-9]{1,12})([^0-9.]|$) ]]; then
    note "$2: $1 says nothing about when it ends"
    return 0
  fi
  end=${BASH_REMATCH[1]}
  ((end > $(now))) || die "$2: $1 expired at $(date -u -d "@$end" '+%Y-%m-%d %H:%M:%S UTC'), $((($(now) - end) / 60)) minutes ago" \
    "get a new one from $3" "if that time is not in the past, this box's clock is wrong: timedatectl"
}

# ---- Before anything is changed

preflight() {
  local id="" version_id="" pretty=""
  [[ ${opt[dry-run]} == yes || $(id -u) == 0 ]] || die "this needs root" "sudo bash install.sh …, or … | sudo bash -s -- …"
  os() { sed -n "s/^$1=\\(['\"]\\{0,1\\}\\)\\(.*\\)\\1\$/\\2/p" "$root/etc/os-release" 2>/dev/null || true; }
  id=$(os ID)
  version_id=$(os VERSION_ID)
  pretty=$(os PRETTY_NAME)
  case "$id $version_id" in
    'debian 12' | 'ubuntu 22.04' | 'ubuntu 24.04') ;;
    *)
      [[ ${opt[unsupported-os]} == yes ]] ||
        die "this is ${pretty:-an unknown system}; this was tried on Debian 12, Ubuntu 22.04 and 24.04" "--unsupported-os goes on all the same; it needs apt and systemd"
      ;;
  esac
  command -v dpkg apt-get >/dev/null || die "dpkg or apt-get is missing: this installs a Debian package" "build from source: README.md"
  [[ -d $root/run/systemd/system ]] || die "systemd is not process 1 here: the agent is started by a systemd timer" "run this on the box itself, not in a container or chroot without systemd"
  command -v docker >/dev/null || die "there is no docker command on this box" "install a Docker engine first: apt-get install docker.io, or Docker's own packages (docs.docker.com/engine/install)"
}

package_file() { # VERSION
  printf '%s_%s_%s.deb' "$package" "$1" "$(dpkg --print-architecture)"
}

# Whether a version is the one installed: 0.2.0 is also there as 0.2.0-1.
is_installed() { # VERSION
  local have
  have=$(installed_version "$package")
  [[ $have == "$1" || $have == "$1"-* ]]
}

on_this_box() { # URL
  [[ $1 =~ ^https?://(127\.[0-9.]+|localhost|\[::1\])([:/]|$) ]]
}

authority() { # URL
  local after=${1#*://}
  printf '%s://%s' "${1%%://*}" "${after%%/*}"
}

# Downloads a file. The token goes only to the registry that was named, never to where it redirects; neither token nor URL
# (which may be a signed one, after a redirect) is an argument of a program.
fetch() { # URL FILE WHAT
  local url=$1 answer code
  for _ in 1 2 3 4 5; do
    answer=$({
      printf 'url = "%s"\n' "$url"
      if [[ -n $token && $(authority "$url") == "$(authority "$1")" ]]; then
        case $source in
          gitlab) printf 'header = "Deploy-Token: %s"\n' "$token" ;;
          gitea) printf 'header = "Authorization: token %s"\n' "$token" ;;
        esac
      fi
    } | curl --disable --config - --silent --show-error --proto '=http,https' --connect-timeout 15 --max-time 900 --speed-limit 1000 --speed-time 30 \
      --retry 3 --output "$2" --write-out '%{http_code} %{redirect_url}' 2>"$work/curl.log") || {
      rm -f "$2"
      die "$3: the download from $(authority "$url") did not succeed: $(tail_of "$work/curl.log")" \
        "look at the URL, the network and the registry, and run this again" "or fetch the package elsewhere and give it with --deb FILE"
    }
    code=${answer%% *}
    case $code in
      200) return 0 ;;
      301 | 302 | 303 | 307 | 308)
        url=${answer#* }
        [[ $url =~ ^https?://[^\"\\[:space:]]+$ ]] || die "$3: $(authority "$1") redirects to nowhere"
        [[ $url == https://* ]] || on_this_box "$url" || die "$3: $(authority "$1") redirects to plain http" "mend the registry, or give the package with --deb FILE"
        ;;
      *) break ;;
    esac
  done
  rm -f "$2"
  case $code in
    401 | 403) die "$3: $(authority "$url") says $code" "look at the token: --token-file FILE; it needs the right to read packages (GitLab: scope read_package_registry)" ;;
    404) die "$3: $1 is not there (404)" "look at --version, --$source-url, and the token: GitLab says 404 also to a token that may not read" ;;
    3*) die "$3: $(authority "$1") redirects more than five times" ;;
    *) die "$3: $(authority "$url") says $code" "look at the registry, and run this again" ;;
  esac
}

check_sha256() { # FILE HEX WHERE-IT-IS-FROM
  local is want=${2,,}
  is=$(sha256sum "$1")
  is=${is%% *}
  [[ $is == "$want" ]] || die "$(basename "$1"): its sha256 is $is, and must be $want ($3)" "it was damaged or exchanged on its way: do not install it" "fetch it again; if it stays so, whoever publishes the package has to look"
}

# Finds the package: the file that was given, or a download into the private folder. $deb is empty if the version is there.
get_package() {
  local version base name
  declare -g would_download=""
  if [[ -n ${opt[deb]} ]]; then
    [[ $(dpkg-deb -f "${opt[deb]}" Package 2>/dev/null) == "$package" ]] || die "--deb: ${opt[deb]} is no package of $package"
    [[ -z ${opt[sha256]} ]] || check_sha256 "${opt[deb]}" "${opt[sha256]}" "given with --sha256"
    version=$(dpkg-deb -f "${opt[deb]}" Version)
    if is_installed "$version" && [[ ${opt[reinstall]} != yes ]]; then
      say "package: $package $version is installed already"
      return 0
    fi
    # apt needs a path, and leaves the file alone.
    deb=$(realpath "${opt[deb]}")
    return 0
  fi
  version=${opt[version]:-$DEFAULT_VERSION}
  if [[ ${opt[reinstall]} != yes ]]; then
    if is_installed "$version"; then
      say "package: $package $(installed_version "$package") is installed already"
      return 0
    fi
    if [[ -z ${opt[version]} ]] && dpkg --compare-versions "$(installed_version "$package")" gt "$version"; then
      note "package: $package $(installed_version "$package") is newer than $version, and is kept; --version $version goes back on purpose"
      return 0
    fi
  fi
  declare -g source=${opt[source]}
  [[ -n $source ]] || { [[ -z ${opt[gitlab-url]} && -n ${opt[gitea-url]} ]] && source=gitea || source=gitlab; }
  base=${opt[$source-url]%/}
  [[ -n $base ]] || misused "where is the package? Give --deb FILE, or --$source-url URL, the base of the registry's generic packages, such as $(flags | sed -n "s/^$source-url|.*|//p")"
  name=$(package_file "$version")
  if [[ $base == http://* ]] && ! on_this_box "$base"; then
    [[ -z $token ]] || die "--$source-url is plain http: the token would be readable on its way" "use https, or no token"
    [[ -n ${opt[sha256]} ]] || die "--$source-url is plain http: who changes the package on its way can change its checksum too" "use https, or say what the checksum must be: --sha256 HEX"
  fi
  if [[ ${opt[dry-run]} == yes ]]; then
    say "would download $base/$package/$version/$name and verify its sha256"
    would_download=yes
    return 0
  fi
  command -v curl >/dev/null || die "curl is missing, and the package has to be downloaded" "apt-get install curl ca-certificates, or give the package with --deb FILE"
  say "downloading $base/$package/$version/$name"
  fetch "$base/$package/$version/$name" "$work/$name" "the package"
  if [[ -n ${opt[sha256]} ]]; then
    check_sha256 "$work/$name" "${opt[sha256]}" "given with --sha256"
  else
    fetch "$base/$package/$version/$name.sha256" "$work/$name.sha256" "the package's checksum"
    local line=""
    IFS= read -r line <"$work/$name.sha256" || true
    [[ $line =~ ^([0-9a-fA-F]{64})([[:space:]]|$) ]] || die "$base/$package/$version/$name.sha256 holds no sha256" "it must begin with 64 hex digits; whoever publishes the package has to look"
    check_sha256 "$work/$name" "${BASH_REMATCH[1]}" "from $name.sha256 beside it"
  fi
  [[ $(dpkg-deb -f "$work/$name" Package 2>/dev/null) == "$package" ]] || die "$name is no package of $package" "whoever publishes it has to look"
  deb=$work/$name
}

# The agent that is to judge the configuration before anything is changed: that of the package, else the one that is here. Never
# run from /tmp, which may be noexec; what apt does needs programs to be run below /var/lib. Empty if there is none that runs.
find_agent() {
  declare -g agent="" unjudged="there is no monky-deployd"
  if [[ -n $deb ]]; then
    unjudged="the agent of $(basename "$deb") does not run below $root/var/lib, from where it was tried"
    if trial=$(mktemp -d "$root/var/lib/monky-install.XXXXXXXX" 2>"$work/trial.log") && dpkg-deb -x "$deb" "$trial" 2>>"$work/trial.log"; then
      agent=$trial/usr/bin/monky-deployd
    fi
  elif [[ ${opt[dry-run]} == yes && -n $would_download ]]; then
    unjudged="the package, with the agent that would judge it, would still have to be downloaded"
  elif command -v monky-deployd >/dev/null; then
    agent=monky-deployd
    unjudged="the monky-deployd of this box does not run"
  fi
  if [[ -n $agent ]] && ! "$agent" --version >"$work/trial.log" 2>&1; then agent=""; fi
  [[ -n $agent ]] || unjudged+=": $(tail_of "$work/trial.log")"
}

# ---- The configuration: keys are changed one by one, everything else in the file stays as it is

# A value as YAML.
yaml() { # TEXT
  local text=$1
  if [[ $text =~ ^[A-Za-z0-9/][A-Za-z0-9_./:@-]*$ && $text != *: && $text != *::* && ${text,,} != null ]]; then
    printf '%s' "$text"
  else
    text=${text//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
  fi
}

# The value of a key in a file, without quotes; a list as [a, b], however it is written. Status 1: it is not there. 3: its section
# is written in a way that is not understood here.
config_get() { # FILE KEY
  [[ -f $1 ]] || return 1
  SECTION=$([[ $2 != *.* ]] || printf %s "${2%%.*}") KEY=${2#*.} awk '
    BEGIN { section = ENVIRON["SECTION"]; key = ENVIRON["KEY"]; in_it = (section == ""); q = sprintf("%c", 39) }
    function bare(text) {
      if (substr(text, 1, 1) == "\"") { sub(/^"/, "", text); sub(/"[ ]*(#.*)?$/, "", text); gsub(/\\"/, "\"", text); gsub(/\\\\/, "\\", text) }
      else if (substr(text, 1, 1) == q) { sub("^" q, "", text); sub(q "[ ]*(#.*)?$", "", text); gsub(q q, q, text) }
      else { sub(/ +#.*$/, "", text); sub(/ +$/, "", text); sub(/^#.*$/, "", text) }
      return text
    }
    found && /^ *- / { sub(/^ *- */, ""); items = items (items == "" ? "" : ", ") bare($0); next }
    found && /^ *(#.*)?$/ { next }
    found { exit }
    section != "" && /^[^ #]/ { in_it = ($0 ~ ("^" section ":[ ]*(#.*)?$")); if (!in_it && $0 ~ ("^" section ":")) { odd = 1; exit } }
    in_it && $0 ~ ("^" (section == "" ? "" : " +") key ":( |$)") {
      sub(/^ *[^:]*: */, "")
      value = bare($0); found = 1
      # Without a value it may be a list, an item a line.
      if (value != "") exit
    }
    END { if (odd) exit 3; if (!found) exit 1; print (items == "" ? value : "[" items "]") }' "$1"
}

# The file with a key set, on stdout: in its place, else behind the line that shows its default, else at the end of what it is in.
# A list is given as YAML: [a, b]. It takes the place of one that is written an item a line, with all its items.
config_set() { # FILE KEY VALUE
  local value=$3
  [[ $2 == *_roots ]] || value=$(yaml "$3")
  SECTION=$([[ $2 != *.* ]] || printf %s "${2%%.*}") KEY=${2#*.} LINE="${2#*.}: $value" awk '
    { line[NR] = $0 }
    END {
      section = ENVIRON["SECTION"]; key = ENVIRON["KEY"]; new = ENVIRON["LINE"]; from = 1; to = NR; indent = ""; after = NR; head = 0; hidden = 0
      if (section != "") {
        indent = "  "
        for (i = 1; i <= NR; i++) {
          if (line[i] ~ ("^" section ":[ ]*(#.*)?$")) { head = i; break }
          if (line[i] == "#" section ":") hidden = i
        }
        if (head) from = head + 1; else from = (hidden ? hidden : NR) + 1
        for (to = from; to <= NR && line[to] !~ /^[^ #]/; to++) if (line[to] ~ /^ +[^ #]/) { match(line[to], /^ +/); indent = substr(line[to], 1, RLENGTH); break }
        for (to = from; to <= NR && line[to] !~ /^[^ #]/ && !(to > from && line[to] ~ /^#[a-z_]+:$/); to++);
        to--
        after = from - 1
      }
      for (i = from; i <= to; i++) if (line[i] ~ ("^" indent "#" key ":")) { after = i; break }
      for (i = from; i <= to; i++) if (line[i] ~ ("^" (section == "" ? "" : " +") key ":( |$)")) { replace = i; break }
      # The items of the list that it was, and the comments between them.
      if (replace) for (i = replace + 1; i <= to && line[i] ~ /^ *(- .*|#.*)?$/; i++) if (line[i] ~ /^ *- /) until = i
      if (section != "" && !head && after >= from) { opens = from - 1 } else opens = after
      for (i = 1; i <= NR; i++) {
        if (i > replace && i <= until) continue
        print (i == replace ? indent new : line[i])
        if (section != "" && !head && i == opens) print section ":"
        if (!replace && i == after) print indent new
      }
      if (NR == 0) { if (section != "") print section ":"; print indent new }
    }' "$1"
}

want() { # KEY VALUE
  [[ -z $2 ]] || wanted+=("$1=$2")
}

wanted_keys() {
  local one
  want env_id "${opt[env]}"
  want site "${opt[site]}"
  want transport "${opt[transport]}"
  if [[ ${opt[transport]} == proxy && -z ${opt[proxy-tenancy]} ]] && ! config_get "$root$etc/config.yaml" proxy.tenancy >/dev/null; then
    # The port of the package's own proxy.env.
    opt[proxy-tenancy]=127.0.0.1:8441
  fi
  want proxy.tenancy "${opt[proxy-tenancy]}"
  want proxy.bao "${opt[proxy-bao]}"
  want sdk.service "${opt[sdk-service]}"
  want sdk.library "${opt[sdk-library]}"
  [[ ${opt[transport]} != sdk ]] || want sdk.identity_file "$etc/identity.json"
  want tenancy.host "${opt[tenancy-host]}"
  want tenancy.port "${opt[tenancy-port]}"
  want bao.addr "${opt[bao-addr]}"
  [[ -z ${opt[tenancy-ca]} ]] || want tenancy.ca_file "$etc/tenancy-ca.pem"
  [[ -z ${opt[bao-ca]} ]] || want bao.ca_file "$etc/bao-ca.pem"
  [[ ${opt[laptop]} != yes ]] || want laptop_mode true
  while IFS= read -r one; do
    [[ -z $one ]] || wanted+=("$one")
  done <<<"${opt[set]}"
}

# The configuration as the package ships it, that nobody has touched: its values are examples.
is_example() {
  [[ -f $root$etc/config.yaml ]] || return 1
  dpkg-query -W -f='${Conffiles}\n' "$package" 2>/dev/null | grep -F " $etc/config.yaml $(md5sum "$root$etc/config.yaml" | cut -d' ' -f1)" >/dev/null
}

# Makes the new configuration in the private folder, and has the agent judge it.
prepare_configuration() {
  local config=$root$etc/config.yaml new=$work/config.yaml one key value old status env_id new_id
  declare -g example=""
  if is_example; then example=yes; fi
  if [[ -f $config ]]; then
    cat "$config" >"$new"
    # A last line without its end would grow into ours.
    [[ -z $(tail -c1 "$new") ]] || echo >>"$new"
  else
    printf '# Written by install.sh. Every key, its meaning and its default: /usr/share/doc/monky-deployd/examples/config.example.yaml\n' >"$new"
  fi
  for one in "${wanted[@]}"; do
    key=${one%%=*}
    value=${one#*=}
    status=0
    old=$(config_get "$new" "$key") || status=$?
    ((status != 3)) || die "$config: '${key%%.*}' is not written as a block of 'key: value' lines, and is not understood here" "write it as in config.example.yaml, or set $key there by hand and leave its flag out"
    ((status == 1)) || [[ $old != "$value" ]] || continue
    config_set "$new" "$key" "$value" >"$new.next"
    mv -f "$new.next" "$new"
    edits+=("$key: ${old:-(not set)} -> $value")
  done
  for one in env_id:env tenancy.host:tenancy-host bao.addr:bao-addr; do
    key=${one%%:*}
    one=${one#*:}
    [[ -n ${opt[$one]} ]] || { [[ -z $example ]] && [[ -n $(config_get "$new" "$key") ]]; } ||
      [[ $'\n'${opt[set]} == *$'\n'"$key="?* ]] || misused "--$one is needed: $(flags | sed -n "s/^$one|.*|//p")"
  done
  [[ $(transport) != proxy || ${opt[no-tunneler]} == yes || -n ${opt[proxy-services]} || -f $root$etc/proxy.env ]] ||
    misused "--proxy-services is needed with the transport proxy: $(flags | sed -n "s/^proxy-services|.*|With proxy: //p")"
  env_id=$(config_get "$config" env_id) || env_id=""
  # However it was given: --env, or --set env_id=….
  new_id=$(config_get "$new" env_id) || new_id=""
  if [[ -n $env_id && $env_id != "$new_id" && -z $example ]]; then
    die "$config says that this box is $env_id, and the flags say $new_id" \
      "if it is to become another box: apt-get purge $package (this removes its state), then run this again" "if that was a slip: leave --env out"
  fi
  if [[ -z $agent ]]; then
    note "the new configuration could not be judged before anything is changed: $unjudged"
    note "the installed agent judges it when it is written; if it refuses, what was there before is put back"
  else
    "$agent" --config "$new" config check >"$work/check.log" 2>&1 || {
      sed "s|$new|the new $config|g; s/^/    /" "$work/check.log" >&2
      die "the agent does not take the configuration that these flags give (above)" "mend the flags, or $config if the line is yours"
    }
  fi
}

show_edits() {
  local one
  for one in "${edits[@]}"; do say "    $one"; done
}

# After the package: an older agent, that goes on if the package cannot be installed, might refuse what the new one takes.
write_configuration() {
  local config=$root$etc/config.yaml
  if ! differs configuration "$config" "$work/config.yaml"; then
    [[ -z $deb || ${opt[dry-run]} == yes ]] || installed_agent_takes "$config" ||
      die "the agent that is installed now does not take $config, which nobody has changed: $(tail_of "$work/check.log")" "mend it, and run this again"
    return 0
  fi
  write() {
    local kept=""
    folder "$root$etc" 0755
    if [[ -f $config ]]; then
      # Also after the package brought its example.
      kept=$work/config.before
      is_example || kept=$config.before-$(date -u +%Y%m%dT%H%M%SZ)
      cp -p "$config" "$kept"
      [[ $kept == "$work"/* ]] || say "    the old one is kept as $kept"
    fi
    put "$config" 0644 <"$work/config.yaml"
    installed_agent_takes "$config" && return
    local back="$config is gone again" mode
    if [[ -n $kept ]]; then
      mode=$(stat -c %a "$kept")
      put "$config" "$mode" <"$kept"
      rm -f "$kept"
      back="$config is as it was before"
    else
      rm -f "$config"
    fi
    die "the agent that is installed does not take the configuration that these flags give: $(tail_of "$work/check.log")" "$back" "mend the flags, or the line if it is yours, and run this again"
  }
  change "write $config" write
  show_edits
}

installed_agent_takes() { # FILE
  monky-deployd --config "$1" config check >"$work/check.log" 2>&1 </dev/null
}

# As a file for bao.ca_file, not in the system's store: there every program of this box would believe it for every host.
install_ca() { # PEM NAME
  local to=$root$etc/$2
  [[ -n $1 ]] || return 0
  if differs CA "$to" "$1"; then
    change "install the CA $to, for ${2%-ca.pem} alone, not for the system" put_from "$to" "$1"
  fi
}

# Another state directory: what is in it already must be the agent's.
plan_state_dir() {
  local dir
  dir=$root$(configured state_dir $default_state_dir)
  [[ $dir == "$root$default_state_dir" || ! -e $dir || $(stat -c %U "$dir") == "$user" || -z $(ls -A "$dir") ]] ||
    die "state_dir: $dir belongs to $(stat -c %U "$dir") and is not empty" "give an empty or a new folder, which the agent will have for itself" \
      "or, if all that is in it is the agent's: chown -R $user: $dir, and run this again"
}

# What the unit must know of the configuration: how long a tick may take, and where else than in its own state directory it may
# write. In the words of the Ansible role, so that a box may go from one to the other.
fit_the_unit() {
  local dir limit file=$root$dropin
  dir=$(configured state_dir $default_state_dir)
  # The agent takes nothing but a number; in a dry run it may not have been asked.
  seconds() {
    local value
    value=$(configured "$1" "$2")
    [[ $value =~ ^[0-9]{1,9}$ ]] && printf '%s' "$((10#$value))" || printf '%s' "$2"
  }
  limit=$(($(seconds pull_timeout_s 600) + 2 * $(seconds healthy_timeout_s 300) + 600))
  if [[ $dir != "$default_state_dir" && ! ($(stat -c '%U %a' "$root$dir" 2>/dev/null) == "$user 700") ]]; then
    make() (
      umask 022
      install -d -m 0700 -o "$user" -g "$user" "$root$dir"
    )
    change "make the state directory $root$dir" make
  fi
  {
    printf '# What the unit must know of config.yaml. Written by the Ansible role monky_deployd and by install.sh, in the same words.\n[Service]\n'
    printf '# A pull, the wait for health, a rollback that waits again, and ten minutes for everything else.\nTimeoutStartSec=%s\n' "$limit"
    [[ $dir == "$default_state_dir" ]] || printf 'ReadWritePaths=%s\n' "$dir"
  } >"$work/dropin"
  # What it would say is what the unit says by itself.
  if [[ $limit == 1800 && $dir == "$default_state_dir" && ! -f $file ]]; then return 0; fi
  if differs "the unit's settings" "$file" "$work/dropin"; then
    write() {
      put_from "$file" "$work/dropin"
      systemctl daemon-reload
    }
    change "write $file, and have systemd read it" write
  elif [[ $(systemctl show --property=NeedDaemonReload --value monky-deployd.service 2>/dev/null) == yes ]]; then
    # A run broke off in between.
    change "have systemd read $file" systemctl daemon-reload
  fi
}

check_ca() { # FILE FLAG
  [[ -n $1 ]] || return 0
  grep -q -- '-----BEGIN CERTIFICATE-----' "$1" || die "--$2: there is no certificate in $1" "a PEM file is meant: it has a line -----BEGIN CERTIFICATE-----"
  ! grep -q -- 'PRIVATE KEY-----' "$1" || die "--$2: there is a private key in $1, and the file would be readable for everyone" "give the certificate alone"
}

# ---- Docker

compose_version() {
  # Not one in a person's home: the agent would not find it.
  HOME=/nonexistent DOCKER_CONFIG=/nonexistent docker compose version --short 2>/dev/null | sed 's/^v//'
}

# The newest package with a Compose plugin that is new enough; nothing if there is none.
compose_package() { # LEAST
  local one candidate
  for one in docker-compose-plugin docker-compose-v2; do
    candidate=$(apt-cache policy "$one" 2>/dev/null | sed -n 's/^  Candidate: //p')
    # An epoch is no part of Compose's own version.
    candidate=${candidate#*:}
    if [[ -n $candidate && $candidate != '(none)' ]] && at_least "$candidate" "$1"; then
      printf '%s' "$one"
      return 0
    fi
  done
}

install_compose() {
  local have name least=2.21
  have=$(compose_version) || have=""
  if [[ -n $have ]] && at_least "$have" $least; then
    say "Compose plugin: $have"
    return 0
  fi
  name=$(compose_package $least)
  if [[ -z $name && ${opt[dry-run]} != yes ]] && apt update; then
    name=$(compose_package $least)
  fi
  [[ -n $name ]] ||
    die "Docker's Compose plugin ${have:+here is $have, and }must be $least or newer, and no apt source of this box has one that is" \
      "add Docker's own package repository (docs.docker.com/engine/install), then: apt-get update && apt-get install docker-compose-plugin" \
      "on Ubuntu: apt-get update && apt-get install docker-compose-v2" \
      "where no repository can be reached: put the program docker-compose of a Compose release (github.com/docker/compose/releases) at /usr/libexec/docker/cli-plugins/docker-compose, owner root, mode 0755" \
      "then run this again"
  run() {
    apt install -y --no-install-recommends "$name" || die "apt-get install $name failed: $(tail_of "$work/apt.log")" "mend what apt says, and run this again"
  }
  change "install $name" run
}

# daemon.json with data-root set, on stdout. Everything else in it stays. Fails with words if it cannot be done safely.
merge_data_root() { # FILE DIR
  local text=""
  [[ ! -f $1 ]] || text=$(tr -d '[:space:]' <"$1")
  if [[ -z $text || $text == '{}' ]]; then
    printf '{\n  "data-root": "%s"\n}\n' "$2"
  elif command -v python3 >/dev/null; then
    python3 -I -c '
import json, sys
def once(pairs):
    keys = [k for k, _ in pairs]
    if len(keys) != len(set(keys)):
        raise ValueError("a key is given twice")
    return dict(pairs)
with open(sys.argv[1], encoding="utf-8") as f:
    doc = json.load(f, object_pairs_hook=once)
if not isinstance(doc, dict):
    raise ValueError("it is no object")
doc["data-root"] = sys.argv[2]
print(json.dumps(doc, indent=2, ensure_ascii=False))' "$1" "$2" 2>"$work/json.log" || return 1
  elif command -v jq >/dev/null; then
    jq --arg dir "$2" 'if type == "object" then .["data-root"] = $dir else error("it is no object") end' "$1" 2>"$work/json.log" || return 1
  else
    echo "it has settings, and neither python3 nor jq is here to merge them safely" >"$work/json.log"
    return 1
  fi
}

# The docker command, at the engine of this box and no other: whatever root's own context says.
at_engine() { HOME=/nonexistent DOCKER_HOST=$engine docker "$@"; }

docker_root_now() { at_engine info --format '{{.DockerRootDir}}' 2>/dev/null; }

# What would be left behind in the data folder of now; nothing if it is empty.
docker_holds() { # FOLDER
  local containers volumes
  if containers=$(at_engine ps -aq 2>/dev/null) && volumes=$(at_engine volume ls -q 2>/dev/null); then
    [[ -z $containers && -z $volumes ]] || printf '%s containers and %s volumes' "$(grep -c . <<<"$containers")" "$(grep -c . <<<"$volumes")"
  elif [[ -n $(find "$1/containers" "$1/volumes" -mindepth 1 -maxdepth 1 -type d 2>/dev/null | head -n1) ]]; then
    printf 'containers or volumes (Docker does not answer; %s was looked at)' "$1"
  fi
}

# Whether data-root has to change. Stops if it cannot be done.
plan_data_root() {
  local dir=${opt[docker-data-root]} file=$root/etc/docker/daemon.json is holds
  declare -g move_data_root="" force_is_due="" force="sudo -u $user monky-deployd tick --force"
  [[ -n $dir ]] || return 0
  dir=${dir%/}
  is=$(docker_root_now) || is=$(sed -n 's/.*"data-root"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p' "$file" 2>/dev/null) || is=""
  if [[ ${is%/} == "$dir" ]]; then
    say "Docker's data: in $dir already"
    return 0
  fi
  if systemctl cat docker.service 2>/dev/null | grep -E '^ExecStart=.*[ "](--data-root|--graph|-g)[ =]' >/dev/null; then
    die "docker.service sets the data folder on the command line of dockerd; with data-root in $file as well Docker would not start" "take it out of the unit (systemctl cat docker.service), then run this again"
  fi
  is=${is:-/var/lib/docker}
  holds=$(docker_holds "$root$is")
  [[ -z $holds || ${opt[leave-old-docker-data]} == yes ]] ||
    die "Docker's data is in $is and holds $holds: with another data-root they would be gone from Docker's sight" \
      "move it yourself: systemctl stop docker.socket docker; cp -a $is/. $dir/; set \"data-root\": \"$dir\" in /etc/docker/daemon.json; systemctl start docker" \
      "or start empty, and leave the old data where it is: --leave-old-docker-data" "or leave --docker-data-root out"
  [[ -z $holds ]] || note "Docker will start empty in $dir; $is stays as it is, with its $holds"
  merge_data_root "$file" "$dir" >"$work/daemon.json" ||
    die "$file is not understood: $(tail_of "$work/json.log")" "add this line to it by hand: \"data-root\": \"$dir\"" "then: systemctl restart docker, and run this again"
  if dockerd --help 2>/dev/null | grep -e --validate >/dev/null; then
    dockerd --validate --config-file "$work/daemon.json" >"$work/dockerd.log" 2>&1 || die "Docker does not take $file with data-root in it: $(tail_of "$work/dockerd.log")" "mend $file first"
  fi
  move_data_root=yes
}

set_data_root() {
  local dir=${opt[docker-data-root]%/} file=$root/etc/docker/daemon.json kept="" is=""
  [[ $move_data_root == yes ]] || return 0
  write() {
    folder "$root/etc/docker" 0755
    folder "$root$dir" 0710
    if [[ -f $file ]]; then
      kept=$file.before-$(date -u +%Y%m%dT%H%M%SZ)
      cp -p "$file" "$kept"
      say "    the old one is kept as $kept"
    fi
    put "$file" 0644 <"$work/daemon.json"
    if ! systemctl restart docker.service >"$work/docker.log" 2>&1 || ! is=$(docker_root_now) || [[ $is != "$dir" ]]; then
      if [[ -n $kept ]]; then cp -p "$kept" "$file"; else rm -f "$file"; fi
      systemctl restart docker.service >/dev/null 2>&1 || true
      die "Docker did not come up with its data in $dir (it says '${is:-nothing}'): $file is as it was before" "journalctl -u docker.service says why; $(tail_of "$work/docker.log")"
    fi
  }
  change "set data-root to $dir in $file, and restart Docker" write
  # Nothing runs in a data folder that was empty, and the agent remembers what it applied, and not where.
  if [[ ${opt[dry-run]} != yes ]] && as_agent status --format json 2>/dev/null </dev/null | grep -E '"applied": ?\{' >/dev/null; then force_is_due=yes; fi
}

# After a move of data-root: the agent would say "unchanged" for ever.
force_a_tick() {
  [[ $force_is_due == yes ]] || return 0
  if ! is_on monky-deployd.timer; then
    note "what was applied does not run in the new data-root, and nothing brings it up while the timer is stopped: $force"
    return 0
  fi
  again() {
    local try
    for try in 1 2 3; do
      if as_agent tick --force >"$work/tick.log" 2>&1 </dev/null; then return 0; fi
      # The timer's own tick may be under way.
      ((try == 3)) || sleep 5
    done
    note "it did not come up: $(tail_of "$work/tick.log")"
    note "what was applied does not run in the new data-root until this succeeds: $force"
  }
  change "bring up what is applied, in the new data-root: tick --force" again
  force_is_due=""
}

# ---- OpenZiti

# A key of the configuration as it will be.
configured() { # KEY DEFAULT
  local value
  value=$(config_get "$work/config.yaml" "$1") || value=""
  printf %s "${value:-$2}"
}

transport() { configured transport system; }

# system: where ziti-edge-tunnel's service looks. proxy: where the package's proxy unit looks.
identity_file() {
  if [[ $(transport) == system ]]; then
    printf '/opt/openziti/etc/identities/monky-%s.json' "$(configured env_id box)"
  else
    printf '%s/identity.json' "$etc"
  fi
}

# The program of OpenZiti that this transport needs; nothing if none.
tunneler() {
  case $(transport) in
    system) echo ziti-edge-tunnel ;;
    proxy) echo openziti ;;
    sdk) [[ -z ${opt[enrol-jwt]} ]] || echo openziti ;;
  esac
}

ziti_suite() {
  if [[ -n ${opt[ziti-suite]} ]]; then
    printf %s "${opt[ziti-suite]}"
  elif [[ $1 == openziti ]]; then
    printf debian
  else
    # The tunneler is published for Ubuntu releases; this one is also the one for Debian 12.
    printf jammy
  fi
}

# The program that is meant by a package of OpenZiti. Nothing if it is not here.
tunneler_here() { # PACKAGE
  if [[ $1 != openziti ]]; then
    command -v ziti-edge-tunnel
  elif [[ $(transport) != proxy ]]; then
    command -v ziti
  elif [[ -x $root/usr/bin/ziti ]]; then
    # What the proxy unit runs: not one that only PATH finds.
    printf '%s/usr/bin/ziti' "$root"
  else
    return 1
  fi
}

# Whether there is a tunneler to install, and its repository's key. Stops if it cannot be had.
plan_tunneler() {
  declare -g tunneler_package=""
  local name is elsewhere key=${opt[ziti-key-url]:-$ziti_key}
  name=$(tunneler)
  if [[ -z $name || ${opt[no-tunneler]} == yes ]]; then return 0; fi
  # A box that is configured already has its way to tenancy: an upgrade, or a changed key, is no reason for another one.
  if [[ -f $root$etc/config.yaml && -z $example && -z ${opt[transport]}${opt[enrol-jwt]}${opt[proxy-services]}${opt[ziti-repo-url]} ]]; then return 0; fi
  if is=$(tunneler_here "$name"); then
    say "tunneler: $is is here"
    return 0
  fi
  if [[ $name == openziti ]] && elsewhere=$(command -v ziti); then
    die "ziti is at $elsewhere, and monky-deployd-proxy.service runs /usr/bin/ziti" "install -m 755 $elsewhere /usr/bin/ziti, and run this again" \
      "or remove it, and OpenZiti's package $name is installed" "or --no-tunneler, if this box has its own listeners"
  fi
  declare -ga ziti_remedies=("if this box cannot reach it: --ziti-repo-url and --ziti-key-url name a mirror"
    "or install $name by hand (releases: github.com/openziti), with its program in /usr/bin, and run this again"
    "or --no-tunneler, if this box reaches tenancy without OpenZiti, or has its own way into it")
  tunneler_package=$name
  [[ ${opt[dry-run]} != yes ]] || return 0
  command -v curl >/dev/null || die "curl is missing, and OpenZiti's key has to be downloaded" "apt-get install curl ca-certificates"
  fetch_key "$key" "$work/openziti.asc" || die "OpenZiti's repository could not be reached: $key: $(tail_of "$work/curl.log")" "${ziti_remedies[@]}"
  grep -q -- '-----BEGIN PGP PUBLIC KEY BLOCK-----' "$work/openziti.asc" || die "$key holds no PGP key" "${ziti_remedies[@]}"
}

install_tunneler() {
  local name=$tunneler_package repo=${opt[ziti-repo-url]:-$ziti_repo} suite list=$root/etc/apt/sources.list.d/openziti.list ring=$root/etc/apt/keyrings/openziti.asc
  [[ -n $name ]] || return 0
  suite=$(ziti_suite "$name")
  add() {
    put_from "$ring" "$work/openziti.asc"
    echo "deb [signed-by=${ring#"$root"}] $repo $suite main" >"$work/openziti.list"
    put_from "$list" "$work/openziti.list"
    if ! apt update -o Dir::Etc::sourcelist="$list" -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0 ||
      ! apt install -y --no-install-recommends "$name"; then
      # A source that cannot be read would be in the way of everything else that apt does.
      rm -f "$list" "$ring"
      die "OpenZiti's package $name could not be installed from $repo ($suite): $(tail_of "$work/apt.log")" "${ziti_remedies[@]}"
    fi
  }
  change "install $name from $repo ($suite)" add
}

fetch_key() { # URL FILE
  curl --disable --silent --show-error --fail --location --proto '=http,https' --proto-redir '=https' --connect-timeout 15 --max-time 60 --output "$2" "$1" 2>"$work/curl.log" </dev/null
}

# Whether there is something to enrol; stops if the token cannot do it.
plan_enrolment() {
  declare -g enrolling=""
  local to
  to=$root$(identity_file)
  [[ -n ${opt[enrol-jwt]} ]] || {
    [[ -s $to || $(transport) == sdk || ${opt[no-tunneler]} == yes ]] || note "there is no identity $to, and no --enrol-jwt: enrol this box before it can reach anything over OpenZiti"
    return 0
  }
  if [[ -s $to ]]; then
    say "identity: $to is here; --enrol-jwt is not used"
    return 0
  fi
  living_jwt "${opt[enrol-jwt]}" "--enrol-jwt" "whoever runs OpenZiti"
  enrolling=yes
}

enrol() {
  declare -g proxy_is_new=""
  [[ $enrolling == yes ]] || return 0
  local to owner=""
  to=$root$(identity_file)
  [[ $(transport) != system ]] || ! id -u ziti >/dev/null 2>&1 || owner=ziti:
  run() {
    local done_by folder=${to%/*} status=0
    folder "$folder" 0755
    # Beside what ziti-edge-tunnel reads, and on the disk where the identity will stay: a full one is met before the token
    # is used up, not after.
    stage=$(mktemp -d "${folder%/*}/.monky-enrol.XXXXXX")
    head -c 65536 /dev/zero >"$stage/room" && rm "$stage/room"
    # A copy: `ziti edge enroll` removes what it is given, even if it fails.
    cat "${opt[enrol-jwt]}" >"$stage/enrol.jwt"
    if command -v ziti-edge-tunnel >/dev/null; then
      done_by=ziti-edge-tunnel
      timeout -k 5 120 ziti-edge-tunnel enroll --jwt "$stage/enrol.jwt" --identity "$stage/identity.json" >"$work/enrol.log" 2>&1 </dev/null || status=$?
    elif command -v ziti >/dev/null; then
      done_by=ziti
      timeout -k 5 120 ziti edge enroll --jwt "$stage/enrol.jwt" --out "$stage/identity.json" >"$work/enrol.log" 2>&1 </dev/null || status=$?
    else
      die "neither ziti-edge-tunnel nor ziti is here to enrol with" "install one, or leave --no-tunneler out"
    fi
    ((status != 124)) || die "$done_by did not come back from enrolling within two minutes" "can this box reach OpenZiti's controller? The token may be used up: if a second try is refused, get a new one"
    ((status == 0)) || die "$done_by could not enrol this box: $(tail_of "$work/enrol.log")" "can this box reach OpenZiti's controller? A token works once: if it is used up, get a new one"
    [[ -s $stage/identity.json && $(tr -d '[:space:]' <"$stage/identity.json") == \{*\"id\"*\} ]] ||
      die "$done_by said that it enrolled this box, and left no whole identity" "get a new token, and run this again"
    [[ -z $owner ]] || chown "$owner" "$stage/identity.json"
    chmod 0600 "$stage/identity.json"
    sync "$stage/identity.json"
    mv -fT "$stage/identity.json" "$to"
    rm -rf -- "$stage"
    stage=""
  }
  change "enrol this box as $to" run
  proxy_is_new=yes
  [[ ${opt[dry-run]} == yes ]] || note "${opt[enrol-jwt]} is used up; remove it"
  # It reads its identities when it starts.
  if [[ $(transport) == system ]] && systemctl cat ziti-edge-tunnel.service >/dev/null 2>&1; then
    restart() { systemctl enable --quiet ziti-edge-tunnel.service && systemctl restart ziti-edge-tunnel.service; }
    change "start ziti-edge-tunnel with it" restart
  fi
}

# Which services the package's proxy unit listens for. One line of its file; the others stay.
write_proxy_env() {
  local file=$root$etc/proxy.env line="SERVICES=${opt[proxy-services]}"
  if [[ -z ${opt[proxy-services]} ]] || { [[ -f $file ]] && grep -Fx "$line" "$file" >/dev/null; }; then return 0; fi
  run() {
    folder "$root$etc" 0755
    { grep -v '^SERVICES=' "$file" 2>/dev/null || true; echo "$line"; } | put "$file" 0644
  }
  change "write $line to $file" run
  proxy_is_new=yes
}

# Whether a unit was started before a file was written that it reads then: by a run that broke off in between, or by hand.
is_older() { # UNIT FILE…
  local since
  since=$(TZ=UTC systemctl show --property=ActiveEnterTimestamp --value --timestamp=us "$1" 2>/dev/null) || since=""
  [[ -n $since && -n $(find "${@:2}" -newermt "$since" 2>/dev/null) ]]
}

start_proxy() {
  [[ $(transport) == proxy && ${opt[no-tunneler]} != yes ]] || return 0
  local unit=monky-deployd-proxy.service
  if [[ ! -x $root/usr/bin/ziti && ${opt[dry-run]} != yes ]] && ! is_on $unit; then
    note "$unit is not started: there is no $root/usr/bin/ziti, which it runs"
    return 0
  fi
  if [[ ! -s $root$(identity_file) && ${opt[dry-run]} != yes ]]; then
    note "$unit is not started: this box is not enrolled (--enrol-jwt)"
    return 0
  fi
  if systemctl is-active --quiet $unit && { [[ $proxy_is_new == yes ]] || is_older "$unit" "$root$etc/proxy.env" "$root$(identity_file)"; }; then
    again() { systemctl restart "$unit"; }
    change "restart $unit" again
  fi
  start_unit $unit proxy
}

# ---- The package, and what comes after

install_package() {
  [[ -n $deb ]] || return 0
  run() {
    apt install -y --no-install-recommends --allow-downgrades ${opt[reinstall]:+--reinstall} \
      -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$deb" ||
      die "the package could not be installed: $(tail_of "$work/apt.log")" "mend what apt says, and run this again"
  }
  local over
  over=$(installed_version "$package")
  change "install $package $(dpkg-deb -f "$deb" Version)${over:+ over $over}" run
  # With sdk the agent itself reads the identity; else only root does.
  [[ $(transport) != sdk || ! -f $root$etc/identity.json || ${opt[dry-run]} == yes ]] || chown "$user:" "$root$etc/identity.json"
}

# Runs the agent as its own user, as the unit does: as root it would leave files that its user cannot read.
as_agent() {
  local host
  host=$(systemctl show --property=Environment --value monky-deployd.service 2>/dev/null | tr ' ' '\n' | sed -n 's/^DOCKER_HOST=//p') || host=""
  runuser -u "$user" -- env HOME=$default_state_dir ${host:+"DOCKER_HOST=$host"} monky-deployd "$@"
}

plan_bootstrap() {
  declare -g bootstrapping="" fingerprint=""
  local marker=$root$etc/bootstrap.sha256 dir
  [[ -n ${opt[bootstrap-file]} ]] || return 0
  fingerprint=$(tr -d '[:space:]' <"${opt[bootstrap-file]}" | sha256sum | cut -d' ' -f1)
  dir=$root$(configured state_dir $default_state_dir)
  # One grant is good for one login: a second run must not store it again.
  if [[ -f $marker && $(<"$marker") == "$fingerprint" ]] && [[ -e $dir/token.json || -e $dir/bootstrap.jwt ]]; then
    say "bootstrap grant: it was stored before"
    return 0
  fi
  living_jwt "${opt[bootstrap-file]}" "--bootstrap-file" "whoever runs tenancy"
  bootstrapping=yes
}

bootstrap() {
  [[ $bootstrapping == yes ]] || return 0
  store() {
    as_agent bootstrap --grant-file - <"${opt[bootstrap-file]}" >"$work/bootstrap.log" 2>&1 ||
      die "the agent did not store the bootstrap grant: $(tail_of "$work/bootstrap.log")" "run this again; or by hand: sudo -u $user monky-deployd bootstrap --grant-file - <${opt[bootstrap-file]}"
    put "$root$etc/bootstrap.sha256" 0600 <<<"$fingerprint"
  }
  change "store the bootstrap grant" store
  [[ ${opt[dry-run]} == yes ]] || note "the grant is good for one login; remove ${opt[bootstrap-file]}"
}

is_on() { systemctl is-enabled --quiet "$1" 2>/dev/null && systemctl is-active --quiet "$1"; }

# An agent that was here before this run and has ticked had a timer: if that is off, somebody meant it.
plan_timer() {
  declare -g timer_is_left=""
  local dir
  # Where it kept its state until now: the flags may name another folder.
  dir=$(config_get "$root$etc/config.yaml" state_dir) || dir=""
  if ! is_on monky-deployd.timer && [[ -n $(installed_version "$package") && -e $root${dir:-$default_state_dir}/state.json ]]; then timer_is_left=yes; fi
}

start_timer() {
  if [[ $timer_is_left == yes ]]; then
    note "monky-deployd.timer was stopped or disabled, and is left so. To start it: systemctl enable --now monky-deployd.timer"
    return 0
  fi
  start_unit monky-deployd.timer timer
}

start_unit() { # UNIT WHAT
  if is_on "$1"; then
    say "$2: $1 is on already"
    return 0
  fi
  on() { systemctl enable --quiet --now "$unit" >"$work/systemctl.log" 2>&1 || die "$unit could not be started: $(tail_of "$work/systemctl.log")" "systemctl status $unit; journalctl -u $unit"; }
  local unit=$1
  change "enable and start $1" on
}

# 0, or 3 if it found failures.
preflight_of_the_agent() {
  local status=0
  if [[ ${opt[dry-run]} == yes ]]; then
    say "would run monky-deployd check"
    return 0
  fi
  if ! monky-deployd --help 2>/dev/null | grep -E '^ +check( |$)' >/dev/null; then
    note "this version of monky-deployd has no command 'check': look with sudo -u $user monky-deployd status"
    return 0
  fi
  say ""
  say "monky-deployd check:"
  as_agent check 2>&1 </dev/null | sed 's/^/    /' || status=$?
  ((status == 0)) || status=3
  return "$status"
}

main() {
  globals
  parse "$@"
  if [[ ${opt[help]} == yes ]]; then
    usage
    exit 0
  fi
  trap finish EXIT
  trap 'failed_at="line $LINENO: $BASH_COMMAND"' ERR
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  private_folder
  leave_the_process_list
  validate
  [[ ${opt[dry-run]} != yes ]] || say "A dry run: nothing is changed."
  [[ ${opt[transport]} != sdk ]] || note "transport: sdk is accepted by this agent and does not work yet (README, Limits): proxy and system do"

  # What can be wrong, before anything is changed.
  preflight
  check_ca "${opt[bao-ca]}" bao-ca
  check_ca "${opt[tenancy-ca]}" tenancy-ca
  get_package
  find_agent
  wanted_keys
  prepare_configuration
  plan_state_dir
  plan_tunneler
  plan_enrolment
  plan_bootstrap
  plan_data_root
  plan_timer

  # The changes. The package comes before whatever its agent reads.
  install_compose
  install_tunneler
  enrol
  install_package
  install_ca "${opt[tenancy-ca]}" tenancy-ca.pem
  install_ca "${opt[bao-ca]}" bao-ca.pem
  write_configuration
  write_proxy_env
  fit_the_unit
  set_data_root
  bootstrap
  start_proxy
  start_timer
  force_a_tick

  local status=0
  preflight_of_the_agent || status=$?
  say ""
  if [[ ${opt[dry-run]} == yes ]]; then
    say "That would be all."
  elif ((${#changes[@]} == 0)); then
    say "Nothing had to be changed."
  elif [[ $timer_is_left == yes ]]; then
    say "Done. This box asks tenancy once its timer is started: systemctl enable --now monky-deployd.timer"
  else
    say "Done. This box asks tenancy within the next minute: sudo -u $user monky-deployd status"
  fi
  ((status == 0)) || {
    died=yes
    say "But \`monky-deployd check\` found failures (above): mend them$([[ $timer_is_left == yes ]] || echo "; the timer goes on trying"). (exit status 3)"
  }
  exit "$status"
}

main "$@" </dev/null
