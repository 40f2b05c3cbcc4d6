/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * dwell.h: storage I/O that decides per request whether to busy-wait or to block.
 *
 * Link with `pkg-config --libs dwell`, or statically with `pkg-config --static --libs dwell`.
 *
 * Errors: a call that fails returns -1 and sets errno; dwell_last_error then says in words what
 * is wrong with which file or argument and what to do. Sizes and offsets are bytes, times are
 * nanoseconds. Nothing is printed, and no signal handler is installed but by dwell_map.
 *
 * Threads may use one dwell_file at once; a dwell_queue belongs to the thread that made it.
 * No call is a cancellation point: a thread that is cancelled meanwhile ends at its next one.
 * After fork(2) the child may use files, and close queues; see dwell_queue_wait.
 *
 * Generated from crates/dwell-capi/src; change it there.
 */

#ifndef DWELL_H
#define DWELL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/** To start options from: dwell_options options = DWELL_OPTIONS_INIT; */
#define DWELL_OPTIONS_INIT { .size = sizeof(dwell_options) }

/** To start from before dwell_file_info. */
#define DWELL_INFO_INIT { .size = sizeof(dwell_info) }

/** To start from before dwell_file_stats. */
#define DWELL_STATS_INIT { .size = sizeof(dwell_stats) }

/** To start map options from; a budget has to be added. */
#define DWELL_MAP_OPTIONS_INIT { .size = sizeof(dwell_map_options) }

/** To start from before dwell_region_stats_of. */
#define DWELL_REGION_STATS_INIT { .size = sizeof(dwell_region_stats) }

/**
 * Flag of dwell_options: writes are wanted too.
 */
#define DWELL_WRITE 1

/**
 * Flag of dwell_options: a missing file is made, with the permissions 0666 less the umask.
 */
#define DWELL_CREATE 2

/**
 * Flag of dwell_options: the page cache is bypassed (O_DIRECT).
 */
#define DWELL_DIRECT 4

/**
 * Flag of dwell_options: a write returns only when its data is durable (O_DSYNC).
 */
#define DWELL_SYNC 8

/**
 * Version of this header: major.
 */
#define DWELL_VERSION_MAJOR 0

/**
 * Version of this header: minor.
 */
#define DWELL_VERSION_MINOR 1

/**
 * Version of this header: patch.
 */
#define DWELL_VERSION_PATCH 0

/**
 * dwell_info.device_class: nothing is known; every request is one ordinary system call.
 */
#define DWELL_CLASS_UNPROBED 0

/**
 * dwell_info.device_class: served on the caller's CPU; every request is one ordinary system call.
 */
#define DWELL_CLASS_VERY_FAST 1

/**
 * dwell_info.device_class: about as long as a context switch takes; every request is decided.
 */
#define DWELL_CLASS_FAST 2

/**
 * dwell_info.device_class: blocking always pays; every request is one ordinary system call.
 */
#define DWELL_CLASS_MAINSTREAM 3

/**
 * Places in dwell_stats.by_reason.
 */
#define DWELL_REASONS 32

/**
 * Flag of dwell_map_options: the program writes, and what it writes is its own.
 */
#define DWELL_MAP_PRIVATE 1

/**
 * Flag of dwell_map_options: the program writes, and what it writes goes to the file. The file
 * must have been opened with DWELL_WRITE.
 */
#define DWELL_MAP_SHARED 2

/**
 * Flag of dwell_map_options: a thread of the library handles page faults, so that system calls may
 * be given memory whose pages are not there. Without it the faulting thread does, in a handler of
 * SIGBUS, which is cheaper.
 */
#define DWELL_MAP_THREAD 4

/**
 * Flag of dwell_map_options: nothing is read ahead but what hints name.
 */
#define DWELL_MAP_NO_AHEAD 8

/**
 * Flag of dwell_map_options: where userfaultfd is not to be had, mmap(2) will do; then there is no
 * budget, and nothing is counted.
 */
#define DWELL_MAP_OR_MMAP 16

/**
 * Flag of dwell_map_options: mmap(2) where it is better than a region: the file fits in the
 * budget, is read through the page cache, or its device completes a read at once. See
 * dwell_region_why_mapped. All such regions with a budget of 0 share half of the memory that the
 * process can have.
 */
