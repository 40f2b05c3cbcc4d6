// SPDX-License-Identifier: GPL-2.0-or-later
// The tool's end of the ring: the memory that it shares with the recorder.

#include "pub_tool_basics.h"
#include "pub_tool_clientstate.h"
#include "pub_tool_libcassert.h"
#include "pub_tool_libcbase.h"
#include "pub_tool_libcfile.h"
#include "pub_tool_libcprint.h"
#include "pub_tool_libcproc.h"
#include "pub_tool_vki.h"
#include "pub_tool_vkiscnums.h"
#include "pub_tool_xarray.h"

#include "tool.h"

// In the core and its library, but in none of the packaged headers.
extern Int VG_(safe_fd)(Int oldfd);
extern void VG_(exit)(Int status) __attribute__((noreturn));

// Aligned to a slot, so that the room left in one follows from the pointer alone.
static struct {
   ULong words[RING_SLOTS][RING_SLOT_WORDS];
} slots __attribute__((aligned(SLOT_BYTES)));
union ring ring __attribute__((aligned(4096)));

ULong* next_word;
ULong executed;
Bool recording = False;
Bool connected = False;
const HChar* ring_dir = NULL;
Int recorder = 0;

static Int ring_fd = -1;

// ---------------------------------------------------------------- the system

static Long syscall6(Long number, ULong a, ULong b, ULong c, ULong d, ULong e, ULong f)
{
   Long result;
   register ULong r10 __asm__("r10") = d;
   register ULong r8 __asm__("r8") = e;
   register ULong r9 __asm__("r9") = f;
   __asm__ volatile("syscall"
                    : "=a"(result)
                    : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                    : "rcx", "r11", "memory");
   return result;
}

#define FUTEX_WAIT 0
#define FUTEX_WAKE 1

static void __attribute__((noreturn)) give_up(const HChar* what, Long error)
{
   VG_(umsg)("dwelltrace: %s (error %lld)\n", what, -error);
   VG_(exit)(1);
}

static void map_over(void* where, SizeT bytes, ULong offset)
{
   // The range is part of this tool's own image, so the core knows that it is taken.
   ULong flags = ring_fd >= 0 ? VKI_MAP_SHARED : VKI_MAP_PRIVATE | VKI_MAP_ANONYMOUS;
   Long got = syscall6(__NR_mmap, (Addr)where, bytes, VKI_PROT_READ | VKI_PROT_WRITE,
                       flags | VKI_MAP_FIXED, ring_fd, offset);
   if (got != (Long)(Addr)where) {
      give_up("cannot map the ring", got);
   }
}

// ---------------------------------------------------------------- the ring

// Whether there was room for it.
static Bool tell_word_of_command(const HChar* word)
{
   UInt bytes = VG_(strlen)(word) + 1, before = ring.header.command_bytes;
   if (before + bytes > RING_HEADER_BYTES - offsetof(struct ring_header, command)) {
      return False;
   }
   VG_(memcpy)(ring.header.command + before, word, bytes);
   ring.header.command_bytes = before + bytes;
   return True;
}

// The recorder cannot ask the system: the process may have become another program meanwhile.
static void tell_command(void)
{
   Bool fits = tell_word_of_command(VG_(args_the_exename));
   for (Word i = 0; fits && i < VG_(sizeXA)(VG_(args_for_client)); i++) {
      fits = tell_word_of_command(*(HChar**)VG_(indexXA)(VG_(args_for_client), i));
   }
}

