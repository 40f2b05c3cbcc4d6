# SPDX-License-Identifier: MIT OR Apache-2.0
# What the programs' scripts share: their five verbs, the words that wrap every process, and ending what still runs.
#
# A script defines available, setup, run and check, and calls `verbs "$@"` last. `run` starts every program as
# "${wrap[@]}" PROGRAM …; `check` and `setup` run untouched.
# shellcheck shell=bash
set -euo pipefail
export LC_ALL=C TZ=UTC0
PATH=$PATH:/usr/sbin:/sbin
# The directory of the script, wherever it goes later.
scripts=$(dirname "$(realpath "$0")")
LENGTH=${LENGTH:-short}
read -r -a wrap <<<"${WRAP:-}"
# Words before "${wrap[@]}" that give a process another user; `become` fills them.
as=()

fail() { echo "$(basename "$0" .sh): $*" >&2; exit 1; }

# need PROGRAM PACKAGE …: says which packages are missing.
need() {
  local missing=''
  while (($# > 1)); do
    command -v "$1" >/dev/null || missing+=" $2"
    shift 2
  done
  [[ -z $missing ]] || { echo "not installed:$missing"; return 1; }
}

# pick SHORT LONG [MEDIUM]: the one that $LENGTH asks for. Medium is for measuring: there a process lasts so long that its start does
# not decide.
pick() {
  case $LENGTH in
    short) echo "$1" ;;
    long) echo "$2" ;;
    medium) echo "${3:-$1}" ;;
    *) fail "LENGTH is '$LENGTH'; say short, medium or long" ;;
  esac
}

# Lets the kernel forget the cached pages of files, so that the next read comes from the device.
forget() {
  local file
  while IFS= read -r -d '' file; do
    sync "$file"
    dd if="$file" of=/dev/null iflag=nocache count=0 status=none
  done < <(find "$@" -type f -print0)
}

# header FILE PACKAGE: says which package is missing.
header() { [[ -e /usr/include/$1 ]] || { echo "not installed: $2"; return 1; }; }

# compile NAME LIBRARY…: a program from the C source of that name beside the script.
compile() {
  local name=$1; shift
  cc -O2 -o "$name" "$scripts/$name.c" "$@"
}

# paged GLOB: has `dwell run` bring in mapped files of these names with its pager.
paged() {
  local at
  export DWELL_PAGER=$1
  for at in "${!wrap[@]}"; do
    [[ ${wrap[at]} = -- ]] || continue
    wrap=("${wrap[@]:0:at}" --pager "$1" "${wrap[@]:at}")
    return
  done
}

sha() { sha256sum | cut -d' ' -f1; }

# become DIR USER…: for servers that refuse root. Root gives DIR to the first of the users that there is.
become() {
  local dir=$1 user; shift
  [[ $(id -u) = 0 ]] || return 0
  for user in "$@" nobody; do
    id "$user" >/dev/null 2>&1 || continue
    chown -R "$user:" "$dir"
    as=(setpriv "--reuid=$user" "--regid=$(id -g "$user")" --clear-groups env -u XDG_RUNTIME_DIR "HOME=$dir")
    return 0
  done
  fail "there is none of the users $* nobody to run as"
}

# until_true SECONDS COMMAND…: waits for a server to get where the command succeeds.
until_true() {
  local seconds=$1 tries; shift
  for ((tries = seconds * 100; tries > 0; tries--)); do
    "$@" >/dev/null 2>&1 && return 0
    # Short: what is measured is how long a program takes, and not this.
    sleep 0.01
  done
  fail "after $seconds s still not: $*"
}

# Errors and bytes of each job; speeds are nobody's business here.
fio_summary() { sed -nE 's/^([a-z0-9-]+): \(groupid=.*(err= *[0-9]+).*/\1 \2/p; s/^ *(READ|WRITE): .*io=([^ ]+) .*/\1 \2/p' "$1"; }

# fio_reads ENGINE: random reads of 4 KiB past the page cache, 8 at a time, of the file that fio_data made.
fio_reads() {
  "${wrap[@]}" fio --name=reads --filename=data --rw=randread --bs=4k --direct=1 --ioengine="$1" --iodepth=8 --norandommap --randrepeat=1 \
    --size="$(pick 8m 256m 64m)" --io_size="$(pick 8m 1g 160m)" >reads.log
}
fio_data() { fio --name=data --filename=data --rw=write --bs=1m --size="$(pick 8m 256m 64m)" --end_fsync=1 >data.log; }

