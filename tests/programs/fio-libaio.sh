#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# fio reads past the page cache by libaio, eight requests at a time.
. "$(dirname "$(realpath "$0")")/lib.sh"

available() { need fio fio; }
setup() { fio_data; }
run() { fio_reads libaio; }
check() { fio_summary reads.log; }

verbs "$@"
