#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The scans of sqlite-scan.sh, with Dwell's VFS in place of `dwell run`: DWELL_VFS names the extension.
. "$(dirname "$(realpath "$0")")/sqlite-scan.sh"

available() {
  need sqlite3 sqlite3
  [[ -e ${DWELL_VFS:-} ]] || { echo 'DWELL_VFS names no extension; make sqlite-vfs builds target/sqlite/dwell_vfs.so'; return 1; }
}

query() {
  if ((${#wrap[@]} == 0)); then
    sqlite3 scan.db "$1"
  else
    sqlite3 :memory: ".load $DWELL_VFS" ".open 'file:scan.db?vfs=dwell'" "$1"
  fi
}

verbs "$@"
