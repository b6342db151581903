#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Whole or not at all: written aside, then renamed. */
int write_file(const char *path, const char *text, size_t n, bool sync)
{
	char tmp[PATH_MAX];
	size_t len = strlen(path);
	ssize_t w;
	int fd;

	if (len + 5 > sizeof tmp)
		return -ENAMETOOLONG;
	memcpy(tmp, path, len);
	memcpy(tmp + len, ".tmp", 5);
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	w = write(fd, text, n);
	if (w != (ssize_t)n || (sync && fdatasync(fd) < 0) || close(fd) < 0 || rename(tmp, path) < 0) {
		int e = w >= 0 && w != (ssize_t)n ? ENOSPC : errno;
		unlink(tmp);
		return -e;
	}
	return 0;
}

/*
 * Has the kernel killed a process of this memory cgroup? memory.oom_control
 * (v1) and memory.events (v2) both have a line "oom_kill N".
 */
bool oom_killed(const char *path)
{
	char buf[512], *p;
	ssize_t n;
	int fd;

	if (!*path)
		return false;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, buf, sizeof buf - 1);
	close(fd);
	if (n <= 0)
		return false;
	buf[n] = 0;
	p = strstr(buf, "oom_kill ");
	return p && p[9] >= '1' && p[9] <= '9';
}

/* A signal counts as 128 + its number, as a shell has it. */
size_t exit_text(char *buf, size_t cap, int status, bool oom)
{
	struct text t = { buf, 0, cap };
	struct timespec ts;
	int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	int code = sig ? 128 + sig : WEXITSTATUS(status);

	clock_gettime(CLOCK_REALTIME, &ts);
	text_str(&t, "{\"version\":1,\"code\":");
	text_num(&t, (uint64_t)code, 0);
	text_str(&t, ",\"signal\":");
	text_num(&t, (uint64_t)sig, 0);
	text_str(&t, ",\"oom\":");
	text_str(&t, oom && code ? "true" : "false");
	text_str(&t, ",\"finishedAt\":\"");
	text_time(&t, &ts);
	text_str(&t, "\"}\n");
	return t.len;
}

/* Who we are, for a runtime that has to clean up when we no longer answer. */
size_t state_text(char *buf, size_t cap, pid_t init)
{
	struct text t = { buf, 0, cap };

	text_str(&t, "{\"version\":1,\"monitorPid\":");
	text_num(&t, (uint64_t)getpid(), 0);
	text_str(&t, ",\"monitorStart\":");
	text_num(&t, start_time_of(getpid()), 0);
	text_str(&t, ",\"pid\":");
	text_num(&t, (uint64_t)init, 0);
	text_str(&t, ",\"start\":");
	text_num(&t, init ? start_time_of(init) : 0, 0);
	text_str(&t, "}\n");
	return t.len;
}
