// SPDX-License-Identifier: GPL-2.0-or-later
// A Valgrind tool that hands every block that runs, and every address it touches, to
// `dwell lab trace record` through shared memory.
//
// A process has a ring of its own: a file in the recorder's directory, mapped over `ring`. Here
// words are put in, there they are packed. ring.h tells what the words mean.

#include "pub_tool_basics.h"
#include "pub_tool_libcassert.h"
#include "pub_tool_libcbase.h"
#include "pub_tool_libcprint.h"
#include "pub_tool_libcproc.h"
#include "pub_tool_machine.h"
#include "pub_tool_options.h"
#include "pub_tool_threadstate.h"
#include "pub_tool_tooliface.h"
#include "pub_tool_transtab.h"
#include "pub_tool_vkiscnums.h"

#include "tool.h"

// In the core and its library, but in none of the packaged headers.
extern void VG_(exit)(Int status) __attribute__((noreturn));
extern void VG_(discard_translations)(Addr start, ULong range, const HChar* who);

// Most words that one block writes: its head and its accesses.
#define MAX_BLOCK_WORDS 1024

// Recording begins with the first block before which so many were.
static ULong begins_at;

static Long skip = 0;
static Bool follow_forks = False;
static UInt next_id = 1;
static ThreadId running = 0;

// ---------------------------------------------------------------- describing a block

struct site {
   UShort instruction, size;
   UInt kind;
};

// What has been seen of the block that is being instrumented.
static struct {
   UInt instructions, sites, ways;
   struct { Addr address; UInt length; } instruction[256];
   struct site site[MAX_BLOCK_WORDS];
   struct { UInt instructions, sites; } way[MAX_BLOCK_WORDS];
} block;

static void define_block(void)
{
   UInt words = 4 + block.sites + block.ways;
   UInt i, at;
   for (i = 0; i < block.instructions; i++) {
      words += 2 + (block.instruction[i].length + 7) / 8;
   }
   if (!recording) {
      // What ran before is left out; what it consists of is not, because it may run again.
      next_word = slot_start();
   }
   room_for(words + 1);
   put(RING_WORD(RING_DEFINE, words));
   put(next_id);
   put(block.instructions);
   put(block.sites);
   put(block.ways);
   for (i = 0; i < block.instructions; i++) {
      const UChar* code = (const UChar*)block.instruction[i].address;
      put(block.instruction[i].address);
      put(block.instruction[i].length);
      for (at = 0; at < block.instruction[i].length; at += 8) {
         UInt left = block.instruction[i].length - at;
         ULong bytes = 0;
         VG_(memcpy)(&bytes, code + at, left < 8 ? left : 8);
         put(bytes);
      }
   }
   for (i = 0; i < block.sites; i++) {
      struct site* site = &block.site[i];
      put(site->instruction | (ULong)site->size << 16 | (ULong)site->kind << 32);
   }
   for (i = 0; i < block.ways; i++) {
      put(block.way[i].instructions | (ULong)block.way[i].sites << 16);
   }
   next_id += block.ways;
   if (!recording) {
      flush();
   }
}

// ---------------------------------------------------------------- generating code

#define LITTLE Iend_LE

static IRExpr* constant(ULong value)
{
   return IRExpr_Const(IRConst_U64(value));
}

static IRTemp assign(IRSB* out, IRType type, IRExpr* value)
{
   IRTemp temp = newIRTemp(out->tyenv, type);
   addStmtToIRSB(out, IRStmt_WrTmp(temp, value));
   return temp;
}

static IRExpr* value_of(IRTemp temp)
{
   return IRExpr_RdTmp(temp);
}

static IRExpr* plus(IRSB* out, IRTemp base, UInt words)
{
   if (words == 0) {
      return value_of(base);
   }
   return value_of(assign(out, Ity_I64, IRExpr_Binop(Iop_Add64, value_of(base), constant(words * 8))));
}

