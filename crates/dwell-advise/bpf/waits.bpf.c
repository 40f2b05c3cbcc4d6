// SPDX-License-Identifier: MIT OR Apache-2.0
// Where the storage waits of followed tasks go. Every task keeps the last marks of its time line; a wake-up copies
// the marks of the kernel thread or completion that caused it. All sums are made here: user space reads maps, no events.
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "kernel.h"
#include "maps.h"

static __always_inline void lose(u32 which)
{
	u64 *count = bpf_map_lookup_elem(&losses, &which);
	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline int is_target(struct task_struct *p)
{
	u32 tgid = p->tgid, pid = p->pid;
	if (tgid == own_tgid || p->flags & PF_KTHREAD)
		return 0;
	if (everything || bpf_map_lookup_elem(&targets, &tgid))
		return 1;
	return p->flags & PF_EXITING && bpf_map_lookup_elem(&tasks, &pid);
}

// A task that carries out other tasks' requests.
static __always_inline int is_helper(struct task_struct *p)
{
	return p->pid && p->flags & (PF_KTHREAD | PF_IO_WORKER);
}

static __always_inline void mark(struct task *t, u64 at, u32 part)
{
	t->marks[t->marks_made++ & (MARKS - 1)] = at << 3 | part;
}

static __always_inline struct task *task_of(u32 pid, int make)
{
	struct task *t = bpf_map_lookup_elem(&tasks, &pid);
	u32 zero = 0;
	if (t || !make)
		return t;
	struct task *blank = bpf_map_lookup_elem(&blank_task, &zero);
	if (!blank)
		return 0;
	if (bpf_map_update_elem(&tasks, &pid, blank, BPF_NOEXIST) < 0)
		lose(LOST_TASK);
	return bpf_map_lookup_elem(&tasks, &pid);
}

struct summing {
	struct task *task;
	struct wait_sum *sum;
	u64 from;
	u64 now;
	u32 first;
};

static long add_part(u32 i, struct summing *s)
{
	u64 m = s->task->marks[(s->first + i) & (MARKS - 1)];
	u64 at = m >> 3 < s->now ? m >> 3 : s->now;
	if (i >= s->task->marks_made)
		return 1;
	if (at > s->from) {
		// The first steps of a long wait are overwritten.
		u32 part = s->first && !i ? OTHER : m & 7;
		__sync_fetch_and_add(&s->sum->parts[part], at - s->from);
		s->from = at;
	}
	return 0;
}

static __always_inline void account(struct task *t, struct task_struct *p, u64 now)
{
	struct wait_key key = {
		.tgid = p->tgid,
		.dev = t->storage ? t->what.dev : 0,
		.call = t->call,
		.op = t->storage ? t->what.op : 0,
		.bucket = t->storage ? size_bucket(t->what.bytes) : 0,
		.iowait = t->iowait,
		.through_thread = t->storage && t->hops,
	};
	struct wait_sum *sum = bpf_map_lookup_elem(&waits, &key);
	u32 zero = 0;
	if (!sum) {
		struct wait_sum *blank = bpf_map_lookup_elem(&blank_wait, &zero);
		if (!blank)
			return;
		bpf_map_update_elem(&waits, &key, blank, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&waits, &key);
		if (!sum) {
			lose(LOST_WAIT);
			return;
		}
	}
	struct summing summing = { .task = t, .sum = sum, .from = t->slept, .now = now };
	if (t->marks_made > MARKS)
		summing.first = t->marks_made;
	bpf_loop(MARKS, add_part, &summing, 0);
	u64 nanos = now - t->slept;
	u32 bucket = log2_of(nanos | 1);
	bucket = bucket < 7 ? 0 : bucket - 7;
	if (bucket > BUCKETS - 1)
		bucket = BUCKETS - 1;
	__sync_fetch_and_add(&sum->count, 1);
	__sync_fetch_and_add(&sum->nanos, nanos);
	__sync_fetch_and_add(&sum->latency[bucket], 1);
	if (!t->storage)
		return;
	__sync_fetch_and_add(&sum->hops, t->hops);
	__sync_fetch_and_add(&sum->bytes, t->what.bytes);

	u32 pid = p->pid;
	struct thread_sum *thread = bpf_map_lookup_elem(&threads, &pid);
	if (!thread) {
		struct thread_sum new = { .first = t->slept, .last = now, .tgid = p->tgid };
		bpf_core_read(&new.comm, sizeof(new.comm), &p->comm);
		if (bpf_map_update_elem(&threads, &pid, &new, BPF_NOEXIST) < 0)
			lose(LOST_THREAD);
		thread = bpf_map_lookup_elem(&threads, &pid);
		if (!thread)
			return;
	}
	thread->last = now;
	thread->waits++;
	thread->nanos += nanos;
}

// What a thread waited stays as a part of its process.
static __always_inline void fold(u32 pid)
{
	struct thread_sum *thread = bpf_map_lookup_elem(&threads, &pid);
	if (!thread)
		return;
	u64 length = thread->last - thread->first;
	if (length < thread->nanos)
		length = thread->nanos;
	u32 all = thread->tgid | ENDED;
	struct thread_sum *ended = bpf_map_lookup_elem(&threads, &all);
	struct thread_sum new = *thread;
	bpf_map_delete_elem(&threads, &pid);
	if (ended) {
		__sync_fetch_and_add(&ended->last, length);
		__sync_fetch_and_add(&ended->waits, new.waits);
		return;
	}
	new.first = new.nanos = 0;
	new.last = length;
	if (bpf_map_update_elem(&threads, &all, &new, BPF_NOEXIST) == 0)
		return;
	// Another thread of the process ended at the same time.
	ended = bpf_map_lookup_elem(&threads, &all);
	if (!ended) {
		lose(LOST_THREAD);
		return;
	}
	__sync_fetch_and_add(&ended->last, length);
	__sync_fetch_and_add(&ended->waits, new.waits);
}

// The task ran for the last time. Threads of its process that exit too may still close files, and wait.
static __always_inline void ended(struct task_struct *p)
{
	u32 pid = p->pid, tgid = p->tgid;
	bpf_map_delete_elem(&tasks, &pid);
	fold(pid);
	if (!p->signal->live.counter)
		bpf_map_delete_elem(&targets, &tgid);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state)
{
	u64 now = bpf_ktime_get_ns();
	u32 zero = 0;
	struct completed *done = bpf_map_lookup_elem(&completions, &zero);
	if (done)
		done->at = 0;

	if (!preempt && prev_state & TASK_DEAD) {
		ended(prev);
	} else if (!preempt && prev_state && prev->pid) {
		int target = is_target(prev), helper = is_helper(prev);
		struct task *t = target || helper ? task_of(prev->pid, 1) : 0;
		if (t) {
			t->woken = 0;
			if (helper) {
				mark(t, now, KERNEL);
			} else {
				struct pt_regs *regs = (void *)bpf_task_pt_regs(prev);
				long call = regs ? (long)regs->orig_ax : -1;
				t->call = call < -1 || call > 32767 ? -1 : call;
				t->iowait = BPF_CORE_READ_BITFIELD(prev, in_iowait);
				t->marks_made = 0;
				t->storage = 0;
				t->hops = 0;
			}
			// From here on another CPU may wake it, and what it noted then is not to be wiped.
			asm volatile("" ::: "memory");
			t->slept = now;
		}
	}
	if (next->pid) {
		struct task *t = task_of(next->pid, 0);
		if (t && t->slept) {
			// The CPU was halted; or a kernel thread, or a program, had it.
			mark(t, now, !prev->pid ? WAKE : prev->flags & PF_KTHREAD ? KERNEL : BUSY);
			if (t->early && !t->woken) {
				t->what = t->early_what;
				t->storage = 1;
			}
			t->early = 0;
			if (!is_helper(next))
				account(t, next, now);
			t->slept = 0;
		}
	}
	return 0;
}

struct copying {
	struct task *from;
	struct task *to;
};

static long copy_mark(u32 i, struct copying *c)
{
	u64 m = c->from->marks[(c->from->marks_made + i) & (MARKS - 1)];
	if (m >> 3 > c->to->slept) {
		c->to->storage |= (m & 7) == DEVICE;
		mark(c->to, m >> 3, m & 7);
	}
	return 0;
}

static __always_inline u8 innermost(u8 interrupts)
{
	return interrupts & HARD ? HARD : interrupts;
}

static __always_inline int explains(struct completed *done, u64 now, int helper)
{
	if (done->within)
		return done->within == innermost(done->interrupts);
	return done->at + (helper ? HELPER_NS : PROGRAM_NS) > now;
}

static __always_inline int interrupt_begins(u8 which)
{
	u32 zero = 0;
	struct completed *done = bpf_map_lookup_elem(&completions, &zero);
	if (done)
		done->interrupts |= which;
	return 0;
}

static __always_inline int interrupt_ends(u8 which)
{
	u32 zero = 0;
	struct completed *done = bpf_map_lookup_elem(&completions, &zero);
	if (!done)
		return 0;
	done->interrupts &= ~which;
	if (done->within == which)
		done->at = 0;
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int on_irq_begins(void *ctx)
{
	return interrupt_begins(HARD);
}

SEC("tp_btf/irq_handler_exit")
int on_irq_ends(void *ctx)
{
	return interrupt_ends(HARD);
}

SEC("tp_btf/softirq_entry")
int on_softirq_begins(void *ctx)
{
	return interrupt_begins(SOFT);
}

SEC("tp_btf/softirq_exit")
int on_softirq_ends(void *ctx)
{
	return interrupt_ends(SOFT);
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *p)
{
	struct task *t = task_of(p->pid, 0);
	if (!t || (t->slept && t->woken))
		return 0;
	u64 now = bpf_ktime_get_ns();
	struct task_struct *current = bpf_get_current_task_btf();
	int helper = is_helper(current);
	u32 zero = 0, part = OTHER;
	struct completed *done = bpf_map_lookup_elem(&completions, &zero);

	// Another CPU may have completed the request just before the task, which waits for one, slept.
	if (done && (!done->at || (done->at <= t->slept && !t->iowait) || !explains(done, now, helper)))
		done = 0;
	// Its CPU still runs it: this ends the next sleep if nothing else does.
	if (!t->slept && !is_helper(p)) {
		t->early = !!done;
		if (done)
			t->early_what = done->what;
		return 0;
	}
	if (done) {
		if (done->inserted > t->slept)
			mark(t, done->inserted, KERNEL);
		mark(t, done->issued, QUEUE);
		mark(t, done->at, DEVICE);
		t->what = done->what;
		t->storage = 1;
		part = KERNEL;
	}
	if (!t->slept)
		return 0;
	t->woken = 1;
	if (!done && helper) {
		struct task *waker = task_of(current->pid, 0);
		if (waker && waker != t && waker->storage) {
			struct copying copying = { .from = waker, .to = t };
			bpf_loop(MARKS, copy_mark, &copying, 0);
			if (t->storage) {
				t->what = waker->what;
				t->hops = waker->hops + 1;
				part = KERNEL;
			}
		}
	}
	mark(t, now, part);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	u32 tgid = parent->tgid, new = child->tgid;
	u8 one = 1;
	if (tgid != new && bpf_map_lookup_elem(&targets, &tgid) && bpf_map_update_elem(&targets, &new, &one, BPF_ANY) < 0)
		lose(LOST_TASK);
	return 0;
}

static __always_inline void describe(struct what *what, struct gendisk *disk, u32 flags, u32 bytes)
{
	what->dev = disk ? (u32)disk->major << 20 | (u32)disk->first_minor : 0;
	what->bytes = bytes;
	what->op = flags & REQ_OP_MASK;
	if (what->op > 15)
		what->op = 15;
	if (what->op != REQ_OP_WRITE)
		return;
	struct task_struct *current = bpf_get_current_task_btf();
	u32 log = 1u << bpf_core_enum_value(enum req_flag_bits, __REQ_FUA) |
		  1u << bpf_core_enum_value(enum req_flag_bits, __REQ_PREFLUSH);
	if (flags & log || (current->flags & PF_KTHREAD && current->comm[0] == 'j' && current->comm[1] == 'b' && current->comm[2] == 'd'))
		what->op = OP_JOURNAL;
}

static __always_inline void begin(u64 id, struct what *what, int issue)
{
	u64 now = bpf_ktime_get_ns();
	struct in_flight *known = bpf_map_lookup_elem(&requests, &id);
	if (known && !known->issued && issue) {
		known->issued = now;
		known->what.bytes = what->bytes;
	} else {
		struct in_flight new = { .inserted = now, .issued = issue ? now : 0, .what = *what };
		if (bpf_map_update_elem(&requests, &id, &new, BPF_ANY) < 0) {
			lose(LOST_REQUEST);
			return;
		}
		if (known)
			return;
		u32 dev = what->dev;
		u64 one = 1, *depth = bpf_map_lookup_elem(&depths, &dev);
		if (depth)
			__sync_fetch_and_add(depth, 1);
		else
			bpf_map_update_elem(&depths, &dev, &one, BPF_NOEXIST);
	}
}

// How many were in flight with a request that no longer is.
static __always_inline u64 leaves(u32 dev)
{
	u64 *depth = bpf_map_lookup_elem(&depths, &dev);
	return depth ? __sync_fetch_and_add(depth, -1) : 1;
}

static __always_inline void end(u64 id)
{
	struct in_flight *known = bpf_map_lookup_elem(&requests, &id);
	u32 zero = 0;
	if (!known)
		return;
	u64 now = bpf_ktime_get_ns();
	u64 issued = known->issued ? known->issued : known->inserted;
	struct completed *done = bpf_map_lookup_elem(&completions, &zero);
	if (done) {
		done->at = now;
		done->inserted = known->inserted;
		done->issued = issued;
		done->what = known->what;
		done->within = innermost(done->interrupts);
	}
	u32 dev = known->what.dev;
	u64 in_flight = leaves(dev);
	struct device_key key = { .dev = dev, .op = known->what.op, .bucket = size_bucket(known->what.bytes) };
	struct device_sum *sum = bpf_map_lookup_elem(&devices, &key);
	if (!sum) {
		struct device_sum none = {};
		bpf_map_update_elem(&devices, &key, &none, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&devices, &key);
	}
	if (sum) {
		__sync_fetch_and_add(&sum->count, 1);
		__sync_fetch_and_add(&sum->bytes, known->what.bytes);
		__sync_fetch_and_add(&sum->queue_nanos, issued - known->inserted);
		__sync_fetch_and_add(&sum->device_nanos, now - issued);
		__sync_fetch_and_add(&sum->in_flight, in_flight);
	}
	bpf_map_delete_elem(&requests, &id);
}

static __always_inline void request(struct request *rq, int issue)
{
	struct what what = {};
	describe(&what, rq->q->disk, rq->cmd_flags, rq->__data_len);
	begin((u64)rq, &what, issue);
}

SEC("tp_btf/block_rq_insert")
int BPF_PROG(on_insert, struct request *rq)
{
	request(rq, 0);
	return 0;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(on_issue, struct request *rq)
{
	request(rq, 1);
	return 0;
}

// What it asked for is a part of another request.
SEC("tp_btf/block_rq_merge")
int BPF_PROG(on_merge, struct request *rq)
{
	u64 id = (u64)rq;
	struct in_flight *known = bpf_map_lookup_elem(&requests, &id);
	if (known)
		leaves(known->what.dev);
	bpf_map_delete_elem(&requests, &id);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(on_complete, struct request *rq)
{
	end((u64)rq);
	return 0;
}

// A driver that takes bios (zram, brd, most of dm) makes no requests of them.
SEC("tp_btf/block_bio_queue")
int BPF_PROG(on_bio, struct bio *bio)
{
	struct gendisk *disk = bio->bi_bdev->bd_disk;
	if (!disk->fops->submit_bio)
		return 0;
	struct what what = {};
	describe(&what, disk, bio->bi_opf, bio->bi_iter.bi_size);
	begin((u64)bio, &what, 1);
	return 0;
}

SEC("tp_btf/block_bio_complete")
int BPF_PROG(on_bio_complete, struct request_queue *q, struct bio *bio)
{
	end((u64)bio);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
