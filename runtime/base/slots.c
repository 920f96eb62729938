#include "base/slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x756d6176657a3032ULL /* changes with the layout: a child of another build must not guess */

/* Whoever writes may die at any instruction; a reader looks this often before it says that nothing is there. */
#define READ_TRIES 1000

struct shared {
  uint64_t magic;
  uint32_t count, slot_size;
  struct slot slot[];
};

struct slots {
  int fd;
  size_t size;
  struct shared *shared;
};

/* The slots, and behind them, aligned, the counts. */
static size_t stats_at(int count) {
  return (sizeof(struct shared) + (size_t)count * sizeof(struct slot) + 63) / 64 * 64;
}

static size_t size_of(int count) { return stats_at(count) + stats_area_size(count); }

static struct slots *map(int fd, size_t size, struct err *e) {
  void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) {
    err_set(e, ERR_ENV, "shared_memory", "cannot map %zu octets of shared memory: %s", size, strerror(errno));
    return NULL;
  }
  struct slots *s = xcalloc(1, sizeof *s);
  s->fd = fd;
  s->size = size;
  s->shared = p;
  return s;
}

struct slots *slots_new(int count, struct err *e) {
  if (count < 1) bug("slots_new: %d slots", count);
  size_t size = size_of(count);
  int fd = memfd_create("umavez-slots", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
    err_set(e, ERR_ENV, "shared_memory", "cannot make %zu octets of shared memory: %s", size, strerror(errno));
    if (fd >= 0) close(fd);
    return NULL;
  }
  struct slots *s = map(fd, size, e);
  if (!s) {
    close(fd);
    return NULL;
  }
  s->shared->magic = MAGIC;
  s->shared->count = (uint32_t)count;
  s->shared->slot_size = sizeof(struct slot);
  stats_area_init(slots_stats(s), count);
  return s;
}

struct slots *slots_attach(int fd, struct err *e) {
  struct stat st;
  if (fstat(fd, &st) != 0 || st.st_size < (off_t)sizeof(struct shared)) {
    err_set(e, ERR_ENV, "shared_memory", "descriptor %d is not a supervisor's shared memory", fd);
    return NULL;
  }
  struct slots *s = map(fd, (size_t)st.st_size, e);
  if (!s) return NULL;
  const struct shared *m = s->shared;
  if (m->magic != MAGIC || m->slot_size != sizeof(struct slot) ||
      s->size != size_of((int)m->count) || !stats_area_fits(slots_stats(s), (int)m->count)) {
    err_set(e, ERR_ENV, "shared_memory",
            "the supervisor is of another build of umavez (its shared memory has another layout): restart it");
    munmap(s->shared, s->size);
    free(s);
    return NULL;
  }
  return s;
}

void slots_free(struct slots *s) {
  if (!s) return;
  munmap(s->shared, s->size);
  close(s->fd);
  free(s);
}

int slots_fd(const struct slots *s) { return s->fd; }

int slots_count(const struct slots *s) { return (int)s->shared->count; }

struct slot *slots_at(struct slots *s, int index) {
  if (index < 0 || index >= slots_count(s)) bug("slot %d of %d", index, slots_count(s));
  return &s->shared->slot[index];
}

struct stats_area *slots_stats(struct slots *s) {
  return (struct stats_area *)((char *)s->shared + stats_at(slots_count(s)));
}

enum slot_state slot_state(const struct slot *slot) {
  return (enum slot_state)atomic_load_explicit(&slot->state, memory_order_acquire);
}

const char *slot_state_name(enum slot_state state) {
  static const char *const names[] = {
#define X(id, name) name,
      SLOT_STATES(X)
#undef X
  };
  if ((unsigned)state >= sizeof names / sizeof *names) return "unknown"; /* the memory is the child's to spoil */
  return names[state];
}

static void set_state(struct slot *slot, enum slot_state state) {
  if (slot) atomic_store_explicit(&slot->state, state, memory_order_release);
}

int slot_reserve(struct slots *s, int64_t generation, bool alone, int64_t now_ms) {
  for (int i = 0; i < slots_count(s); i++) {
    struct slot *slot = slots_at(s, i);
    if (slot_state(slot) != SLOT_EMPTY) continue;
    memset(slot, 0, sizeof *slot);
    slot->generation = generation;
    slot->reserved_ms = now_ms;
    slot->alone = alone;
    set_state(slot, SLOT_STARTING);
    return i;
  }
  return -1;
}

void slot_release(struct slots *s, int index) { set_state(slots_at(s, index), SLOT_EMPTY); }

struct slot *slot_open(struct slots *s, int index, struct err *e) {
  if (index < 0 || index >= slots_count(s) || slot_state(slots_at(s, index)) != SLOT_STARTING) {
    err_set(e, ERR_ENV, "shared_memory", "slot %d of %d is not this process's", index, slots_count(s));
    return NULL;
  }
  slots_at(s, index)->pid = getpid();
  return slots_at(s, index);
}

void slot_ready(struct slot *slot) { set_state(slot, SLOT_READY); }
void slot_draining(struct slot *slot) { set_state(slot, SLOT_DRAINING); }
void slot_ended(struct slot *slot) { set_state(slot, SLOT_ENDED); }

void slot_tell(struct slot *slot, const char *worker_id, const struct slot_settings *settings) {
  if (!slot) return;
  if (atomic_load(&slot->told)) bug("slot_tell: told twice");
  err_copy_text(slot->worker_id, sizeof slot->worker_id, worker_id);
  slot->settings = *settings;
  atomic_store_explicit(&slot->told, 1, memory_order_release);
}

