#include "base/stats.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x756d617374613031ULL
#define READ_TRIES 2000 /* a parent that dies while it folds leaves the sums half-way: then they are read as they are */
#define FOLDING_US 50    /* between two looks at whether it has ended */

struct block {
  _Atomic uint64_t used; /* by a child, once: the others' pages need not be looked at */
  _Atomic uint64_t worker[STATS_WORKER_CELLS];
  _Atomic uint64_t task[STATS_ROWS][STATS_TASK_CELLS];
};

struct stats_area {
  uint64_t magic;
  uint64_t block_size;
  int32_t blocks;
  int64_t start_ms;
  _Atomic uint32_t folding; /* odd while the parent folds */
  _Atomic uint32_t rows;    /* in use, row 0 among them */
  char name[STATS_ROWS][STATS_TASK_MAX];
  /* the blocks follow */
};
_Static_assert(sizeof(struct stats_area) % sizeof(uint64_t) == 0, "the blocks are aligned");

static struct block *blocks_of(const struct stats_area *a) { return (struct block *)(a + 1); }

/* What a process without supervisor has: pages that are never touched cost nothing. */
static struct {
  struct stats_area area;
  struct block block;
} local;

static struct stats_area *area = &local.area;
static struct block *mine = &local.block;
static bool gauges = true;
static int lock_fd = -1;

/* ---- the table ---- */

static const int64_t seconds[] = {STATS_BOUNDS_SECONDS}, runs[] = {STATS_BOUNDS_RUNS};
_Static_assert(sizeof seconds / sizeof *seconds == STATS_BUCKETS_SECONDS, "STATS_BUCKETS_SECONDS");
_Static_assert(sizeof runs / sizeof *runs == STATS_BUCKETS_RUNS, "STATS_BUCKETS_RUNS");

#define VALUE(id, text) text,
#define X(shape, list) static const char *const values_##shape[] = {list(VALUE)};
STATS_SHAPES(X)
#undef X
#undef VALUE

#define SHAPE_ONE .label = ""
#define SHAPE_RESULT .label = "result", .values = values_RESULT
#define SHAPE_GATE .label = "result", .values = values_GATE
#define SHAPE_VERDICT .label = "verdict", .values = values_VERDICT
#define SHAPE_POOL .label = "state", .values = values_POOL
#define SHAPE_ANSWER .label = "status", .values = values_ANSWER
#define SHAPE_REMAINS .label = "what", .values = values_REMAINS
#define SHAPE_SECONDS .label = "", .bounds = seconds, .nbounds = STATS_BUCKETS_SECONDS, .in_seconds = true
#define SHAPE_RUNS .label = "", .bounds = runs, .nbounds = STATS_BUCKETS_RUNS

