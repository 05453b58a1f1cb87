#!/usr/bin/env bash
# Installs gpucommons as a systemd service, or updates it. A second run with the same source changes nothing that matters:
# the configuration and the data are kept.
#
#   deploy/install.sh [--share] [--docker] [--stack] [--source DIRECTORY|WHEEL]
#   deploy/install.sh --uninstall [--purge]
#
#   --share      let the programs of all users take fair turns (docs/sharing.md)
#   --docker     let the agent read Docker's containers: it joins the group docker, which is equivalent to root
#   --stack      also Prometheus and Alertmanager of the distribution (docs/monitoring.md)
#   --source     what pip installs; default: this source tree
#   --uninstall  stop the services and remove the program; the configuration and the data stay
#   --purge      with --uninstall: remove /etc/gpucommons and /var/lib/gpucommons too
#
# PYTHON selects the Python (3.11 or newer). With DESTDIR everything goes below that directory, and systemctl is not called.
set -euo pipefail

say() { printf '%s\n' "install.sh: $*" >&2; }
fail() { say "$*"; exit 2; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${DESTDIR:-}
source=$(dirname "$here")
python=${PYTHON:-python3}
share=false docker=false stack=false uninstall=false purge=false
while [ $# -gt 0 ]; do
    case $1 in
        --share) share=true ;;
        --docker) docker=true ;;
        --stack) stack=true ;;
        --uninstall) uninstall=true ;;
        --purge) purge=true ;;
        --source) [ $# -gt 1 ] || fail "--source needs a directory or a wheel"; source=$2; shift ;;
        -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        *) fail "unknown option '$1'; see: install.sh --help" ;;
    esac
    shift
done

if $purge && ! $uninstall; then fail "--purge removes the configuration and the data: use it with --uninstall"; fi

program=$root/opt/gpucommons
units=$root/etc/systemd/system
settings=$root/etc/gpucommons
link=$root/usr/local/bin/gpucommons
drop_in=$units/gpucommons.service.d/sharing.conf
docker_drop_in=$units/gpucommons.service.d/docker.conf
services=(gpucommons gpucommons-pauser gpucommons-stack)

[ -n "$root" ] || [ "$(id -u)" = 0 ] || fail "run it as root: sudo deploy/install.sh"

systemctl_() {
    [ -n "$root" ] || systemctl "$@"
}

if $uninstall; then
    for service in "${services[@]}"; do
        [ ! -e "$units/$service.service" ] || systemctl_ disable --now "$service" || true
    done
    # Whatever was paused for sharing runs again before the program that can resume it is removed.
    [ -n "$root" ] || [ ! -x "$program/bin/gpucommons" ] || "$program/bin/gpucommons" resume --all >/dev/null || true
    for service in "${services[@]}"; do rm -f "$units/$service.service"; done
    rm -f "$drop_in" "$docker_drop_in"
    rmdir "$units/gpucommons.service.d" 2>/dev/null || true
    [ "$(readlink "$link" 2>/dev/null)" != /opt/gpucommons/bin/gpucommons ] || rm -f "$link"
    rm -rf "$program"
    if $purge; then rm -rf "$settings" "$root/var/lib/gpucommons" "$root/var/lib/private/gpucommons"; fi
    systemctl_ daemon-reload
    $purge && say "removed" || say "removed; /etc/gpucommons and /var/lib/gpucommons are kept (--purge removes them)"
    exit 0
fi

# A machine may have systemctl and run another init, as a container does.
[ -n "$root" ] || { command -v systemctl >/dev/null && [ -d /run/systemd/system ]; } ||
    fail "systemd does not run here, nothing was changed; see docs/deploy.md for Docker and Kubernetes"
if $docker && [ -z "$root" ]; then
    getent group docker >/dev/null || fail "there is no group 'docker': install Docker first, or leave --docker out"
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "'$python' is not Python 3.11 or newer; use: PYTHON=/path/to/python3.11 deploy/install.sh"
[ -e "$source" ] || fail "no such source: $source"

if [ ! -x "$program/bin/pip" ]; then
    say "creating /opt/gpucommons"
    "$python" -m venv "$program" || fail "'$python -m venv' fails; on Debian or Ubuntu: apt install python3-venv"
fi
say "installing $source"
"$program/bin/pip" install --quiet --disable-pip-version-check --upgrade "${source}[tui]"

mkdir -p "$units" "$settings" "$(dirname "$link")"
[ -e "$settings/gpucommons.toml" ] || printf '# See docs/configuration.md. Empty: the defaults.\n' >"$settings/gpucommons.toml"
chmod 0644 "$settings/gpucommons.toml"
for service in "${services[@]}"; do install -m 0644 "$here/systemd/$service.service" "$units/$service.service"; done
if $share; then install -D -m 0644 "$here/systemd/sharing.conf" "$drop_in"; fi
if $docker; then
    mkdir -p "$(dirname "$docker_drop_in")"
    printf '[Service]\nSupplementaryGroups=docker\n' >"$docker_drop_in"
fi
if [ ! -e "$link" ] || [ -L "$link" ]; then
    ln -sfn /opt/gpucommons/bin/gpucommons "$link"
else
    say "$link exists and is not a link: left as it is"
fi

systemctl_ daemon-reload
enabled=(gpucommons)
if $share || [ -e "$drop_in" ]; then enabled=(gpucommons-pauser "${enabled[@]}"); fi
if $stack; then enabled+=(gpucommons-stack); fi
for service in "${enabled[@]}"; do
    systemctl_ enable "$service"
    systemctl_ restart "$service"
done
say "installed $("$program/bin/gpucommons" --version); next: gpucommons gpus, or open http://127.0.0.1:9460/"