static void call_if(IRSB* out, IRExpr* guard, const HChar* name, void (*function)(void))
{
   IRDirty* call = unsafeIRDirty_0_N(0, name, VG_(fnptr_to_fnentry)(function), mkIRExprVec_0());
   call->guard = guard;
   addStmtToIRSB(out, IRStmt_Dirty(call));
}

static void flush_from_generated(void)
{
   if (recording) {
      flush();
   } else {
      next_word = slot_start();
   }
}

static void begin_recording(void);
// How many instructions were executed before this block, where that is counted.
static IRTemp executed_before;

// Reads where words go, after making room for all that this block can write.
static IRTemp enter(IRSB* out)
{
   if (skip > 0) {
      IRExpr* count = constant((Addr)&executed);
      IRExpr* begins = constant((Addr)&begins_at);
      executed_before = assign(out, Ity_I64, IRExpr_Load(LITTLE, Ity_I64, count));
      IRTemp from = assign(out, Ity_I64, IRExpr_Load(LITTLE, Ity_I64, begins));
      IRTemp reached = assign(out, Ity_I1,
                              IRExpr_Binop(Iop_CmpLE64U, value_of(from), value_of(executed_before)));
      call_if(out, value_of(reached), "begin_recording", begin_recording);
   }
   IRExpr* where = constant((Addr)&next_word);
   IRTemp now = assign(out, Ity_I64, IRExpr_Load(LITTLE, Ity_I64, where));
   IRTemp used = assign(out, Ity_I64,
                        IRExpr_Binop(Iop_And64, value_of(now), constant(SLOT_BYTES - 1)));
   IRTemp full = assign(out, Ity_I1,
                        IRExpr_Binop(Iop_CmpLT64U, constant(SLOT_BYTES - 8 * MAX_BLOCK_WORDS),
                                     value_of(used)));
   call_if(out, value_of(full), "flush", flush_from_generated);
   return assign(out, Ity_I64, IRExpr_Load(LITTLE, Ity_I64, where));
}

// Makes what has run so far count: until the next commit this is how the block ran.
static void commit(IRSB* out, IRTemp base)
{
   if (block.instructions == 0) {
      return;
   }
   UInt last = block.ways;
   if (last > 0 && block.way[last - 1].instructions == block.instructions
       && block.way[last - 1].sites == block.sites) {
      return;
   }
   tl_assert(last < MAX_BLOCK_WORDS);
   block.way[last].instructions = block.instructions;
   block.way[last].sites = block.sites;
   block.ways++;
   addStmtToIRSB(out, IRStmt_Store(LITTLE, value_of(base), constant(next_id + last)));
   addStmtToIRSB(out, IRStmt_Store(LITTLE, constant((Addr)&next_word), plus(out, base, 1 + block.sites)));
   if (skip > 0) {
      IRTemp after = assign(out, Ity_I64, IRExpr_Binop(Iop_Add64, value_of(executed_before),
                                                       constant(block.instructions)));
      addStmtToIRSB(out, IRStmt_Store(LITTLE, constant((Addr)&executed), value_of(after)));
   }
}

static Bool same_atom(IRExpr* a, IRExpr* b)
{
   return a != NULL && b != NULL && eqIRAtom(a, b);
}

static IRExpr* last_address;

static void access(IRSB* out, IRTemp base, UInt kind, IRExpr* address, UInt size, IRExpr* guard)
{
   UInt instruction = block.instructions - 1;
   tl_assert(block.instructions > 0);
   if (kind != RING_LOAD && block.sites > 0 && guard == NULL && same_atom(address, last_address)) {
      struct site* before = &block.site[block.sites - 1];
      // As long as nobody has left the block between both.
      Bool committed = block.ways > 0 && block.way[block.ways - 1].sites == block.sites;
      if (before->kind == RING_LOAD && before->instruction == instruction && before->size == size
          && !committed) {
         before->kind = RING_MODIFY;
         return;
      }
   }
   last_address = guard == NULL ? address : NULL;
   tl_assert(block.sites + 2 < MAX_BLOCK_WORDS);
   block.site[block.sites].instruction = instruction;
   block.site[block.sites].size = size;
   block.site[block.sites].kind = kind;
   block.sites++;
   if (guard != NULL) {
      address = value_of(assign(out, Ity_I64, IRExpr_ITE(guard, address, constant(0))));
   }
   addStmtToIRSB(out, IRStmt_Store(LITTLE, plus(out, base, block.sites), address));
}