#define DWELL_MAP_AUTO 32

/**
 * Advice: read in no particular order; reading ahead follows what is seen.
 */
#define DWELL_ADVICE_NORMAL 0

/**
 * Advice: read in order.
 */
#define DWELL_ADVICE_SEQUENTIAL 1

/**
 * Advice: read in no order: nothing is read ahead but what hints name.
 */
#define DWELL_ADVICE_RANDOM 2

/**
 * Advice: wanted soon.
 */
#define DWELL_ADVICE_WILLNEED 3

/**
 * Advice: not wanted any more. What was written to a shared region is written back, what was
 * written to a private one is lost.
 */
#define DWELL_ADVICE_DONTNEED 4

/**
 * An open file, block device or address. Threads may share one.
 */
typedef struct dwell_file dwell_file;

/**
 * A range of a region that stays in memory.
 */
typedef struct dwell_pin dwell_pin;

/**
 * Requests in flight on one file. It belongs to the thread that made it.
 */
typedef struct dwell_queue dwell_queue;

/**
 * A file as memory. Threads may share one.
 */
typedef struct dwell_region dwell_region;

/**
 * How a file is to be opened. Start from DWELL_OPTIONS_INIT, so that fields of later versions
 * are zero, which always means "as usual".
 */
typedef struct dwell_options {
  /**
   * sizeof(dwell_options).
   */
  size_t size;
  /**
   * DWELL_WRITE, DWELL_CREATE, DWELL_DIRECT, DWELL_SYNC, or-ed together.
   */
  uint32_t flags;
  /**
   * Zero.
   */
  uint32_t reserved;
  /**
   * What decides between busy-waiting and blocking: "adaptive", "smartcon", "predictive",
   * "block", "spin" or "hybrid". NULL is what the settings (dwell.toml) say of the device, else
   * "adaptive". Not kept after the call.
   */
  const char *policy;
  /**
   * Directory with the profiles that `dwell probe` made. NULL is where that command keeps
   * them: $DWELL_PROFILES, else dwell/profiles in $XDG_STATE_HOME or ~/.local/state (not for
   * root), then /var/lib/dwell/profiles. Not kept after the call.
   */
  const char *profiles;
} dwell_options;

/**
 * One finished request.
 */
typedef struct dwell_completion {
  /**
   * What was passed with the request.
   */
  void *user;
  /**
   * Bytes transferred (0 for a sync), or a negative error number such as -EIO.
   */
  int64_t result;
} dwell_completion;

/**
 * Facts about an open file. Set size to sizeof(dwell_info) before the call; afterwards it is the
 * bytes that this version of the library fills.
 */
typedef struct dwell_info {
  /**
   * sizeof(dwell_info).
   */
  size_t size;
  /**
   * Length of the file or capacity of the device now, in bytes.
   */
  uint64_t length_bytes;
  /**
   * What direct I/O through a queue demands memory, length and offset to be multiples of, in
   * bytes; 1 for a file opened without DWELL_DIRECT.
   */
  uint32_t alignment;
  /**
   * DWELL_CLASS_UNPROBED, _VERY_FAST, _FAST or _MAINSTREAM.
   */
  uint32_t device_class;
  /**
   * Name of the policy. The texts of this structure are valid until the file is closed.
   */
  const char *policy;
  /**
   * The device beneath the file, in words; "" where it is not known.
   */
  const char *device;
  /**
   * Why the device's class is not known, and what to do; NULL where it is.
   */
  const char *note;
} dwell_info;

/**
 * How long requests of one kind took, from submission to completion, in nanoseconds. Percentiles
 * are within 1/16 of what they were.
 */
typedef struct dwell_latency {
  /**
   * How many were measured; of inline calls and cached reads only one in some is.
   */
  uint64_t measured;
  /**
   * Their mean.
   */
  uint64_t mean_ns;
  /**
   * Half of them took no longer.
   */
  uint64_t p50_ns;
  /**
   * Nine in ten took no longer.
   */
  uint64_t p90_ns;
  /**
   * 99 in a hundred took no longer.
   */
  uint64_t p99_ns;
  /**
   * 999 in a thousand took no longer.
   */
  uint64_t p999_ns;
  /**
   * The longest.
   */
  uint64_t max_ns;
} dwell_latency;

