#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# dd, cp, sort, split, tar and their like: ways of copying bytes, whose result a hash decides.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need dd coreutils cp coreutils sort coreutils tar tar gzip gzip; }

setup() {
  # Text in which every 16 bytes say where they belong.
  seq -f '%015.0f' 0 "$(pick 599999 31999999)" >source
  mkdir tree
  split -b 64k -a 5 <(head -c "$(pick 2M 128M)" source) tree/part-
  shuf --random-source=source -n "$(pick 100000 5000000)" source >shuffled
}

run() {
  local size
  forget source
  "${wrap[@]}" dd if=source of=dd-direct bs=64k iflag=direct oflag=direct status=none
  "${wrap[@]}" dd if=source of=dd-4k bs=4k iflag=direct oflag=dsync,direct count=1000 status=none
  "${wrap[@]}" dd if=source of=dd-odd bs=4093 conv=fsync status=none
  "${wrap[@]}" dd if=source of=dd-append bs=1000 count=1000 oflag=append conv=notrunc status=none
  "${wrap[@]}" dd if=source of=dd-append bs=1000 skip=1000 count=1000 oflag=append conv=notrunc status=none
  # Reads that seek, writes that leave holes and blocks in the middle.
  "${wrap[@]}" dd if=source of=dd-holes bs=4096 skip=100 seek=300 count=200 iflag=direct oflag=direct status=none
  "${wrap[@]}" dd if=source of=dd-holes bs=512 skip=77 seek=999 count=33 conv=notrunc status=none
  "${wrap[@]}" dd if=dd-direct of=dd-swapped bs=8k iflag=direct conv=swab status=none
  forget source
  "${wrap[@]}" cp --reflink=never --sparse=never source cp
  "${wrap[@]}" cp --sparse=always dd-holes cp-holes
  "${wrap[@]}" cp -a tree cp-tree
  "${wrap[@]}" sort -S 2M -T . shuffled >sort
  "${wrap[@]}" sort -S 2M -T . --parallel=2 -r -o sort-reverse shuffled
  "${wrap[@]}" tar cf tree.tar --sort=name --mtime=@0 --owner=0 --group=0 tree
  forget tree tree.tar
  mkdir untarred
  "${wrap[@]}" tar xf tree.tar -C untarred
  "${wrap[@]}" tar df tree.tar -C untarred
  "${wrap[@]}" gzip -n -1 -k -c tree.tar >tree.tar.gz
  "${wrap[@]}" gzip -t tree.tar.gz
  "${wrap[@]}" cat tree/part-* >cat
  "${wrap[@]}" tee tee-a tee-b <tree.tar >/dev/null
  "${wrap[@]}" head -c 1234567 source >head
  "${wrap[@]}" tail -c 3654321 source >tail
  "${wrap[@]}" tac sort >tac
  "${wrap[@]}" split -b 77777 -a 5 cat split-
  "${wrap[@]}" truncate -s 1M dd-odd
  "${wrap[@]}" shred -n 0 -z tee-b
  "${wrap[@]}" cmp cp source
  "${wrap[@]}" sha256sum source cp dd-direct >sums
  forget .
  for size in 1 100 5000; do "${wrap[@]}" od -A d -j "$((size * 1000))" -N "$size" -c source >"od-$size"; done
}

check() { find . -type f ! -name 'part-*' -print0 | sort -z | xargs -0 sha256sum; (cd cp-tree && cat part-* | sha); (cd untarred/tree && cat part-* | sha); cat sums; }

verbs "$@"