bool slot_told(const struct slot *slot, char worker_id[37], struct slot_settings *settings) {
  if (!atomic_load_explicit(&slot->told, memory_order_acquire)) return false;
  if (worker_id) memcpy(worker_id, slot->worker_id, sizeof slot->worker_id), worker_id[36] = 0;
  if (settings) *settings = slot->settings;
  return true;
}

void slot_retire(struct slot *slot) { atomic_store_explicit(&slot->retired, 1, memory_order_release); }

bool slot_alone(const struct slot *slot) { return !slot || slot->alone; }

bool slot_retired(const struct slot *slot) {
  return slot && atomic_load_explicit(&slot->retired, memory_order_acquire);
}

void slot_tell_fault(struct slot *slot, const char *text) {
  if (!slot || atomic_load(&slot->fault_told)) return;
  err_copy_text(slot->fault, sizeof slot->fault, text);
  atomic_store_explicit(&slot->fault_told, 1, memory_order_release);
}

bool slot_fault(const struct slot *slot, char *out) {
  if (!atomic_load_explicit(&slot->fault_told, memory_order_acquire)) return false;
  memcpy(out, slot->fault, sizeof slot->fault);
  out[SLOT_FAULT_MAX - 1] = 0;
  return true;
}

/* ---- the loop ---- */

void slot_busy(struct slot *slot, int64_t now_ms) {
  if (slot) atomic_store_explicit(&slot->busy_since_ms, now_ms, memory_order_release);
}

void slot_idle(struct slot *slot) {
  if (!slot) return;
  atomic_fetch_add_explicit(&slot->turns, 1, memory_order_relaxed);
  atomic_store_explicit(&slot->busy_since_ms, 0, memory_order_release);
}

void slot_counts(struct slot *slot, int in_flight, int64_t runs_ended, int64_t lua_bytes) {
  if (!slot) return;
  atomic_store_explicit(&slot->in_flight, in_flight, memory_order_relaxed);
  atomic_store_explicit(&slot->runs_ended, runs_ended, memory_order_relaxed);
  atomic_store_explicit(&slot->lua_bytes, lua_bytes, memory_order_relaxed);
}

/* ---- under a sequence counter: odd while it is being written ---- */

static void write_begin(_Atomic uint32_t *seq) {
  atomic_fetch_add_explicit(seq, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_release);
}

static void write_end(_Atomic uint32_t *seq) { atomic_fetch_add_explicit(seq, 1, memory_order_release); }

/* Copies size octets as they were at one time; false: the writer never came to its end. */
static bool read_whole(const _Atomic uint32_t *seq, void *out, const void *in, size_t size) {
  for (int i = 0; i < READ_TRIES; i++) {
    uint32_t before = atomic_load_explicit(seq, memory_order_acquire);
    if (before & 1) continue;
    memcpy(out, in, size);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(seq, memory_order_relaxed) == before) return true;
  }
  return false;
}

void slot_enter_run(struct slot *slot, const struct slot_run *run) {
  if (!slot) return;
  struct slot_run *to = &slot->current.run;
  write_begin(&slot->run_seq);
  memcpy(to->run_id, run->run_id, sizeof to->run_id);
  err_copy_text(to->task, sizeof to->task, run->task);
  to->has_tenant = run->has_tenant;
  to->tenant_id = run->tenant_id;
  to->since_ms = run->since_ms;
  to->deadline_ms = run->deadline_ms;
  slot->current.set = true;
  write_end(&slot->run_seq);
}

void slot_leave_run(struct slot *slot) {
  if (!slot) return;
  write_begin(&slot->run_seq);
  slot->current.set = false;
  write_end(&slot->run_seq);
}

/* The memory was the child's to spoil: texts end, whatever it did. */
bool slot_current_run(const struct slot *slot, struct slot_run *out) {
  struct slot_current copy;
  if (!read_whole(&slot->run_seq, &copy, &slot->current, sizeof copy) || !copy.set) return false;
  *out = copy.run;
  out->run_id[sizeof out->run_id - 1] = 0;
  out->task[sizeof out->task - 1] = 0;
  return true;
}

int slot_start_run(struct slot *slot, const char *run_id) {
  if (!slot) return -1;
  for (int i = 0; i < SLOT_STARTED_MAX; i++) {
    struct slot_started *place = &slot->started[i];
    if (atomic_load_explicit(&place->set, memory_order_relaxed)) continue;
    err_copy_text(place->run_id, sizeof place->run_id, run_id);
    atomic_store_explicit(&place->set, 1, memory_order_release);
    return i;
  }
  return -1;
}

void slot_end_run(struct slot *slot, int place) {
  if (slot && place >= 0) atomic_store_explicit(&slot->started[place].set, 0, memory_order_release);
}

bool slot_started_run(const struct slot *slot, int place, char run_id[37]) {
  if (!atomic_load_explicit(&slot->started[place].set, memory_order_acquire)) return false;
  memcpy(run_id, slot->started[place].run_id, 37);
  run_id[36] = 0;
  return true;
}

uint32_t slot_traces(const struct slot *slot) {
  return atomic_load_explicit(&slot->trace_seq, memory_order_acquire);
}

void slot_write_traceback(struct slot *slot, const char *text, size_t len) {
  if (!slot) return;
  if (len > SLOT_TRACEBACK_MAX) len = SLOT_TRACEBACK_MAX;
  write_begin(&slot->trace_seq);
  memcpy(slot->trace.text, text, len);
  slot->trace.len = (uint32_t)len;
  write_end(&slot->trace_seq);
}

bool slot_traceback(const struct slot *slot, char *out) {
  struct slot_trace copy;
  if (!read_whole(&slot->trace_seq, &copy, &slot->trace, sizeof copy)) return false;
  if (copy.len == 0 || copy.len > SLOT_TRACEBACK_MAX) return false;
  memcpy(out, copy.text, copy.len);
  out[copy.len] = 0;
  return true;
}
