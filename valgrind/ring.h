// SPDX-License-Identifier: GPL-2.0-or-later OR MIT OR Apache-2.0
// What the tool and the recorder share: a ring of slots of 64-bit words per process.
//
// A word at the place of an event is either the number of a block, followed by one word per access
// with its address (0: its condition did not hold), or has one of the codes below in its top byte.
#ifndef DWELL_RING_H
#define DWELL_RING_H

#include <stdint.h>

#define RING_MAGIC 0x32474e4952575544ull
#define RING_SLOTS 8
#define RING_SLOT_WORDS 32768
#define RING_HEADER_BYTES 4096

#define RING_WORD(code, value) ((uint64_t)(code) << 56 | (uint64_t)(value))
// Followed by so many words: first number, counts of instructions, accesses and ways; per
// instruction address, length, bytes in words; per access instruction | size << 16 | kind << 32;
// per way instructions | accesses << 16.
#define RING_DEFINE 1
// Another thread runs.
#define RING_THREAD 2
// The thread calls the kernel.
#define RING_SYSCALL 3

#define RING_LOAD 0
#define RING_STORE 1
#define RING_MODIFY 2

struct ring_header {
   uint64_t magic;
   uint32_t slots, slot_words;
   uint32_t pid, parent_pid;
   // Instructions left out before the first recorded one.
   uint64_t skipped;
   // Not 0 while the process tries to execute another program, after which it has another ring.
   uint32_t executing;
   // Not 0 once nothing is left out any more. Before that only definitions are handed over.
   uint32_t recording;
   // Slots handed over, with the top bit set when no more will come; the recorder waits here.
   uint32_t produced __attribute__((aligned(64)));
   // Slots given back; the tool waits here.
   uint32_t consumed __attribute__((aligned(64)));
   // The recorder wants no more.
   uint32_t stop __attribute__((aligned(64)));
   // Words in each slot.
   uint32_t used[RING_SLOTS] __attribute__((aligned(64)));
   // The program and its first arguments, each with its zero, as many as there is room for.
   uint32_t command_bytes __attribute__((aligned(64)));
   char command[];
};

#endif
