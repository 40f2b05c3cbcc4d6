// SPDX-License-Identifier: GPL-2.0-or-later
// What the files of the tool share.
#ifndef DWELL_TOOL_H
#define DWELL_TOOL_H

#include "pub_tool_basics.h"

#include "ring.h"

#define SLOT_BYTES (RING_SLOT_WORDS * 8)

extern union ring {
   struct ring_header header;
   UChar page[RING_HEADER_BYTES];
} ring;

// Where the next word goes. Generated code reads and writes it.
extern ULong* next_word;
// Instructions executed, where some are to be left out. Generated code counts them.
extern ULong executed;
extern Bool recording, connected;

// Options: where the recorder waits, and its process.
extern const HChar* ring_dir;
extern Int recorder;

// Makes this process's ring and announces it. A forked child lets go of its parent's.
void connect_to_recorder(void);
// Hands over the words of this slot and begins the next one.
void flush(void);
// The first word of the slot that is being filled.
ULong* slot_start(void);
void room_for(UInt words);
void put(ULong word);
void close_ring(void);
// In a forked child that is not recorded: what it writes must not reach its parent's ring.
void leave_parents_ring(void);

#endif
