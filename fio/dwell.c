/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An engine for fio whose requests Dwell decides:
 *
 *     fio --ioengine=external:target/fio/dwell.so --policy=smartcon …
 *
 * iodepth=1 makes blocking calls; deeper jobs have one queue per open file. fio/build makes it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

#include <dwell.h>

struct dwell_job_options {
	/* An offset of 0 would mean to fio that an option has no place. */
	void *pad;
	char *policy;
	unsigned int show_stats;
};

/* One open file. */
struct dwell_slot {
	dwell_file *file;
	dwell_queue *queue;
	unsigned int in_flight;
	struct dwell_slot *next;
};

/* One job. */
struct dwell_job {
	struct dwell_slot *slots;
	unsigned int depth;
	/* Put into queues and not sent yet. */
	unsigned int unsent;
	bool note_shown;
	dwell_completion *taken;
	struct io_u **events;
};

static struct fio_option options[] = {
	{
		.name	  = "policy",
		.lname	  = "Wait policy",
		.type	  = FIO_OPT_STR_STORE,
		.off1	  = offsetof(struct dwell_job_options, policy),
		.help	  = "smartcon (default), predictive, block, spin or hybrid",
		.category = FIO_OPT_C_ENGINE,
		.group	  = FIO_OPT_G_INVALID,
	},
	{
		.name	  = "dwell_stats",
		.lname	  = "What was decided",
		.type	  = FIO_OPT_BOOL,
		.off1	  = offsetof(struct dwell_job_options, show_stats),
		.def	  = "0",
		.help	  = "Tell on stderr what was decided for each file's requests",
		.category = FIO_OPT_C_ENGINE,
		.group	  = FIO_OPT_G_INVALID,
	},
	{ .name = NULL },
};

static bool policy_known(const char *name)
{
	const char *known;
	unsigned int i;

	if (!name)
		return true;
	for (i = 0; (known = dwell_policy_name(i)) != NULL; i++)
		if (!strcmp(known, name))
			return true;
	log_err("dwell: no such policy: \"%s\"; there are", name);
	for (i = 0; (known = dwell_policy_name(i)) != NULL; i++)
		log_err(" %s", known);
	log_err("\n");
	return false;
}

static int dwell_engine_init(struct thread_data *td)
{
	struct dwell_job_options *asked = td->eo;
	struct dwell_job *job;

	if (!policy_known(asked->policy)) {
		td_verror(td, EINVAL, "policy");
		return 1;
	}
#ifdef O_DSYNC
	if (td->o.sync_io & ~O_DSYNC) {
		log_err("dwell: sync=%s is not offered; use sync=dsync\n",
			td->o.sync_io == O_SYNC ? "sync" : "other");
		td_verror(td, EINVAL, "sync");
		return 1;
	}
#endif
	job = calloc(1, sizeof(*job));
	if (!job) {
		td_verror(td, ENOMEM, "init");
		return 1;
	}
	job->depth = td->o.iodepth;
	job->taken = calloc(job->depth, sizeof(*job->taken));
	job->events = calloc(job->depth, sizeof(*job->events));
	if (!job->taken || !job->events) {
		free(job->taken);
		free(job->events);
		free(job);
		td_verror(td, ENOMEM, "init");
		return 1;
	}
	td->io_ops_data = job;
	/* fio times requests of such a job before they are made, not after. */
	if (job->depth == 1)
		td->flags |= (unsigned long long) FIO_SYNCIO << TD_ENG_FLAG_SHIFT;
	return 0;
}

static void dwell_engine_cleanup(struct thread_data *td)
{
	struct dwell_job *job = td->io_ops_data;

	if (!job)
		return;
	free(job->taken);
	free(job->events);
	free(job);
}

static void show_stats(const struct fio_file *f, const dwell_file *file)
{
	dwell_stats stats = DWELL_STATS_INIT;
	unsigned int i;

	if (dwell_file_stats(file, &stats))
		return;
	log_err("dwell: %s: %llu requests: %llu spun, %llu blocked, %llu hybrid, %llu system calls;",
		f->file_name, (unsigned long long) stats.requests,
		(unsigned long long) stats.spun, (unsigned long long) stats.blocked,
		(unsigned long long) stats.hybrid, (unsigned long long) stats.inline_calls);
	log_err(" %llu switches avoided;", (unsigned long long) stats.switches_avoided);
	for (i = 0; i < DWELL_REASONS; i++)
		if (stats.by_reason[i])
			log_err(" %s %llu", dwell_reason_name(i),
				(unsigned long long) stats.by_reason[i]);
	log_err("\n");
}

