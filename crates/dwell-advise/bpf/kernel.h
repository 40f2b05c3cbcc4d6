// SPDX-License-Identifier: MIT OR Apache-2.0
// What the programs read of the running kernel. Its own BTF says where these fields are.
#pragma once

typedef __u64 u64;
typedef __u32 u32;
typedef __s32 s32;
typedef __u16 u16;
typedef __s16 s16;
typedef __u8 u8;
typedef _Bool bool;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct pt_regs {
	unsigned long orig_ax;
};
typedef struct {
	int counter;
} atomic_t;
struct signal_struct {
	atomic_t live;
};
struct task_struct {
	int pid;
	int tgid;
	unsigned int flags;
	struct signal_struct *signal;
	unsigned in_iowait : 1;
	char comm[16];
};
struct block_device_operations {
	void *submit_bio;
};
struct gendisk {
	int major;
	int first_minor;
	const struct block_device_operations *fops;
};
struct request_queue {
	struct gendisk *disk;
};
struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
};
struct block_device {
	struct gendisk *bd_disk;
};
struct bvec_iter {
	unsigned int bi_size;
};
struct bio {
	struct block_device *bi_bdev;
	unsigned int bi_opf;
	struct bvec_iter bi_iter;
};
enum req_flag_bits { __REQ_FUA = 1, __REQ_PREFLUSH = 2 };
#pragma clang attribute pop

#define TASK_DEAD 0x00000080
#define PF_EXITING 0x00000004
#define PF_IO_WORKER 0x00000010
#define PF_KTHREAD 0x00200000
#define REQ_OP_MASK 0xff
#define REQ_OP_WRITE 1
