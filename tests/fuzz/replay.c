/* replay: a main for the fuzz targets where clang's fuzzer is not to be had. Runs the target on every file that is named (or lies in a
 * named folder), and on MUTATIONS changed copies of each (-mutate=N; default 0), the same ones each time. What crashes is left in
 * replay-input, and named. As `replay FILE` it serves AFL, too. */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX = 4000 };

static uint64_t state = 88172645463325252u;
static long mutations, runs;
static const uint8_t *now;
static size_t now_size;

static uint32_t chance(uint32_t below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return below ? (uint32_t)(state >> 20) % below : 0;
}

static void on_crash(int signal_number) {
  FILE *f = fopen("replay-input", "wb");
  if (f) {
    fwrite(now, 1, now_size, f);
    fclose(f);
    fprintf(stderr, "replay: signal %d; the input is in replay-input (%zu octets)\n", signal_number, now_size);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

static void run(const uint8_t *data, size_t size) {
  now = data;
  now_size = size;
  runs++;
  LLVMFuzzerTestOneInput(data, size);
}

/* Changes up to eight places: another octet, a flipped bit, a hostile octet, one less, one more, a repeated piece. */
static size_t mutate(uint8_t *b, size_t n) {
  static const uint8_t hostile[] = {0, '\r', '\n', ' ', '\t', '"', '\\', ':', ',', '%', '/', '?', '{', '}', '[', ']', '0', '9', '-', 0x7f, 0x80, 0xc3, 0xff};
  for (uint32_t i = 1 + chance(8); i > 0; i--) {
    size_t at = chance((uint32_t)n + 1), piece;
    switch (chance(6)) {
      case 0: if (at < n) b[at] = (uint8_t)chance(256); break;
      case 1: if (at < n) b[at] ^= (uint8_t)(1u << chance(8)); break;
      case 2: if (at < n) b[at] = hostile[chance(sizeof hostile)]; break;
      case 3:
        if (at < n) memmove(b + at, b + at + 1, --n - at);
        break;
      case 4:
        if (n >= MAX) break;
        memmove(b + at + 1, b + at, n++ - at);
        b[at] = hostile[chance(sizeof hostile)];
        break;
      default:
        piece = chance((uint32_t)(n - at) + 1);
        if (n + piece > MAX) break;
        memmove(b + at + piece, b + at, n - at);
        n += piece;
    }
  }
  return n;
}

static int run_file(const char *path) {
  static uint8_t original[MAX], changed[MAX];
  FILE *f = fopen(path, "rb");
  size_t n;
  if (!f) {
    perror(path);
    return 1;
  }
  n = fread(original, 1, MAX, f);
  fclose(f);
  uint8_t *exact = malloc(n ? n : 1); /* of just that size, for the sanitizer */
  memcpy(exact, original, n);
  run(exact, n);
  free(exact);
  for (long i = 0; i < mutations; i++) {
    memcpy(changed, original, n);
    run(changed, mutate(changed, n));
  }
  return 0;
}

static int run_path(const char *path) {
  struct stat st;
  struct dirent **names;
  int n, bad = 0;
  if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode)) return run_file(path);
  n = scandir(path, &names, NULL, alphasort);
  for (int i = 0; i < n; i++) {
    char inner[4096];
    snprintf(inner, sizeof inner, "%s/%s", path, names[i]->d_name);
    if (names[i]->d_name[0] != '.') bad |= run_path(inner);
    free(names[i]);
  }
  if (n >= 0) free(names);
  return bad;
}

int main(int argc, char **argv) {
  int bad = 0;
  signal(SIGABRT, on_crash);
  signal(SIGSEGV, on_crash);
  for (int i = 1; i < argc; i++)
    if (strncmp(argv[i], "-mutate=", 8) == 0)
      mutations = atol(argv[i] + 8);
    else
      bad |= run_path(argv[i]);
  printf("%ld runs\n", runs);
  return bad || runs == 0;
}
