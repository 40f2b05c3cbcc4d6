#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# fio writes blocks that carry a checksum and reads them back: by threads and by processes, past the page cache and through it.
. "$(dirname "$(realpath "$0")")/lib.sh"

# Name, engine, threads or processes, O_DIRECT, block size, what else.
JOBS='
psync-threads-direct    psync   1 1 4k
psync-processes-direct  psync   0 1 4k
pvsync2-threads-direct  pvsync2 1 1 64k
pvsync2-processes-direct pvsync2 0 1 16k
psync-threads           psync   1 0 4k
psync-processes         psync   0 0 12k fsync=32
pvsync2-threads         pvsync2 1 0 8k  fdatasync=32
pvsync2-processes       pvsync2 0 0 4k
sync-threads-direct     sync    1 1 4k
vsync-processes-direct  vsync   0 1 8k  iodepth=4
psync-append            psync   1 1 4k  file_append=1
'

available() { need fio fio; }

# job_file NAME RW: one fio job per line above, two threads or processes each, all at once.
job_file() {
  local set=$1 rw=$2 name engine thread direct bs rest
  cat <<JOB
[global]
# A whole number of every block size: a file of another length would be laid out anew before it is read.
size=$(pick 6m 96m 12m)
numjobs=2
allrandrepeat=1
verify=crc32c
verify_state_save=0
verify_fatal=1
verify_dump=0
fallocate=none
filename_format=$set.\$jobname.\$jobnum
rw=$rw
JOB
  while read -r name engine thread direct bs rest; do
    [[ -n $name ]] || continue
    printf '[%s]\nioengine=%s\nthread=%s\ndirect=%s\nbs=%s\n' "$name" "$engine" "$thread" "$direct" "$bs"
    [[ $rw != *write || -z $rest ]] || printf '%s\n' "$rest"
  done <<<"$JOBS"
}

setup() {
  job_file given write >write-given
  fio write-given >write-given.log
}

run() {
  job_file given randread >verify-given
  job_file made randwrite >write-made
  job_file made read >verify-made
  forget given.*
  "${wrap[@]}" fio verify-given >verify-given.log
  "${wrap[@]}" fio write-made >write-made.log
  "${wrap[@]}" fio verify-made >verify-made.log
}

# What was written under the wrap is read untouched too.
check() {
  job_file made randread >verify-again
  fio verify-again >verify-again.log
  local step
  for step in verify-given write-made verify-made verify-again; do echo "$step:"; fio_summary "$step.log"; done
  stat -c '%n %s' made.* given.*
}

verbs "$@"
