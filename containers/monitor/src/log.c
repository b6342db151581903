#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/*
 * Lines are gathered here and written together: a container that prints fast
 * costs one write per read, not one per line.
 */
static char out[2 * CHUNK];
static size_t out_len;

int log_open(const char *path)
{
	if (!*path)
		return -1;
	return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
}

/*
 * A full disk must not stop the container: what cannot be written is lost,
 * and the next write is tried again.
 */
static void flush(void)
{
	size_t done = 0;

	while (done < out_len && S.log_fd >= 0) {
		ssize_t n = write(S.log_fd, out + done, out_len - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		done += (size_t)n;
	}
	out_len = 0;
}

/* "<time> <stream> <P|F> <line>\n", as the kubelet reads it. */
static void line(const struct stream *s, const char *tag, const char *head, size_t nhead,
		 const char *tail, size_t ntail, const struct timespec *ts)
{
	const size_t overhead = 64;
	struct text t;

	if (S.log_fd < 0)
		return;
	if (out_len + nhead + ntail + overhead > sizeof out)
		flush();
	t.buf = out;
	t.len = out_len;
	t.cap = sizeof out;
	text_time(&t, ts);
	text_str(&t, " ");
	text_str(&t, s->name);
	text_str(&t, tag);
	memcpy(out + t.len, head, nhead);
	memcpy(out + t.len + nhead, tail, ntail);
	out_len = t.len + nhead + ntail;
	out[out_len++] = '\n';
}

void log_output(struct stream *s, const char *data, size_t n)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	while (n > 0) {
		const char *nl = memchr(data, '\n', n);
		size_t take = nl ? (size_t)(nl - data) : n;

		if (s->len + take > sizeof s->line) {
			/* Too long: what fits is a partial line. */
			take = sizeof s->line - s->len;
			line(s, " P ", s->line, s->len, data, take, &ts);
			s->len = 0;
		} else if (nl) {
			line(s, " F ", s->line, s->len, data, take, &ts);
			s->len = 0;
			take++; /* the newline */
		} else {
			memcpy(s->line + s->len, data, take);
			s->len += take;
		}
		data += take;
		n -= take;
	}
	flush();
}

void log_finish(struct stream *s)
{
	struct timespec ts;

	if (s->len == 0)
		return;
	clock_gettime(CLOCK_REALTIME, &ts);
	/* No newline came: readers must not add one. */
	line(s, " P ", s->line, s->len, "", 0, &ts);
	s->len = 0;
	flush();
}
