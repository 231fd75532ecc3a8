#!/usr/bin/env bash
# Installs what development and the test hosts need: Debian packages (with a browser that the report's page is tested in), and the
# locked Python tools in a virtual environment.
# usage: setup.sh VENV
set -euo pipefail
venv=$1
root=$(cd "$(dirname "$0")/.." && pwd)
packages=(systemd-container mmdebstrap openssh-client iproute2 patch util-linux procps rsync tar zstd xfsprogs btrfs-progs
  rhash hashdeep chromium chromium-driver)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] || { echo "setup: run as root, or install first: apt-get install ${missing[*]}" >&2; exit 1; }
  echo "setup: installing Debian packages: ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

stamp=$venv/.complete
wanted=$(sha256sum "$root/requirements-dev.lock" | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then
  exit 0
fi

# The newest Python here that has what a virtual environment needs; ansible-core is the newest that this Python takes.
# Not that of the environment itself, which is about to be deleted.
PATH=$(tr ':' '\n' <<<"$PATH" | grep -vxF "$venv/bin" | paste -sd:)
usable='import ensurepip, ssl, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
python=
for candidate in python3.14 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[432].*/bin/python python3 python3.11 /usr/bin/python3; do
  if "$candidate" -c "$usable" 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  [ "$(id -u)" = 0 ] || { echo "setup: Python 3.11 or newer with venv is needed" >&2; exit 1; }
  echo "setup: installing Python"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null
  python=/usr/bin/python3
fi

echo "setup: creating the development environment with $("$python" --version) in ${venv#"$root"/}"
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check -r "$root/requirements-dev.lock"
echo "$wanted" > "$stamp"
echo "setup: $("$venv/bin/ansible" --version | sed -n 1p)"