/**
 * What the requests of one file did, over all threads and queues since it was opened. Set size
 * to sizeof(dwell_stats) before the call; afterwards it is the bytes that this version of the
 * library fills.
 */
typedef struct dwell_stats {
  /**
   * sizeof(dwell_stats).
   */
  size_t size;
  /**
   * Requests: the sum of the three routes.
   */
  uint64_t requests;
  /**
   * Requests served by an ordinary system call.
   */
  uint64_t inline_calls;
  /**
   * Requests on a queue whose thread busy-waited.
   */
  uint64_t spun;
  /**
   * Requests on a queue whose thread blocked.
   */
  uint64_t blocked;
  /**
   * Requests on a queue whose thread slept for a stated time and then busy-waited.
   */
  uint64_t hybrid;
  /**
   * Requests of spun whose thread spun until the completion came: each saved what
   * blocking costs.
   */
  uint64_t switches_avoided;
  /**
   * Bytes read.
   */
  uint64_t bytes_read;
  /**
   * Bytes written.
   */
  uint64_t bytes_written;
  /**
   * Syncs that succeeded.
   */
  uint64_t syncs;
  /**
   * Requests that failed.
   */
  uint64_t errors;
  /**
   * Time spent busy-waiting, in nanoseconds.
   */
  uint64_t spun_ns;
  /**
   * Time asleep on a timer, in nanoseconds.
   */
  uint64_t slept_ns;
  /**
   * Time asleep until a completion came, in nanoseconds.
   */
  uint64_t parked_ns;
  /**
   * Requests by the reason of their decision; dwell_reason_name names the places.
   */
  uint64_t by_reason[DWELL_REASONS];
  /**
   * Latency of ordinary system calls.
   */
  struct dwell_latency inline_latency;
  /**
   * Latency of requests on a queue whose thread blocked.
   */
  struct dwell_latency blocked_latency;
  /**
   * Latency of requests on a queue whose thread busy-waited, after a sleep or without.
   */
  struct dwell_latency spun_latency;
  /**
   * Latency of reads that the page cache served.
   */
  struct dwell_latency cached_latency;
} dwell_stats;

/**
 * How a file becomes memory. Start from DWELL_MAP_OPTIONS_INIT, so that fields of later versions
 * are zero, which always means "as usual".
 */
typedef struct dwell_map_options {
  /**
   * sizeof(dwell_map_options).
   */
  size_t size;
  /**
   * DWELL_MAP_PRIVATE, DWELL_MAP_SHARED and so on, or-ed together; 0 for memory that is only
   * read, whose faults the faulting thread handles.
   */
  uint32_t flags;
  /**
   * Most pages read ahead at once; 0 is as usual.
   */
  uint32_t ahead_pages;
  /**
   * Memory for pages, in bytes.
   */
  size_t budget_bytes;
  /**
   * What decides between busy-waiting and blocking while a page is read. NULL is "its", which
   * blocks for threads of higher priority. Not kept after the call.
   */
  const char *policy;
  /**
   * With DWELL_MAP_PRIVATE: a directory for an unnamed file that takes the written pages for
   * which the budget has no room. NULL keeps them in memory. Not kept after the call.
   */
  const char *spill;
  /**
   * Bytes that one fault reads: a power of two from 4096 to 2097152; 0 lets the accesses decide.
   */
  size_t granule_bytes;
} dwell_map_options;

/**
 * What the page faults of a region did so far. Set size to sizeof(dwell_region_stats) before the
 * call; afterwards it is the bytes that this version of the library fills. Pages have 4096 bytes.
 */
