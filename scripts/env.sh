# Sourced by the other scripts: makes a virtual environment and installs this checkout into it, once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  # $1: a version such as 3.11, or nothing for the first supported one. A name may be a shim without a Python behind it.
  local candidate
  for candidate in ${PYTHON:-} ${1:+python$1} ${1:-python3.11 python3.12 python3.13 python3.10 python3} \
    "$HOME"/.pyenv/versions/"${1:-3.11}".*/bin/python; do
    if "$candidate" -c "import sys, venv; v = sys.version_info[:2]; sys.exit(not ((3, 10) <= v <= (3, 13)
        and (not '${1:-}' or '%d.%d' % v == '${1:-}')))" 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
  done
  echo "podlift needs Python ${1:-3.10 to 3.13} with the venv module; none was found." >&2
  echo "Next: install it (Debian and Ubuntu: apt-get install python3 python3-venv), or set PYTHON=/path/to/python." >&2
  return 1
}

make_venv() {
  # $1: its folder, $2: extras of this project, then further requirements. Does nothing when it did the same before.
  local folder=$1 extras=$2
  shift 2
  local stamp="$folder/.installed" wanted
  wanted="$(cat pyproject.toml; echo "$extras $*")"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$folder/bin/python" -c "import sdk" 2>/dev/null; then
    return 0
  fi
  local python
  python=$(find_python "${PYTHON_VERSION:-}")
  echo "Installing into $folder with $("$python" --version)." >&2
  case ",$extras," in
    *,tf,*) echo "The first time, this downloads about 0.7 GB (TensorFlow alone 0.6 GB) and needs up to 3.5 GB of disk:" >&2 ;;
    *) echo "The first time, this downloads less than 0.1 GB:" >&2 ;;
  esac
  [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
  # pip shows each file with its size, and its progress on a terminal; what is there already is no news.
  "$folder/bin/python" -m pip install --disable-pip-version-check "setuptools>=77" "$@" -e ".[$extras]" \
    > >(grep --line-buffered -v "^Requirement already satisfied" >&2)
  printf '%s\n' "$wanted" > "$stamp"
}

make_ray_venv() {
  # $1: its folder, $2: extras of Ray. The environment of a Ray cluster: Ray of its own, and TensorFlow from .venv, which must be
  # there. podlift is not in it, as on a real cluster: the paths that .venv adds for this checkout do not count there.
  local folder=$1 wanted="ray[$2]==2.60.0"
  if [ -f "$folder/.installed" ] && [ "$(cat "$folder/.installed")" = "$wanted" ]; then
    return 0
  fi
  echo "Installing into $folder: $wanted needs 300 MB and half a minute the first time." >&2
  .venv/bin/python -m venv --clear "$folder" || return 1
  local site
  site=$("$folder/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
  .venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$site/tensorflow_of_the_checkout.pth"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$wanted" >&2 || return 1
  printf '%s\n' "$wanted" > "$folder/.installed"
}
