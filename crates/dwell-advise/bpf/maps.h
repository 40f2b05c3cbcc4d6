// SPDX-License-Identifier: MIT OR Apache-2.0
// The maps and their records. The same layout as in src/raw.rs.
#pragma once

// What the time before a mark was. The same order as `Part` in src/parts.rs.
enum part { OTHER, QUEUE, DEVICE, KERNEL, WAKE, BUSY };

// A request's operation. 0 to 15 are the kernel's REQ_OP_*; a journal's write is one that the log of a file system makes.
#define OP_JOURNAL 16

// A completion inside an interrupt explains wake-ups until that interrupt ends. One outside explains them for so long,
// unless another task runs on its CPU. The same numbers as in src/perf/story.rs.
#define HELPER_NS 1000000
#define PROGRAM_NS 20000
#define HARD 1
#define SOFT 2

#define MARKS 32
#define BUCKETS 28

static __always_inline u32 log2_of(u64 n)
{
	u32 bits = 0;
	if (n >> 32) { n >>= 32; bits += 32; }
	if (n >> 16) { n >>= 16; bits += 16; }
	if (n >> 8) { n >>= 8; bits += 8; }
	if (n >> 4) { n >>= 4; bits += 4; }
	if (n >> 2) { n >>= 2; bits += 2; }
	return bits + (n >> 1 ? 1 : 0);
}

// Sizes by powers of two: 12 is 4 KiB and below 8 KiB.
static __always_inline u8 size_bucket(u32 bytes)
{
	return bytes ? log2_of(bytes) : 0;
}

const volatile u8 everything = 0;
const volatile u32 own_tgid = 0;

struct what {
	u32 dev;
	u32 bytes;
	u8 op;
};

struct task {
	u64 slept;
	u32 marks_made;
	s16 call;
	u8 iowait;
	u8 woken;
	u8 storage;
	u8 hops;
	// Of a wake-up that came while the task still ran.
	u8 early;
	struct what what;
	struct what early_what;
	u64 marks[MARKS];
};

struct in_flight {
	u64 inserted;
	u64 issued;
	struct what what;
};

struct completed {
	u64 at;
	u64 inserted;
	u64 issued;
	struct what what;
	// The interrupt that it was made in, and those that run now.
	u8 within;
	u8 interrupts;
};

struct wait_key {
	u32 tgid;
	u32 dev;
	s16 call;
	u8 op;
	u8 bucket;
	u8 iowait;
	u8 through_thread;
	u16 pad;
};

struct wait_sum {
	u64 count;
	u64 nanos;
	u64 parts[8];
	u64 hops;
	u64 bytes;
	u64 latency[BUCKETS];
};

struct device_key {
	u32 dev;
	u8 op;
	u8 bucket;
	u16 pad;
};

struct device_sum {
	u64 count;
	u64 bytes;
	u64 queue_nanos;
	u64 device_nanos;
	u64 in_flight;
};

// With this, a key of threads is a process: all of its threads that have ended, with their time in `last`.
#define ENDED 0x80000000

struct thread_sum {
	u64 first;
	u64 last;
	u64 waits;
	u64 nanos;
	u32 tgid;
	u32 pad;
	char comm[16];
};

// What could not be recorded, by the map that was full.
enum lost { LOST_TASK, LOST_REQUEST, LOST_WAIT, LOST_THREAD, LOSSES };

#define TABLE(name, kind, k, v, n)            \
	struct {                              \
		__uint(type, kind);           \
		__type(key, k);               \
		__type(value, v);             \
		__uint(max_entries, n);       \
	} name SEC(".maps")

TABLE(targets, BPF_MAP_TYPE_HASH, u32, u8, 16384);
TABLE(tasks, BPF_MAP_TYPE_HASH, u32, struct task, 8192);
TABLE(requests, BPF_MAP_TYPE_HASH, u64, struct in_flight, 8192);
TABLE(completions, BPF_MAP_TYPE_PERCPU_ARRAY, u32, struct completed, 1);
TABLE(waits, BPF_MAP_TYPE_HASH, struct wait_key, struct wait_sum, 4096);
TABLE(devices, BPF_MAP_TYPE_HASH, struct device_key, struct device_sum, 1024);
TABLE(depths, BPF_MAP_TYPE_HASH, u32, u64, 256);
TABLE(threads, BPF_MAP_TYPE_HASH, u32, struct thread_sum, 8192);
TABLE(losses, BPF_MAP_TYPE_ARRAY, u32, u64, LOSSES);
// Too large for the stack.
TABLE(blank_task, BPF_MAP_TYPE_ARRAY, u32, struct task, 1);
TABLE(blank_wait, BPF_MAP_TYPE_ARRAY, u32, struct wait_sum, 1);