# A mariadb server in the working directory.
# server NATIVE_AIO WORD…: pages by plain calls (0), or by the kernel's asynchronous ones, which nothing here can see (1).
server() {
  local native=$1; shift
  "${as[@]}" "$@" mariadbd --no-defaults --datadir="$PWD/data" --socket="$PWD/socket" --pid-file="$PWD/pid" --skip-networking --skip-log-bin \
    --innodb-use-native-aio="$native" --innodb-flush-method=O_DIRECT --innodb-buffer-pool-size=8M --innodb-log-file-size=8M \
    --innodb-flush-log-at-trx-commit=1 --aria-pagecache-buffer-size=256K >>server.log 2>&1 &
  mariadbd=$!
  until_true 60 answers
}
answers() { alive "$mariadbd" || fail "the server ended: $(grep -iE 'error' server.log | tail -n 3)"; "${as[@]}" mariadb-admin --no-defaults -S socket -u root ping; }
client() { "${as[@]}" "$@" mariadb --no-defaults -S socket -u root bench; }
stop() { kill "-$1" "$mariadbd"; wait "$mariadbd" 2>/dev/null || true; }

alive() { [[ -d /proc/$1 && $(sed -E 's/.*\) (.).*/\1/' "/proc/$1/stat" 2>/dev/null) != [ZX]* ]]; }
gone() { ! alive "$1"; }

# processes_in DIR: every process that works within DIR, save this one and those it descends from.
processes_in() {
  local dir pid mine=" $$ " parent=$$
  dir=$(realpath "$1")
  while parent=$(sed -E 's/.*\) . ([0-9]+).*/\1/' "/proc/$parent/stat" 2>/dev/null) && [[ -n $parent && $parent != 0 ]]; do
    mine+="$parent "
  done
  { find /proc/[0-9]*/cwd -maxdepth 0 \( -lname "$dir" -o -lname "$dir (deleted)" -o -lname "$dir/*" \) -printf '%h\n' 2>/dev/null || true; } |
    while IFS=/ read -r _ _ pid; do
      [[ $mine = *" $pid "* ]] || ! alive "$pid" || echo "$pid"
    done
}

none_in() { [[ -z $(processes_in "$1") ]]; }

# cleanup DIR: ends what works within DIR, first politely.
cleanup() {
  local signal tries
  [[ -d $1 ]] || return 0
  for signal in TERM KILL; do
    for ((tries = 0; tries < 100; tries++)); do
      none_in "$1" && return 0
      # shellcheck disable=SC2046 # one word per process
      ((tries > 0)) || kill -s "$signal" $(processes_in "$1") 2>/dev/null || true
      sleep 0.05
    done
  done
  none_in "$1" || fail "processes that do not end: $(processes_in "$1" | xargs)"
}

# leave STATUS DIR: ends a verb; when it failed, with the end of the text that was written last.
leave() {
  local rc=$1 dir=$2 file
  # What failed may have been a function whose output goes elsewhere.
  exec 2>&"$stderr"
  cd /
  if ((rc != 0)); then
    file=$(find "$dir" -maxdepth 1 -type f ! -name '*.sql' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2-)
    if [[ $file ]] && grep -Iq . "$file"; then tail -n 3 "$file" | cut -c1-300 >&2; fi
  fi
  cleanup "$dir"
  exit "$rc"
}

usage() {
  echo "Usage: $(basename "$0") available | setup DIR | run DIR | check DIR | cleanup DIR" >&2
  echo 'Environment: LENGTH=short|medium|long, WRAP="words before every program that run starts"' >&2
  exit 2
}

# Every verb works within DIR, so that what it starts can be found by where it is.
verbs() {
  local verb=${1:-} dir=${2:-}
  case $verb in
    available) available ;;
    setup | run | check)
      [[ -d $dir ]] || usage
      cd "$dir"
      exec {stderr}>&2
      # A server must not outlive the verb that started it, however that ends.
      trap 'leave $? "'"$PWD"'"' EXIT
      trap 'exit 143' TERM INT HUP
      "$verb" "$PWD"
      ;;
    cleanup) [[ -n $dir ]] || usage; cleanup "$dir" ;;
    *) usage ;;
  esac
}