static int refused(struct thread_data *td, const char *doing)
{
	int error = errno;

	log_err("dwell: %s\n", dwell_last_error());
	td_verror(td, error, doing);
	return 1;
}

static void show_note(struct dwell_job *job, const dwell_file *file)
{
	dwell_info info = DWELL_INFO_INIT;

	if (job->note_shown || dwell_file_info(file, &info) || !info.note)
		return;
	log_err("dwell: %s\n", info.note);
	job->note_shown = true;
}

static int dwell_engine_open(struct thread_data *td, struct fio_file *f)
{
	struct dwell_job *job = td->io_ops_data;
	struct dwell_job_options *asked = td->eo;
	dwell_options how = DWELL_OPTIONS_INIT;
	struct dwell_slot *slot;
	/* Some of what fio does itself (invalidate, fadvise) wants a descriptor. */
	int ret = generic_open_file(td, f);

	if (ret)
		return ret;
	slot = calloc(1, sizeof(*slot));
	if (!slot) {
		td_verror(td, ENOMEM, "open");
		goto failed;
	}
	how.policy = asked->policy;
	if (td_write(td))
		how.flags |= DWELL_WRITE;
	if (td->o.odirect)
		how.flags |= DWELL_DIRECT;
	if (td->o.sync_io)
		how.flags |= DWELL_SYNC;
	if (dwell_open(f->file_name, &how, &slot->file)) {
		refused(td, "dwell_open");
		goto failed;
	}
	show_note(job, slot->file);
	if (job->depth > 1 && dwell_queue_create(slot->file, job->depth, &slot->queue)) {
		refused(td, "dwell_queue_create");
		dwell_close(slot->file);
		goto failed;
	}
	slot->next = job->slots;
	job->slots = slot;
	FILE_SET_ENG_DATA(f, slot);
	return 0;
failed:
	free(slot);
	if (generic_close_file(td, f))
		log_err("dwell: %s: could not be closed\n", f->file_name);
	return 1;
}

static int dwell_engine_close(struct thread_data *td, struct fio_file *f)
{
	struct dwell_job *job = td->io_ops_data;
	struct dwell_job_options *asked = td->eo;
	struct dwell_slot *slot = FILE_ENG_DATA(f), **at;
	int error = 0;

	if (slot) {
		for (at = &job->slots; *at && *at != slot; at = &(*at)->next)
			;
		if (*at)
			*at = slot->next;
		if (slot->queue && dwell_queue_close(slot->queue))
			error = errno;
		if (asked->show_stats)
			show_stats(f, slot->file);
		dwell_close(slot->file);
		free(slot);
		FILE_SET_ENG_DATA(f, NULL);
	}
	return generic_close_file(td, f) ?: error;
}

static void completed(struct io_u *io_u, long long result)
{
	io_u->error = 0;
	io_u->resid = 0;
	if (result < 0)
		io_u->error = -result;
	else if (ddir_rw(io_u->ddir))
		io_u->resid = io_u->xfer_buflen - result;
}

static enum fio_q_status at_once(struct thread_data *td, struct io_u *io_u)
{
	struct dwell_slot *slot = FILE_ENG_DATA(io_u->file);
	long long result;

	switch (io_u->ddir) {
	case DDIR_READ:
		result = dwell_read_at(slot->file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset);
		break;
	case DDIR_WRITE:
		result = dwell_write_at(slot->file, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset);
		break;
	case DDIR_SYNC:
		result = dwell_sync(slot->file);
		break;
	case DDIR_DATASYNC:
		result = dwell_sync_data(slot->file);
		break;
	default:
		errno = EOPNOTSUPP;
		result = -1;
	}
	completed(io_u, result < 0 ? -errno : result);
	if (io_u->error)
		td_verror(td, io_u->error, "xfer");
	return FIO_Q_COMPLETED;
}

static bool anything_in_flight(const struct dwell_job *job)
{
	const struct dwell_slot *slot;

	for (slot = job->slots; slot; slot = slot->next)
		if (slot->in_flight)
			return true;
	return false;
}

static enum fio_q_status dwell_engine_queue(struct thread_data *td, struct io_u *io_u)
{
	struct dwell_job *job = td->io_ops_data;
	struct dwell_slot *slot = FILE_ENG_DATA(io_u->file);
	int failed;