static const struct stats_metric metrics[] = {
#define X(id, type_, name_, shape, help_) \
  {.name = "umavez_" #name_, .type = STATS_##type_, .help = help_, .by_task = true, .sampled = -1, \
   .cell = STAT_TASK_##id, .size = STATS_SIZE_##shape, SHAPE_##shape},
    STATS_TASK(X)
#undef X
#define X(id, type_, name_, shape, help_) \
  {.name = "umavez_" #name_, .type = STATS_##type_, .help = help_, .sampled = -1, \
   .cell = STAT_##id, .size = STATS_SIZE_##shape, SHAPE_##shape},
        STATS_WORKER(X)
#undef X
#define X(id, type_, name_, label_, help_) \
  {.name = "umavez_" #name_, .type = STATS_##type_, .help = help_, .sampled = STAT_SAMPLED_##id, .label = label_},
            STATS_SAMPLED(X)
#undef X
};

int stats_metrics(void) { return (int)(sizeof metrics / sizeof *metrics); }

const struct stats_metric *stats_metric_at(int i) {
  if (i < 0 || i >= stats_metrics()) bug("stats: metric %d", i);
  return &metrics[i];
}

/* ---- recording ---- */

static inline uint64_t get(const _Atomic uint64_t *c) { return atomic_load_explicit(c, memory_order_relaxed); }
static inline void put(_Atomic uint64_t *c, uint64_t v) { atomic_store_explicit(c, v, memory_order_relaxed); }
static inline void add(_Atomic uint64_t *c, uint64_t n) { put(c, get(c) + n); }

void stats_add(enum stats_cell cell, int place, uint64_t n) { add(&mine->worker[(int)cell + place], n); }

void stats_inc(enum stats_cell cell) { stats_add(cell, 0, 1); }

void stats_set(enum stats_cell cell, int place, uint64_t value) {
  if (gauges) put(&mine->worker[(int)cell + place], value);
}

static inline void observe(_Atomic uint64_t *cells, const int64_t *bounds, int n, int64_t value) {
  int i = 0;
  if (value < 0) value = 0;
  while (i < n && value > bounds[i]) i++;
  add(&cells[i], 1);
  add(&cells[n + 1], (uint64_t)value);
}

void stats_observe(enum stats_cell cell, int64_t us) {
  observe(&mine->worker[cell], seconds, STATS_BUCKETS_SECONDS, us);
}

void stats_observe_runs(enum stats_cell cell, int64_t n) {
  observe(&mine->worker[cell], runs, STATS_BUCKETS_RUNS, n);
}

void stats_task_add(int row, enum stats_task_cell cell, int place, uint64_t n) {
  add(&mine->task[row][(int)cell + place], n);
}

void stats_task_observe(int row, enum stats_task_cell cell, int64_t us) {
  observe(&mine->task[row][cell], seconds, STATS_BUCKETS_SECONDS, us);
}

/* ---- the memory ---- */

static int64_t wall_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

size_t stats_area_size(int slots) { return sizeof(struct stats_area) + (size_t)(slots + 1) * sizeof(struct block); }

void stats_area_init(struct stats_area *a, int slots) {
  a->magic = MAGIC;
  a->block_size = sizeof(struct block);
  a->blocks = slots + 1;
  a->start_ms = wall_ms();
  atomic_store(&a->rows, 1);
}

bool stats_area_fits(const struct stats_area *a, int slots) {
  return a->magic == MAGIC && a->block_size == sizeof(struct block) && a->blocks == slots + 1;
}

static struct stats_area *ours(void) {
  if (area->blocks == 0) stats_area_init(area, 0); /* local */
  return area;
}

void stats_use(struct stats_area *a, int slot, int fd) {
  if (!a) {
    area = &local.area;
    mine = &local.block;
    gauges = true;
    lock_fd = -1;
    return;
  }
  if (slot < STATS_BASE || slot + 1 >= a->blocks) bug("stats: slot %d of %d", slot, a->blocks - 1);
  area = a;
  mine = &blocks_of(a)[slot + 1];
  gauges = slot != STATS_BASE;
  put(&mine->used, 1);
  lock_fd = fd;
}

/* The kernel gives the lock back when its holder dies. */
static void lock_names(bool on) {
  if (lock_fd >= 0 && lockf(lock_fd, on ? F_LOCK : F_ULOCK, 0) != 0) die("stats: cannot lock the shared memory");
}

int stats_row(const char *task) {
  struct stats_area *a = ours();
  uint32_t i;

  lock_names(true);
  uint32_t n = atomic_load(&a->rows);
  for (i = 1; i < n; i++)
    if (strncmp(a->name[i], task, STATS_TASK_MAX - 1) == 0) break;
  if (i == n && n < STATS_ROWS) {
    err_copy_text(a->name[i], STATS_TASK_MAX, task);
    atomic_store_explicit(&a->rows, n + 1, memory_order_release);
  }
  lock_names(false);
  return i < STATS_ROWS ? (int)i : 0;
}

static void fold_cells(_Atomic uint64_t *into, _Atomic uint64_t *from, int n, bool drop) {
  for (int i = 0; i < n; i++) {
    uint64_t v = get(&from[i]);
    if (v == 0) continue; /* pages that were never written stay so */
    if (!drop) add(&into[i], v);
    put(&from[i], 0);
  }
}

void stats_fold(struct stats_area *a, int slot) {
  struct block *to = &blocks_of(a)[0], *from = &blocks_of(a)[slot + 1];
  int rows = (int)atomic_load(&a->rows);

  if (!get(&from->used)) return;
  atomic_fetch_add_explicit(&a->folding, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_release);
  for (int i = 0; i < stats_metrics(); i++) {
    const struct stats_metric *m = &metrics[i];
    if (m->sampled >= 0) continue;
    if (m->by_task)
      for (int r = 0; r < rows; r++)
        fold_cells(&to->task[r][m->cell], &from->task[r][m->cell], m->size, m->type == STATS_GAUGE);
    else
      fold_cells(&to->worker[m->cell], &from->worker[m->cell], m->size, m->type == STATS_GAUGE);
  }
  atomic_fetch_add_explicit(&a->folding, 1, memory_order_release);
}

/* ---- reading ---- */

static void sum_all(const struct stats_area *a, struct stats_sum *s) {
  const struct block *blocks = blocks_of(a);

  memset(s->worker, 0, sizeof s->worker);
  memset(s->task, 0, (size_t)s->rows * sizeof *s->task);
  for (int b = 0; b < a->blocks; b++) {
    if (b > 0 && !get(&blocks[b].used)) continue;
    for (int i = 0; i < STATS_WORKER_CELLS; i++) s->worker[i] += get(&blocks[b].worker[i]);
    for (int r = 0; r < s->rows; r++)
      for (int i = 0; i < STATS_TASK_CELLS; i++) s->task[r][i] += get(&blocks[b].task[r][i]);
  }
}

void stats_sum(struct stats_sum *out) {
  const struct stats_area *a = ours();

  out->rows = (int)atomic_load_explicit(&a->rows, memory_order_acquire);
  out->task = xcalloc((size_t)out->rows, sizeof *out->task);
  out->names = xcalloc((size_t)out->rows, sizeof *out->names);
  for (int i = 0; i < out->rows; i++) out->names[i] = i == 0 ? "unknown" : a->name[i];
  for (int i = 0; i < READ_TRIES; i++) {
    uint32_t before = atomic_load_explicit(&a->folding, memory_order_acquire);
    if ((before & 1) && i < READ_TRIES - 1) {
      usleep(FOLDING_US);
      continue;
    }
    sum_all(a, out);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&a->folding, memory_order_relaxed) == before) return;
  }
}

int64_t stats_start_ms(void) { return ours()->start_ms; }

void stats_sum_fini(struct stats_sum *s) {
  free(s->task);
  free(s->names);
}
