/* A disk that is full: preloaded into PostgreSQL, it answers ENOSPC to every write that would make a file longer, as a full file system does, while the
 * file UMAVEZ_TEST_FULL says "data" (relations) or "wal". Overwriting works on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) \
	static __typeof__(name) *real; \
	if (!real) \
		*(void **)&real = dlsym(RTLD_NEXT, #name)

static int refuses(int fd, off_t end)
{
	char mode[8] = "", link[64], path[512];
	const char *switch_path = getenv("UMAVEZ_TEST_FULL");
	int saved = errno, sw = switch_path ? open(switch_path, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t n = sw >= 0 ? read(sw, mode, sizeof mode - 1) : 0;
	struct stat st;

	if (sw >= 0)
		close(sw);
	errno = saved;
	if (n <= 0 || (mode[0] != 'd' && mode[0] != 'w') || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || end <= st.st_size)
		return 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof path - 1);
	errno = saved;
	if (n <= 0)
		return 0;
	path[n] = 0;
	if (!strstr(path, mode[0] == 'd' ? "/data/base/" : "/data/pg_wal/"))
		return 0;
	errno = ENOSPC;
	return 1;
}

static off_t length(const struct iovec *v, int n)
{
	off_t sum = 0;

	while (n-- > 0)
		sum += (off_t)v[n].iov_len;
	return sum;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	REAL(pwrite);
	return refuses(fd, at + (off_t)n) ? -1 : real(fd, p, n, at);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
	REAL(pwrite64);
	return refuses(fd, at + (off_t)n) ? -1 : real(fd, p, n, at);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{
	REAL(pwritev);
	return refuses(fd, at + length(v, n)) ? -1 : real(fd, v, n, at);
}

ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at)
{
	REAL(pwritev64);
	return refuses(fd, at + length(v, n)) ? -1 : real(fd, v, n, at);
}

ssize_t write(int fd, const void *p, size_t n)
{
	REAL(write);
	return refuses(fd, lseek(fd, 0, SEEK_CUR) + (off_t)n) ? -1 : real(fd, p, n);
}

int posix_fallocate(int fd, off_t at, off_t n)
{
	REAL(posix_fallocate);
	return refuses(fd, at + n) ? ENOSPC : real(fd, at, n);
}

int posix_fallocate64(int fd, off64_t at, off64_t n)
{
	REAL(posix_fallocate64);
	return refuses(fd, at + n) ? ENOSPC : real(fd, at, n);
}