typedef struct dwell_region_stats {
  /**
   * sizeof(dwell_region_stats).
   */
  size_t size;
  /**
   * Faults on pages that were not there.
   */
  uint64_t faults;
  /**
   * Of these, those that waited for the file.
   */
  uint64_t waited;
  /**
   * Pages read from the file.
   */
  uint64_t pages_read;
  /**
   * Pages read ahead of their first use.
   */
  uint64_t read_ahead;
  /**
   * Of these, pages that were used.
   */
  uint64_t read_ahead_used;
  /**
   * Of these, pages that left memory unused.
   */
  uint64_t read_ahead_wasted;
  /**
   * Pages moved out.
   */
  uint64_t evicted;
  /**
   * Pages written to the file or to the spill file.
   */
  uint64_t written_back;
  /**
   * Writes that the file refused; their pages stay in memory.
   */
  uint64_t write_errors;
  /**
   * Reads that the file refused.
   */
  uint64_t read_errors;
  /**
   * Pages that went beyond the budget because none could leave memory.
   */
  uint64_t over_budget;
  /**
   * Time spent waiting for pages, in nanoseconds.
   */
  uint64_t waited_ns;
  /**
   * Of that, time spent busy with nothing to do, in nanoseconds.
   */
  uint64_t spun_ns;
  /**
   * Time in which a wait was used for other work, in nanoseconds.
   */
  uint64_t stolen_ns;
  /**
   * Pages in memory now.
   */
  uint64_t resident_pages;
  /**
   * Most pages that were in memory at once.
   */
  uint64_t peak_pages;
} dwell_region_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What the calling thread's last failed call of this library was about: file, offset or argument,
 * what is wrong with it, and what to do. In English, one line.
 *
 * Returns a text that is valid until the next call of this library in this thread; "" when
 * none has failed. Calls that succeed leave it as it is, as they leave `errno`.
 */
const char *dwell_last_error(void);

/**
 * Opens a file or block device, or the address of a scheme ("emu:z-nand", "mem:/dev/shm/data",
 * "chan:/mnt/served/data"). A file under a mount of `dwell serve` is reached through a channel.
 *
 * The policy decides every request, from the device's profile (`dwell probe PATH`) and the
 * machine's load. A thread of this library watches that load until the last such file is closed.
 * Without a profile "adaptive" finds out for itself; under any other policy every request is then
 * one ordinary system call, and dwell_file_info says why.
 *
 * path     a path or an address
 * options  how to open; NULL to read through the page cache with the policy "adaptive"
 * file     receives the file; close it with dwell_close
 *
 * Returns 0, or -1 with errno set: E2BIG for options of a later version; else what open(2) says.
 * EINVAL stands for a NULL path or file, a bad option, an unknown policy or a directory.
 * DWELL_DIRECT where the file system has no direct I/O gives EINVAL too.
 */
int dwell_open(const char *path, const struct dwell_options *options, struct dwell_file **file);

/**
 * Makes a file of a descriptor that the caller has opened. Reading or writing, and past the page
 * cache or not, is as it was opened. dwell_close leaves it open.
 *
 * descriptor  stays open until the file and its queues are closed
 * path        at which it was opened: settings and errors name it
 * options     policy and profiles, with flags of 0; NULL for those of dwell_open
 * file        receives the file; close it with dwell_close
 *
 * Returns 0, or -1 with errno set: EBADF for a descriptor that is not open, EINVAL for flags, else
 * as dwell_open.
 */
int dwell_fdopen(int descriptor,
                 const char *path,
                 const struct dwell_options *options,
                 struct dwell_file **file);

/**
 * As dwell_fdopen, for a file on a device of which one is open. Policy, profile and what the
 * settings say are those of the open file. They are not looked up again, so this takes
 * microseconds where dwell_fdopen takes some hundred.
 *
 * beside      the file that is open; it may be closed before the other
 * descriptor  stays open until the file and its queues are closed
 * path        at which it was opened: errors name it
 * file        receives the file; close it with dwell_close
 *
 * Returns 0, or -1 with errno set: EXDEV for a file on another device, else as dwell_fdopen.
 */
int dwell_fdopen_beside(const struct dwell_file *beside,
                        int descriptor,
                        const char *path,
                        struct dwell_file **file);

/**
 * Closes a file. Its queues stay usable and keep it open underneath until they are closed too.
 * Nothing is made durable by it: see dwell_sync.
 *
 * file  no other call on it may be in progress, nor follow
 *
 * Returns 0, or -1 with errno EINVAL for NULL.
 */
int dwell_close(struct dwell_file *file);