static void watch(IRSB* out, IRTemp base, IRStmt* st, IRTypeEnv* types)
{
   switch (st->tag) {
   case Ist_WrTmp: {
      IRExpr* data = st->Ist.WrTmp.data;
      if (data->tag == Iex_Load) {
         access(out, base, RING_LOAD, data->Iex.Load.addr, sizeofIRType(data->Iex.Load.ty), NULL);
      }
      break;
   }
   case Ist_Store: {
      IRType type = typeOfIRExpr(types, st->Ist.Store.data);
      access(out, base, RING_STORE, st->Ist.Store.addr, sizeofIRType(type), NULL);
      break;
   }
   case Ist_StoreG: {
      IRStoreG* store = st->Ist.StoreG.details;
      UInt size = sizeofIRType(typeOfIRExpr(types, store->data));
      access(out, base, RING_STORE, store->addr, size, store->guard);
      break;
   }
   case Ist_LoadG: {
      IRLoadG* load = st->Ist.LoadG.details;
      IRType wide, type;
      typeOfIRLoadGOp(load->cvt, &wide, &type);
      access(out, base, RING_LOAD, load->addr, sizeofIRType(type), load->guard);
      break;
   }
   case Ist_CAS: {
      IRCAS* cas = st->Ist.CAS.details;
      UInt size = sizeofIRType(typeOfIRExpr(types, cas->dataLo));
      access(out, base, RING_MODIFY, cas->addr, cas->dataHi != NULL ? 2 * size : size, NULL);
      break;
   }
   case Ist_Dirty: {
      IRDirty* call = st->Ist.Dirty.details;
      if (call->mFx == Ifx_None || block.instructions == 0) {
         break;
      }
      UInt kind = call->mFx == Ifx_Read ? RING_LOAD : call->mFx == Ifx_Write ? RING_STORE : RING_MODIFY;
      Bool always = call->guard->tag == Iex_Const && call->guard->Iex.Const.con->Ico.U1;
      access(out, base, kind, call->mAddr, call->mSize, always ? NULL : call->guard);
      break;
   }
   default:
      break;
   }
}

static void thread_runs(ThreadId thread, ULong dispatched)
{
   if (thread != running && recording && connected) {
      running = thread;
      room_for(1);
      put(RING_WORD(RING_THREAD, thread));
   }
}

static void begin_recording(void)
{
   recording = True;
   begins_at = ~0ull;
   if (connected) {
      ring.header.skipped = executed;
      __atomic_store_n(&ring.header.recording, 1, __ATOMIC_RELEASE);
      next_word = slot_start();
      thread_runs(VG_(get_running_tid)(), 0);
   }
}

static IRSB* instrument(VgCallbackClosure* closure, IRSB* in, const VexGuestLayout* layout,
                        const VexGuestExtents* extents, const VexArchInfo* host_info,
                        IRType guest_word, IRType host_word)
{
   Int i;
   tl_assert(guest_word == Ity_I64 && host_word == Ity_I64);
   IRSB* out = deepCopyIRSBExceptStmts(in);
   block.instructions = block.sites = block.ways = 0;
   last_address = NULL;
   IRTemp base = enter(out);
   for (i = 0; i < in->stmts_used; i++) {
      IRStmt* st = in->stmts[i];
      if (st == NULL || st->tag == Ist_NoOp) {
         continue;
      }
      if (st->tag == Ist_IMark) {
         tl_assert(block.instructions < 256 && st->Ist.IMark.len < 32);
         block.instruction[block.instructions].address = st->Ist.IMark.addr + st->Ist.IMark.delta;
         block.instruction[block.instructions].length = st->Ist.IMark.len;
         block.instructions++;
         last_address = NULL;
      }
      if (st->tag == Ist_Exit) {
         commit(out, base);
      }
      // Before the block's own statements: what they would overwrite is still there.
      if (block.instructions > 0) {
         watch(out, base, st, in->tyenv);
      }
      addStmtToIRSB(out, st);
   }
   commit(out, base);
   if (block.ways > 0) {
      define_block();
   }
   return out;
}

