# shellcheck shell=bash
# What the launchers share: --dry-run anywhere on the line, --help, usage errors (exit code 2), exact quoting.
# A launcher sources this file with its arguments, finds the words that are left in "$@" by `set -- "${words[@]}"`, and ends
# with `run COMMAND...`, which prints the command as one line that a shell can read back, or becomes it.

me="${me:-launch/$(basename "$0")}" # a launcher that a scheduler copies elsewhere sets it
dry=0
words=()
for word in "$@"; do
  case "$word" in
    --dry-run) dry=1 ;;
    -h | --help) # the comment at the top of the launcher
      awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
      exit 0
      ;;
    *) words+=("$word") ;;
  esac
done

fail() { # what is wrong, and what to do
  echo "$me: $1; see $me --help" >&2
  exit 2
}

need_config() { # the first word names a config file of this checkout
  [ $# -gt 0 ] || fail "no config given, for instance configs/tiny.py"
  case "$1" in
    --config=*) fail "the config is the first word, without --config=: ${1#--config=}" ;;
    -*) fail "the first word must be a config file (got $1)" ;;
  esac
  local root
  root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
  [ -f "${1%%:*}" ] || [ -f "$root/${1%%:*}" ] || fail "no config file ${1%%:*}"
}

quoted() { # the words as one line that a shell reads back as the same words
  local line
  printf -v line '%q ' "$@"
  printf '%s' "${line% }"
}

run() {
  if [ "$dry" = 1 ]; then
    quoted "$@"
    echo
  else
    exec "$@"
  fi
}
