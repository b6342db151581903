#include "monitor.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

void text_str(struct text *t, const char *s)
{
	while (*s && t->len < t->cap)
		t->buf[t->len++] = *s++;
}

/* Decimal, padded with zeros to width. */
void text_num(struct text *t, uint64_t n, int width)
{
	char d[20];
	int i = 0;

	do {
		d[i++] = (char)('0' + n % 10);
		n /= 10;
	} while (n);
	while (width > i && t->len < t->cap) {
		t->buf[t->len++] = '0';
		width--;
	}
	while (i > 0 && t->len < t->cap)
		t->buf[t->len++] = d[--i];
}

/*
 * RFC 3339 with nanoseconds, in UTC. Days to civil date as in Howard Hinnant's
 * "chrono-Compatible Low-Level Date Algorithms"; gmtime would load time zones.
 */
void text_time(struct text *t, const struct timespec *ts)
{
	uint64_t secs = (uint64_t)ts->tv_sec, day = secs / 86400, rest = secs % 86400;
	uint64_t z = day + 719468, era = z / 146097, doe = z % 146097;
	uint64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
	uint64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
	uint64_t month = mp < 10 ? mp + 3 : mp - 9;

	text_num(t, yoe + era * 400 + (month <= 2), 4);
	text_str(t, "-");
	text_num(t, month, 2);
	text_str(t, "-");
	text_num(t, doy - (153 * mp + 2) / 5 + 1, 2);
	text_str(t, "T");
	text_num(t, rest / 3600, 2);
	text_str(t, ":");
	text_num(t, rest / 60 % 60, 2);
	text_str(t, ":");
	text_num(t, rest % 60, 2);
	text_str(t, ".");
	text_num(t, (uint64_t)ts->tv_nsec, 9);
	text_str(t, "Z");
}

/*
 * Field 22 of /proc/PID/stat: with it a pid names one process for good.
 * Counted from the last ')', since the command name may hold anything.
 */
uint64_t start_time_of(pid_t pid)
{
	char path[32], buf[1024];
	struct text t = { path, 0, sizeof path - 1 };
	uint64_t v = 0;
	ssize_t n;
	char *p;
	int fd;

	text_str(&t, "/proc/");
	text_num(&t, (uint64_t)pid, 0);
	text_str(&t, "/stat");
	path[t.len] = 0;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, buf, sizeof buf - 1);
	close(fd);
	if (n <= 0)
		return 0;
	buf[n] = 0;
	p = strrchr(buf, ')');
	if (!p)
		return 0;
	for (int field = 2; field < 22; field++) {
		p = strchr(p, ' ');
		if (!p)
			return 0;
		p++;
	}
	while (*p >= '0' && *p <= '9')
		v = v * 10 + (uint64_t)(*p++ - '0');
	return v;
}

int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}