/**
 * Reads at an offset, waiting as the policy decides. Any memory will do: where direct I/O wants
 * alignment, an aligned buffer goes between.
 *
 * buffer  receives the data
 * bytes   at most so many; more than 2 GiB less a page are not read at once
 * offset  from where in the file, in bytes
 *
 * Returns the number of bytes read, fewer than asked for only at the end of the file and 0 behind
 * it, or -1 with errno set as by pread(2). A signal does not end the call.
 */
ssize_t dwell_read_at(struct dwell_file *file, void *buffer, size_t bytes, uint64_t offset);

/**
 * Writes at an offset, waiting as the policy decides.
 *
 * buffer  the data; any memory will do
 * bytes   so many; with DWELL_DIRECT a multiple of dwell_info.alignment
 * offset  to where in the file, in bytes; with DWELL_DIRECT a multiple as well
 *
 * Returns the number of bytes written, or -1 with errno set as by pwrite(2): EBADF for a file
 * opened without DWELL_WRITE, EINVAL for what direct I/O cannot write.
 */
ssize_t dwell_write_at(struct dwell_file *file, const void *buffer, size_t bytes, uint64_t offset);

/**
 * Reads at an offset into several pieces of memory, in order, as one request.
 *
 * pieces  receive the data
 * count   how many, at most 1024; together at most 2 GiB less a page
 * offset  from where in the file, in bytes
 *
 * Returns as dwell_read_at, and EINVAL for too many pieces or bytes.
 */
ssize_t dwell_readv_at(struct dwell_file *file,
                       const struct iovec *pieces,
                       int count,
                       uint64_t offset);

/**
 * Writes several pieces of memory at an offset, in order, as one request.
 *
 * pieces  the data
 * count   how many, at most 1024; together at most 2 GiB less a page
 * offset  to where in the file, in bytes
 *
 * Returns as dwell_write_at, and EINVAL for too many pieces or bytes.
 */
ssize_t dwell_writev_at(struct dwell_file *file,
                        const struct iovec *pieces,
                        int count,
                        uint64_t offset);

/**
 * Makes all completed writes durable, data and metadata, as fsync(2).
 *
 * Returns 0, or -1 with errno set.
 */
int dwell_sync(struct dwell_file *file);

/**
 * Makes all completed writes durable, less the metadata that no read needs, as fdatasync(2).
 *
 * Returns 0, or -1 with errno set.
 */
int dwell_sync_data(struct dwell_file *file);

/**
 * Makes a queue for several requests in flight on a file, for the calling thread alone. A thread
 * may have several.
 *
 * file   stays open underneath until the queue is closed
 * depth  requests in flight at most, 1 to 4096
 * queue  receives the queue; close it with dwell_queue_close
 *
 * Returns 0, or -1 with errno set: EINVAL for a NULL argument or a depth out of range, ENOMEM or
 * EMFILE where the system has no room for it.
 */
int dwell_queue_create(struct dwell_file *file, uint32_t depth, struct dwell_queue **queue);

/**
 * Puts a read into the queue. It is sent by dwell_queue_submit or by the next wait.
 *
 * The memory belongs to the request until its completion has been handed out, or the queue was
 * closed: it must stay where it is, and must not be read or written meanwhile.
 *
 * buffer  receives the data; with DWELL_DIRECT a multiple of dwell_info.alignment
 * bytes   at most so many, up to 2 GiB less a page; with DWELL_DIRECT a multiple as well
 * offset  from where in the file, in bytes; with DWELL_DIRECT a multiple as well
 * user    comes back with the completion
 *
 * Returns 0, or -1 with errno set: EAGAIN when as many requests are in flight as the queue holds,
 * EINVAL for a bad argument or what is misaligned, EPERM in another thread than the queue's.
 */
int dwell_queue_read(struct dwell_queue *queue,
                     void *buffer,
                     size_t bytes,
                     uint64_t offset,
                     void *user);

/**
 * Puts a write into the queue. It is sent by dwell_queue_submit or by the next wait. Requests in
 * flight are carried out in any order.
 *
 * The memory belongs to the request until its completion has been handed out, or the queue was
 * closed: it must stay where it is, and must not be written meanwhile.
 *
 * buffer  the data; with DWELL_DIRECT a multiple of dwell_info.alignment
 * bytes   so many, up to 2 GiB less a page; with DWELL_DIRECT a multiple as well
 * offset  to where in the file, in bytes; with DWELL_DIRECT a multiple as well
 * user    comes back with the completion
 *
 * Returns as dwell_queue_read. A file opened without DWELL_WRITE gives a completion with -EBADF.
 */