	fio_ro_check(td, io_u);
	if (job->depth > 1 && !ddir_rw(io_u->ddir) && anything_in_flight(job)) {
		/* A sync is for what completed: fio is to take that first. */
		return FIO_Q_BUSY;
	}
	if (job->depth == 1 || !ddir_rw(io_u->ddir))
		return at_once(td, io_u);
	if (io_u->ddir == DDIR_TRIM)
		return at_once(td, io_u);
	if (io_u->ddir == DDIR_READ)
		failed = dwell_queue_read(slot->queue, io_u->xfer_buf, io_u->xfer_buflen,
					  io_u->offset, io_u);
	else
		failed = dwell_queue_write(slot->queue, io_u->xfer_buf, io_u->xfer_buflen,
					   io_u->offset, io_u);
	if (failed && errno == EAGAIN)
		return FIO_Q_BUSY;
	if (failed) {
		completed(io_u, -errno);
		log_err("dwell: %s\n", dwell_last_error());
		td_verror(td, io_u->error, "xfer");
		return FIO_Q_COMPLETED;
	}
	slot->in_flight++;
	job->unsent++;
	return FIO_Q_QUEUED;
}

static int dwell_engine_commit(struct thread_data *td)
{
	struct dwell_job *job = td->io_ops_data;
	struct dwell_slot *slot;

	if (!job->unsent)
		return 0;
	for (slot = job->slots; slot; slot = slot->next)
		if (slot->in_flight && dwell_queue_submit(slot->queue))
			return -errno;
	io_u_mark_submit(td, job->unsent);
	job->unsent = 0;
	return 0;
}

/* Takes completions of one file behind those that there are; their number, or a negative error. */
static int take(struct dwell_job *job, struct dwell_slot *slot, unsigned int there,
		unsigned int min, unsigned int max, long long timeout_ns)
{
	int i, taken = dwell_queue_wait(slot->queue, min, job->taken, max, timeout_ns);

	if (taken < 0)
		return -errno;
	for (i = 0; i < taken; i++) {
		job->events[there + i] = job->taken[i].user;
		completed(job->events[there + i], job->taken[i].result);
	}
	slot->in_flight -= taken;
	return taken;
}

static int dwell_engine_getevents(struct thread_data *td, unsigned int min, unsigned int max,
				  const struct timespec *longest)
{
	struct dwell_job *job = td->io_ops_data;
	long long timeout_ns = longest ? longest->tv_sec * 1000000000LL + longest->tv_nsec : -1;
	unsigned int there = 0;
	int taken;

	if (max > job->depth)
		max = job->depth;
	if (min > max)
		min = max;
	for (;;) {
		struct dwell_slot *slot, *busy = NULL;
		unsigned int files = 0;

		for (slot = job->slots; slot; slot = slot->next)
			if (slot->in_flight) {
				busy = slot;
				files++;
			}
		if (files == 1)
			return (taken = take(job, busy, there, min > there ? min - there : 0,
					     max - there, timeout_ns)) < 0 ? taken : there + taken;
		for (slot = job->slots; slot && there < max; slot = slot->next) {
			if (!slot->in_flight)
				continue;
			taken = take(job, slot, there, 0, max - there, 0);
			if (taken < 0)
				return taken;
			there += taken;
			if (slot->in_flight)
				busy = slot;
		}
		if (there >= min || !files)
			return there;
		/* Nothing tells which file's request ends first: wait for one of them, look at all. */
		if (!busy->in_flight)
			continue;
		taken = take(job, busy, there, 1, max - there, timeout_ns);
		if (taken < 0)
			return taken;
		there += taken;
		if (there >= min || (timeout_ns >= 0 && !taken))
			return there;
	}
}

static struct io_u *dwell_engine_event(struct thread_data *td, int event)
{
	struct dwell_job *job = td->io_ops_data;

	return job->events[event];
}

struct ioengine_ops ioengine = {
	.name		    = "dwell",
	.version	    = FIO_IOOPS_VERSION,
	/* A queue belongs to its thread, so nobody else may submit. */
	.flags		    = FIO_NO_OFFLOAD,
	.init		    = dwell_engine_init,
	.cleanup	    = dwell_engine_cleanup,
	.open_file	    = dwell_engine_open,
	.close_file	    = dwell_engine_close,
	.get_file_size	    = generic_get_file_size,
	.queue		    = dwell_engine_queue,
	.commit		    = dwell_engine_commit,
	.getevents	    = dwell_engine_getevents,
	.event		    = dwell_engine_event,
	.options	    = options,
	.option_struct_size = sizeof(struct dwell_job_options),
};
