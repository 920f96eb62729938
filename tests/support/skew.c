/* A clock that is wrong: preloaded, it adds to the wall clock the seconds that stand in the file UMAVEZ_TEST_SKEW (read at each call,
 * so that the clock can jump). The monotonic clock stays. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long skew(void)
{
	static int fd = -2;
	char text[32] = "";

	if (fd == -2) {
		const char *path = getenv("UMAVEZ_TEST_SKEW");
		fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	}
	if (fd < 0 || pread(fd, text, sizeof text - 1, 0) <= 0)
		return 0;
	return atol(text);
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	static int (*real)(clockid_t, struct timespec *);
	int rc;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
	rc = real(id, ts);
	if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		ts->tv_sec += skew();
	return rc;
}

int gettimeofday(struct timeval *tv, void *zone)
{
	struct timespec ts;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *to)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	if (to)
		*to = ts.tv_sec;
	return ts.tv_sec;
}