int dwell_queue_write(struct dwell_queue *queue,
                      const void *buffer,
                      size_t bytes,
                      uint64_t offset,
                      void *user);

/**
 * Puts a sync into the queue: it makes those writes durable that completed before.
 *
 * data_only  not 0: less the metadata that no read needs, as fdatasync(2)
 * user       comes back with the completion
 *
 * Returns as dwell_queue_read.
 */
int dwell_queue_sync(struct dwell_queue *queue, int data_only, void *user);

/**
 * Sends what was put into the queue and not sent yet, without waiting.
 *
 * Returns 0, or -1 with errno set: EINVAL for NULL, EPERM in another thread than the queue's.
 */
int dwell_queue_submit(struct dwell_queue *queue);

/**
 * Sends what is unsent and takes completions, waiting for them as the policy decided.
 *
 * min         so many are waited for, or all that are in flight if those are fewer; 0 only looks
 * out         receives the completions
 * max         room in out; at least 1
 * timeout_ns  longest wait in nanoseconds; 0 only looks, a negative one waits without end
 *
 * Returns the number of completions taken, fewer than min only when the time has passed, or -1
 * with errno set: EINVAL for a bad argument, EPERM in another thread than the queue's. A signal
 * does not end the wait. In a forked child every request of the parent's comes back with
 * -ECANCELED, and the parent keeps it.
 */
int dwell_queue_wait(struct dwell_queue *queue,
                     uint32_t min,
                     struct dwell_completion *out,
                     uint32_t max,
                     int64_t timeout_ns);

/**
 * Waits until all requests of the queue are completed, however long that takes, and closes it.
 * Afterwards all memory is the caller's again. Another thread than the queue's may close it only
 * once nothing is in flight and no completion is left to be taken.
 *
 * Returns 0, or -1 with errno set: EINVAL for NULL; EPERM in another thread while something is in
 * flight, with the queue still open; else what the first request failed of whose completion was
 * not taken, with the queue closed.
 */
int dwell_queue_close(struct dwell_queue *queue);

/**
 * Tells what is known of an open file.
 *
 * info  its size is set by the caller; receives the facts
 *
 * Returns 0, or -1 with errno set: EINVAL for NULL or a wrong size, else what fstat(2) says.
 */
int dwell_file_info(const struct dwell_file *file, struct dwell_info *info);

/**
 * Tells what the requests of a file did so far.
 *
 * stats  its size is set by the caller; receives the numbers
 *
 * Returns 0, or -1 with errno EINVAL for NULL or a wrong size.
 */
int dwell_file_stats(const struct dwell_file *file, struct dwell_stats *stats);

/**
 * Why requests counted in dwell_stats.by_reason[reason] were decided as they were: "pays",
 * "cpu-busy", "cached" and so on.
 *
 * Returns a text that is valid for ever, or NULL where this version has no such reason.
 */
const char *dwell_reason_name(uint32_t reason);

/**
 * The policies that dwell_options can name: the one of that number, from 0.
 *
 * Returns a text that is valid for ever, or NULL from the number on that there is none of.
 */
const char *dwell_policy_name(uint32_t number);

/**
 * Version of the library that runs, such as "0.1.0"; a text that is valid for ever.
 */
const char *dwell_version(void);

/**
 * Makes an open file memory, of which at most budget_bytes are in DRAM at once. Pages come in when
 * they are touched, and leave when others need the room.
 *
 * Where the faulting thread handles faults (no DWELL_MAP_THREAD), a handler of SIGBUS is
 * installed; signals that are not the library's go to the handler that was there before. While a
 * fault waits for a device, signals with a handler wait too; one without ends the process at once.
 * A system call that is given memory whose pages are not there then fails with EFAULT: see
 * dwell_region_pin. A thread faults more cheaply once it has called dwell_region_register. A
 * forked child must not touch the memory.
 *
 * file     stays usable, and may be closed
 * options  budget and manner; not NULL, because there is no usual budget
 * region   receives the region; end it with dwell_unmap
 *
 * Returns 0, or -1 with errno set: EINVAL, or what the system says. EINVAL stands for NULL, a bad
 * option, an empty file, a budget too small, and for DWELL_MAP_SHARED on a file opened without
 * DWELL_WRITE. It also stands for a userfaultfd that is missing or that this process may not use
 * (dwell_last_error says which).
 */