void connect_to_recorder(void)
{
   HChar path[512], line[64];
   SysRes opened;
   Int sequence = 0, pid = VG_(getpid)(), parents = ring_fd;
   // A process that executed another program has the same number as before.
   do {
      VG_(snprintf)(path, sizeof path, "%s/ring.%d.%d", ring_dir, pid, sequence);
      opened = VG_(open)(path, VKI_O_RDWR | VKI_O_CREAT | VKI_O_EXCL, 0600);
   } while (sr_isError(opened) && sr_Err(opened) == VKI_EEXIST && ++sequence < 1 << 20);
   if (sr_isError(opened)) {
      give_up("cannot make the ring", -(Long)sr_Err(opened));
   }
   ring_fd = VG_(safe_fd)(sr_Res(opened));
   Long done = syscall6(__NR_ftruncate, ring_fd, RING_HEADER_BYTES + sizeof slots, 0, 0, 0, 0);
   if (done < 0) {
      give_up("cannot size the ring", done);
   }
   // Held until the process ends, however it does: so the recorder learns of it.
   syscall6(__NR_flock, ring_fd, 2 /* LOCK_EX */, 0, 0, 0, 0);
   map_over(&ring, RING_HEADER_BYTES, 0);
   map_over(&slots, sizeof slots, RING_HEADER_BYTES);
   ring.header.magic = RING_MAGIC;
   ring.header.slots = RING_SLOTS;
   ring.header.slot_words = RING_SLOT_WORDS;
   ring.header.pid = pid;
   ring.header.parent_pid = VG_(getppid)();
   ring.header.skipped = recording ? 0 : executed;
   ring.header.recording = recording;
   tell_command();
   next_word = slots.words[0];
   connected = True;

   VG_(snprintf)(path, sizeof path, "%s/announce", ring_dir);
   opened = VG_(open)(path, VKI_O_WRONLY | VKI_O_NONBLOCK, 0);
   if (sr_isError(opened)) {
      give_up("nobody records", -(Long)sr_Err(opened));
   }
   Int length = VG_(snprintf)(line, sizeof line, "ring.%d.%d\n", pid, sequence);
   VG_(write)(sr_Res(opened), line, length);
   VG_(close)(sr_Res(opened));
   if (parents >= 0) {
      VG_(close)(parents);
   }
}

static void wait_for_room(void)
{
   for (;;) {
      UInt consumed = __atomic_load_n(&ring.header.consumed, __ATOMIC_ACQUIRE);
      if (__atomic_load_n(&ring.header.stop, __ATOMIC_ACQUIRE)) {
         VG_(exit)(0);
      }
      if (ring.header.produced - consumed < RING_SLOTS) {
         return;
      }
      struct vki_timespec second = { 1, 0 };
      Long got = syscall6(__NR_futex, (Addr)&ring.header.consumed, FUTEX_WAIT, consumed,
                          (Addr)&second, 0, 0);
      if (got == -110 /* ETIMEDOUT */ && recorder > 0
          && syscall6(__NR_kill, recorder, 0, 0, 0, 0, 0) == -VKI_ESRCH) {
         give_up("the recorder is gone", 0);
      }
   }
}

void flush(void)
{
   UInt slot = ring.header.produced % RING_SLOTS;
   if (!connected) {
      next_word = slots.words[0];
      return;
   }
   ring.header.used[slot] = next_word - slots.words[slot];
   __atomic_fetch_add(&ring.header.produced, 1, __ATOMIC_RELEASE);
   syscall6(__NR_futex, (Addr)&ring.header.produced, FUTEX_WAKE, 1, 0, 0, 0);
   wait_for_room();
   next_word = slots.words[ring.header.produced % RING_SLOTS];
}

ULong* slot_start(void)
{
   return slots.words[ring.header.produced % RING_SLOTS];
}

void room_for(UInt words)
{
   tl_assert(words < RING_SLOT_WORDS / 2);
   UInt used = next_word - slot_start();
   if (used + words > RING_SLOT_WORDS) {
      flush();
   }
}

void put(ULong word)
{
   *next_word++ = word;
}

void close_ring(void)
{
   if (!connected) {
      return;
   }
   if (recording) {
      flush();
   }
   if (!recording) {
      ring.header.skipped = executed;
   }
   __atomic_fetch_add(&ring.header.produced, 0x80000000u, __ATOMIC_RELEASE);
   syscall6(__NR_futex, (Addr)&ring.header.produced, FUTEX_WAKE, 1, 0, 0, 0);
   connected = False;
}

void leave_parents_ring(void)
{
   Int parents = ring_fd;
   ring_fd = -1;
   connected = False;
   map_over(&ring, RING_HEADER_BYTES, 0);
   map_over(&slots, sizeof slots, 0);
   next_word = slots.words[0];
   VG_(close)(parents);
}