// ---------------------------------------------------------------- events of the process

static void before_syscall(ThreadId thread, UInt number, UWord* args, UInt count)
{
   if (!recording || !connected) {
      return;
   }
   room_for(1);
   put(RING_WORD(RING_SYSCALL, number));
   // Whoever executes another program does not come back to hand over the rest.
   if (number == __NR_execve || number == __NR_execveat) {
      flush();
      ring.header.executing = 1;
   }
}

static void after_syscall(ThreadId thread, UInt number, UWord* args, UInt count, SysRes result)
{
   ring.header.executing = 0;
}

static void in_child(ThreadId thread)
{
   if (!connected) {
      return;
   }
   if (follow_forks) {
      connect_to_recorder();
      // Every block is described anew, to a recorder that has heard of none.
      next_id = 1;
      running = 0;
      // The core does this too while a system call is carried out, as this one is.
      VG_(discard_translations)((Addr)0x1000, ~0xfffull, "dwelltrace");
   } else {
      leave_parents_ring();
   }
}

static void finish(Int exit_code)
{
   close_ring();
}

// ---------------------------------------------------------------- beginning

static Bool process_option(const HChar* arg)
{
   if VG_STR_CLO(arg, "--ring-dir", ring_dir) {}
   else if VG_BINT_CLO(arg, "--skip", skip, 0, 0x7fffffffffffffffLL) {}
   else if VG_BOOL_CLO(arg, "--follow-forks", follow_forks) {}
   else if VG_BINT_CLO(arg, "--recorder", recorder, 1, 0x7fffffff) {}
   else {
      return False;
   }
   return True;
}

static void print_usage(void)
{
   VG_(printf)("    --ring-dir=DIR    where the recorder waits; `dwell lab trace record` gives it\n"
               "    --recorder=PID    the recorder's process\n"
               "    --follow-forks=no|yes  record processes that the program forks [no]\n"
               "    --skip=N          leave out the first N instructions [0]\n");
}

static void print_debug_usage(void) {}

static void begin(void)
{
   if (ring_dir == NULL) {
      VG_(umsg)("dwelltrace: this tool is used by `dwell lab trace record -- COMMAND`\n");
      VG_(exit)(1);
   }
   recording = skip == 0;
   begins_at = skip;
   connect_to_recorder();
}

static void pre_clo_init(void)
{
   VG_(details_name)("dwelltrace");
   VG_(details_version)("1");
   VG_(details_description)("a recorder of blocks and addresses");
   VG_(details_copyright_author)("Copyright (C) the Dwell authors, GPL-2.0-or-later.");
   VG_(details_bug_reports_to)("the Dwell project");
   VG_(details_avg_translation_sizeB)(300);
   VG_(basic_tool_funcs)(begin, instrument, finish);
   VG_(needs_command_line_options)(process_option, print_usage, print_debug_usage);
   VG_(needs_syscall_wrapper)(before_syscall, after_syscall);
   VG_(track_start_client_code)(thread_runs);
   VG_(atfork)(NULL, NULL, in_child);
   // A block ends where the program may go elsewhere, and holds each instruction once.
   VG_(clo_vex_control).guest_chase = False;
   VG_(clo_vex_control).iropt_unroll_thresh = 0;
}

VG_DETERMINE_INTERFACE_VERSION(pre_clo_init)