int dwell_map(struct dwell_file *file,
              const struct dwell_map_options *options,
              struct dwell_region **region);

/**
 * Ends a region: writes back what was written to a shared one, and makes it durable. Its memory is
 * gone afterwards, also when that failed.
 *
 * region  no other call on it may be in progress, nor follow; nobody touches its memory any more
 *
 * Returns 0, or -1 with errno set: EINVAL for NULL, else what the file refused.
 */
int dwell_unmap(struct dwell_region *region);

/**
 * Where a region's memory begins: at a page. NULL for NULL.
 */
void *dwell_region_start(const struct dwell_region *region);

/**
 * Length of a region in bytes, which is that of its file; the rest of the last page is zeros. 0
 * for NULL.
 */
size_t dwell_region_bytes(const struct dwell_region *region);

/**
 * Why mmap(2) maps the file of a region, in one line that stays valid until dwell_unmap; NULL of a
 * region with a budget, and for NULL.
 */
const char *dwell_region_why_mapped(const struct dwell_region *region);

/**
 * Gives the calling thread a queue of its own for its faults on a region, until it ends or the
 * region does: it then reads many pages at once. A thread without one faults correctly too. Once
 * is enough.
 *
 * Returns 0, or -1 with errno set.
 */
int dwell_region_register(struct dwell_region *region);

/**
 * Takes the queue back that dwell_region_register gave the calling thread. A thread whose region
 * another thread ends does so before.
 *
 * Returns 0, or -1 with errno EINVAL for NULL.
 */
int dwell_region_unregister(struct dwell_region *region);

/**
 * Writes back what was written to a range of a shared region, and makes it durable.
 *
 * offset  of the range in the region, in bytes
 * bytes   of the range; the whole region is dwell_region_bytes(region) from 0
 *
 * Returns 0, or -1 with errno set: EINVAL for a range past the end, else what the file refused,
 * now or since the last call; such pages stay in memory and are tried again.
 */
int dwell_region_sync(struct dwell_region *region, size_t offset, size_t bytes);

/**
 * Brings a range into memory and keeps it there until dwell_region_unpin, so that system calls can
 * be given it. With a budget as large as the file, all of it can be pinned.
 *
 * pin  receives the pin
 *
 * Returns 0, or -1 with errno set: EINVAL for NULL, a range past the end, or more than the budget
 * can hold (dwell_last_error names the bytes that it would need); else what the file refused.
 */
int dwell_region_pin(struct dwell_region *region,
                     size_t offset,
                     size_t bytes,
                     struct dwell_pin **pin);

/**
 * Lets a pinned range leave memory again.
 *
 * pin  not to be used afterwards
 *
 * Returns 0, or -1 with errno EINVAL for NULL.
 */
int dwell_region_unpin(struct dwell_pin *pin);

/**
 * Says how a range will be used.
 *
 * advice  DWELL_ADVICE_NORMAL, _SEQUENTIAL, _RANDOM, _WILLNEED or _DONTNEED
 *
 * Returns 0, or -1 with errno set: EINVAL for a range past the end or another advice.
 */
int dwell_region_advise(struct dwell_region *region, size_t offset, size_t bytes, uint32_t advice);

/**
 * Tells that the byte at an offset will be touched soon, so that its page is read during the next
 * wait. Costs some nanoseconds, and never waits.
 *
 * Returns 1, or 0 where so many hints wait already that this one is lost, and -1 with errno EINVAL
 * for NULL.
 */
int dwell_region_hint(struct dwell_region *region, size_t offset);

/**
 * Tells what the faults of a region did so far.
 *
 * stats  its size is set by the caller; receives the numbers
 *
 * Returns 0, or -1 with errno EINVAL for NULL or a wrong size.
 */
int dwell_region_stats_of(const struct dwell_region *region, struct dwell_region_stats *stats);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DWELL_H */
